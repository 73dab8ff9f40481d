"""Theorem 5: joint convergence of centers and client models for fixed importance weights."""

from __future__ import annotations

import numpy as np

from fedsoft.seeds import generator
from fedsoft.theory import quantities as q
from fedsoft.theory.check import Found, statement, yes
from fedsoft.theory.library import FixedWeights
from fedsoft.theory.objective import disturbed_weights
from fedsoft.theory.problem import Array, Problem, draw_logistic, draw_quadratics, on_a_line


def distances_to(goal: Array, library: FixedWeights, c: Array, most: int, stop: float) -> list[float]:
    """|c^t - goal| over the library's rounds, until it is below `stop`."""
    found = [float(np.linalg.norm(c - goal))]
    while len(found) <= most and found[-1] > stop:
        c = library.round(c, t=len(found))
        found.append(float(np.linalg.norm(c - goal)))
    return found


def measured_rate(goal: Array, library: FixedWeights, rng: np.random.Generator, length: float, rounds: int) -> float:
    """By how much a round shrinks a deviation from `goal` in the long run: it is stretched to `length` every round."""
    away, shrunk = rng.standard_normal(goal.shape), 0.0
    for _ in range(rounds):
        away *= length / np.linalg.norm(away)
        away = library.round(goal + away) - goal
        shrunk = float(np.linalg.norm(away)) / length
    return shrunk


@statement(
    "theorem-5", "Theorem 5", "c^T and w^T converge linearly to argmin sum_k h_k; equal n_k, everybody takes part"
)
def check_theorem_5(seed: int, draws: int) -> Found:
    """The library's rate over the last rounds against the spectral radius of the round's derivative."""
    rng = generator(seed, "theorem-5")
    rates, ends, curve = [], [], {}
    copies = np.array([[8, 1, 1], [2, 5, 3], [1, 1, 8], [3, 6, 1]])
    count = max(3, min(12, draws // 25))
    for i in range(count + 1):
        logistic = i == count
        S = 2 if logistic else 3
        sources = draw_logistic(rng, S=2, d=2, points=10, ridge=0.5) if logistic else draw_quadratics(rng, S=3, d=3)
        problem = Problem(sources, np.array([[9, 1], [1, 9], [4, 6]]) if logistic else copies)
        ut, lam = disturbed_weights(problem, rng), float(rng.uniform(0.3, 3.0))
        goal = q.joint_minimiser(problem, ut, lam, np.ones(problem.N))
        w = q.Round(problem, goal, ut, lam).solutions()
        spectral = q.spectral_rate(q.round_matrix(problem, ut, lam, q.aggregation(ut, problem.n), w))
        library = FixedWeights(problem, ut, lam)
        path = distances_to(goal, library, problem.c_star + rng.standard_normal((S, goal.shape[1])),
                            most=400, stop=1e-8 if logistic else 1e-9)  # fmt: skip
        ends.append([path[-1], float(np.abs(library.w - w).max())])
        fitted = measured_rate(goal, library, rng, 1e-3 if logistic else 1.0, 150)
        rates.append([spectral, fitted])
        if i == 0 or logistic:
            kind = "logistic" if logistic else "quadratic"
            curve[f"log10 distance, {kind}"] = [[t, float(np.log10(x))] for t, x in enumerate(path)]
            line = [[t, float(np.log10(path[-1] * spectral ** (t - len(path) + 1)))] for t in (0, len(path) - 1)]
            curve[f"spectral rate, {kind}"] = line
    pairs = np.array(rates)
    off, ends_at = np.abs(pairs[:, 1] / pairs[:, 0] - 1), np.array(ends)
    return Found(
        yes(bool(off.max() < 0.01 and pairs[:, 1].max() < 1 and ends_at.max() < 1e-7)),
        f"rates {pairs[:, 1].min():.4f} to {pairs[:, 1].max():.4f}, off the spectral ones by at most {off.max():.1e}",
        "below 1",
        f"rate = spectral radius of d c^(t+1) / d c^t; for equal Hessians with smallest eigenvalue mu it is lambda / "
        f"(mu + lambda). Ridge logistic regression: measured {pairs[-1, 1]:.4f}, spectral {pairs[-1, 0]:.4f}",
        {"rates": rates, "largest_relative_difference": float(off.max()), "last_distances": ends},
        curve | {"fitted over spectral rate": [[float(a), float(b)] for a, b in rates]},
        draws=count + 1,
    )


@statement(
    "theorem-5-sizes", "Theorem 5", "the limit is argmin sum_k h_k when clients differ in size", about="theorem-5"
)
def check_sizes(seed: int, draws: int) -> Found:
    """The aggregation weights hold n_k, the objective does not: FedSoft minimises sum_k n_k h_k."""
    problem = Problem(on_a_line(0.0, 1.0), np.array([[9, 1], [3, 27]]))
    library, c = FixedWeights(problem, problem.u, 1.0), problem.c_star
    for _ in range(80):
        c = library.round(c)
    plain = q.joint_minimiser(problem, problem.u, 1.0, np.ones(2))
    weighted = q.joint_minimiser(problem, problem.u, 1.0, problem.n.astype(float))
    away = float(np.abs(c - weighted).max())
    return Found(
        yes(float(np.abs(c - plain).max()) < 1e-9),
        f"c = ({c[0, 0]:.4f}, {c[1, 0]:.4f})",
        f"({plain[0, 0]:.4f}, {plain[1, 0]:.4f})",
        "F_0 = w^2/2, F_1 = (w-1)^2/2, lambda = 1, client (0.9, 0.1) with 10 points, client (0.1, 0.9) with 30: "
        "FedSoft "
        f"ends at (0.42, 0.82), argmin sum h_k is (9/34, 25/34). It is argmin sum n_k h_k (to {away:.0e})",
        {"limit": c[:, 0].tolist(), "argmin": plain[:, 0].tolist(), "from_weighted_argmin": away},
    )


@statement(
    "theorem-5-selection",
    "Theorem 5",
    "the same for Algorithm 1 as written, with K < N drawn clients",
    about="theorem-5",
)
def check_selection(seed: int, draws: int) -> Found:
    """A mean of K drawn models is not a minimisation over c: the centers keep moving."""
    problem = Problem(on_a_line(0.0, 1.0), np.array([[9, 1], [9, 1], [1, 9], [1, 9]]))
    goal = q.joint_minimiser(problem, problem.u, 1.0, np.ones(4))
    values, series = {}, {}
    rounds = max(40, draws)
    for name, K, replacement in (("all", None, True), ("K = 2 with replacement", 2, True), ("K = 2 without", 2, False)):
        library = FixedWeights(problem, problem.u, 1.0, K=K, replacement=replacement, seed=seed)
        c, path = goal, []
        for t in range(rounds):
            c = library.round(c, t=1 + t)
            path.append(float(np.sqrt(np.square(c - goal).mean())))
        values[name] = float(np.sqrt(np.mean(np.square(path))))
        series[f"distance per round, {name}"] = [[t, x] for t, x in enumerate(path[:60])]
    return Found(
        yes(max(values.values()) < 1e-9),
        f"started AT the argmin, r.m.s. distance {values['K = 2 with replacement']:.3f} delta (with replacement), "
        f"{values['K = 2 without']:.3f} (without); {values['all']:.0e} with everybody",
        "0",
        "F_0 = w^2/2, F_1 = (w-1)^2/2, lambda = 1, clients 90:10, 90:10, 10:90, 10:90, K = 2. The two kinds of w_k are "
        "0.59 delta apart at the argmin; a center should lie a tenth of the way between them, the mean of two drawn "
        "ones lies at 0, 1/2 or 1",
        values,
        series,
        draws=rounds,
    )
