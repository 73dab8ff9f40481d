"""Theorems 2 and 3: what the solution of h_k is worth to each sub-problem, and how far it lies from the centers."""

from __future__ import annotations

import math

import numpy as np

from fedsoft.seeds import generator
from fedsoft.theory import quantities as q
from fedsoft.theory.check import Found, statement, yes
from fedsoft.theory.library import FixedWeights
from fedsoft.theory.objective import SIGMA, disturbed_weights, drawn_problem
from fedsoft.theory.problem import Array, Problem, on_a_line, within_assumption_4


def theorem_2_ratio(given: q.Round, w: Array) -> float:
    """The largest |grad h_ks(w_k)| sqrt(u_ks) / (gamma |grad F_s(c_s)|); Theorem 2 says at most 1."""
    gamma = q.gamma(given, w)
    worst = 0.0
    for k, s in given.parts():
        left = float(np.linalg.norm(given.gradient_ks(k, s, w[k]))) * math.sqrt(given.problem.u[k, s])
        right = gamma * given.slope(s)
        worst = max(worst, left / right if right > 0 else (0.0 if left < 1e-12 else math.inf))
    return worst


@statement(
    "theorem-2",
    "Theorem 2",
    "|grad h_ks(w_k)| <= gamma / sqrt(u_ks) |grad F_s(c_s)|, clients with all u_ks > 0",
    kind="corrected",
)
def check_theorem_2(seed: int, draws: int) -> Found:
    """Library's solutions, disturbed so that gamma_0 > 0; mu_lambda and L_lambda taken over all sub-problems."""
    rng = generator(seed, "theorem-2")
    worst, median, count = 0.0, [], max(8, draws // 4)
    for i in range(count):
        problem = drawn_problem(rng, soft=True, logistic=i % 16 == 15)
        c = problem.c_star + rng.standard_normal(problem.c_star.shape) * 10 ** rng.uniform(-2, 1)
        given = q.Round(problem, c, disturbed_weights(problem, rng), float(10 ** rng.uniform(-2, 2)))
        library = FixedWeights(problem, given.ut, given.lam)
        library.round(c)
        w = library.w + rng.standard_normal(library.w.shape) * 10 ** rng.uniform(-6, 0)
        median.append(theorem_2_ratio(given, w))
        worst = max(worst, median[-1])
    return Found(
        yes(worst <= 1 + 1e-9),
        f"left / right at most {worst:.3f}, median {np.median(median):.3f}",
        "1",
        "holds with mu_lambda = mu_F + lambda min u^t/u and L_lambda = L_F + lambda max u^t/u over all sub-problems, "
        "and beta with the center c_s' of each sub-problem",
        {"largest": worst, "median": float(np.median(median))},
        draws=count,
    )


@statement(
    "theorem-2-floor", "Theorem 2", "the same for a client with some u_ks = 0, whose u^t_ks = sigma", about="theorem-2"
)
def check_theorem_2_floor(seed: int, draws: int) -> Found:
    """One sub-problem, so beta may be as small as one likes; but sigma pulls away from it."""
    problem = Problem(on_a_line(0.0, 1.0), np.array([[1, 0]]))
    given = q.Round(problem, problem.c_star, np.array([[1.0, SIGMA]]), 1.0)
    library = FixedWeights(problem, given.ut, given.lam)
    library.round(given.c)
    left = float(np.linalg.norm(given.gradient_ks(0, 0, library.w[0])))
    return Found(
        yes(left <= 1e-12),
        f"{left:.2e}",
        "0",
        "F_0 = w^2/2, c = c* = (0, 1), u = (1, 0), u^t = (1, sigma), lambda = 1: gamma_0 = 0, beta -> 0, grad F_0(c_0) "
        "= 0, so the bound is 0. But w = sigma/(2 + sigma) and |grad h_k0(w)| = 2w = 1e-4. The proof splits h_k as in "
        "'decoupling-floor'",
        {"left": left, "w": float(library.w[0, 0]), "gamma_0": q.gamma_0(given, library.w), "beta": q.beta(given)},
    )


@statement(
    "theorem-2-literal", "Assumption 2", "Theorem 2 with beta as written: grad h_ks'(w*_ks; c_s), not c_s'",
    about="theorem-2",
)  # fmt: skip
def check_theorem_2_literal(seed: int, draws: int) -> Found:
    """With c_s in both sub-problems, beta does not see how far the centers are apart."""
    tiny = 1e-3
    problem = Problem(on_a_line(0.0, tiny), np.array([[1, 1]]))
    given = q.Round(problem, np.array([[1.0], [-1.0]]), problem.u, 1.0)
    literal = q.beta_literal(given)
    library = FixedWeights(problem, given.ut, given.lam)
    library.round(given.c)
    left = float(np.linalg.norm(given.gradient_ks(0, 0, library.w[0])))
    right = math.sqrt(literal * q.L_lambda(given) / q.mu_lambda(given)) / math.sqrt(0.5) * given.slope(0)
    return Found(
        yes(left <= right),
        f"{left:.4f}",
        f"{right:.4f}",
        "F_0 = w^2/2, F_1 = (w - 0.001)^2/2, c = (1, -1), u = (1/2, 1/2), lambda = 1: literal beta = 5e-7, bound "
        "0.001; "
        f"but w = 0.00025 and |grad h_k0(w)| = 0.9995. With c_s' beta is {q.beta(given):.2f} and the bound holds",
        {"left": left, "right": right, "beta_literal": literal, "beta": q.beta(given)},
    )


def theorem_3_ratio(given: q.Round, w: Array, r: float) -> float:
    """The largest |w_k - c_s| / (r Delta); Theorem 3 says at most 1."""
    far = max(float(np.linalg.norm(wk - cs)) for wk in w for cs in given.c)
    return far / (r * q.Delta(given.problem))


@statement("theorem-3", "Theorem 3", "|w_k - c_s| <= r Delta for all s")
def check_theorem_3(seed: int, draws: int) -> Found:
    """The proof puts (1/2 - alpha_0) <= 1/4, twice; that needs alpha_0 >= 1/4, which Assumption 4 does not ask for."""
    problem = Problem(on_a_line(0.0, 1.0), np.array([[1, 0], [0, 1]]))
    c = np.array([[-0.45], [1.45]])
    given = q.Round(problem, c, problem.u, 9.0)
    library = FixedWeights(problem, problem.u, given.lam)
    library.round(c)
    gamma = q.gamma(given, library.w)
    far = abs(float(library.w[0, 0] - c[1, 0]))
    r = q.r(problem, gamma)
    search = theorem_3_search(seed, draws)
    return Found(
        yes(far <= r),
        f"{far:.3f}",
        f"r Delta = {r:.3f}",
        "F_0 = w^2/2, F_1 = (w-1)^2/2, one client of each, c = (-0.45, 1.45) (alpha_0 = 0.05), lambda = 9, exact u: "
        "gamma = 0, r = 1/4 + 1/2 + 1 = 1.75, w_0 = -0.405, |w_0 - c_1| = 1.855. Such examples exist for alpha_0 < "
        f"1/8 (L_F = mu_F) and for L_F < 2 mu_F (alpha_0 -> 0); for alpha_0 >= 1/4 and exact u it holds "
        f"({search['draws']} problems, at most {search['largest']:.3f} of "
        "the bound)",
        {
            "distance": far,
            "r": r,
            "gamma": gamma,
            "alpha_0": q.alpha_0(problem, c),
            "largest_ratio_alpha_quarter": search["largest"],
        },
        draws=int(search["draws"]),
    )


def theorem_3_search(seed: int, draws: int, low: float = 0.25, corrected: bool = False) -> dict[str, float]:
    """The largest part of the bound that is used over drawn problems with alpha_0 from `low` to 1/2."""
    rng = generator(seed, "theorem-3", int(corrected))
    worst, count = 0.0, max(8, draws // 4)
    for i in range(count):
        problem = drawn_problem(rng, logistic=i % 16 == 15)
        c = within_assumption_4(problem.sources, rng.uniform(low, 0.499), rng)
        given = q.Round(problem, c, problem.u, float(10 ** rng.uniform(-2, 2)))
        library = FixedWeights(problem, given.ut, given.lam)
        library.round(c)
        gamma = q.gamma(given, library.w)
        r = q.r_corrected(problem, gamma) if corrected else q.r(problem, gamma)
        worst = max(worst, theorem_3_ratio(given, library.w, r))
    return {"largest": worst, "draws": count}


@statement(
    "theorem-3-corrected", "Theorem 3", "the same with r = (gamma S + 1)/2 sqrt(L/mu) + sqrt(mu/L) + 1",
    about="theorem-3", kind="corrected",
)  # fmt: skip
def check_theorem_3_corrected(seed: int, draws: int) -> Found:
    """What the proof gives for every alpha_0 > 0, and the example above."""
    search = theorem_3_search(seed, draws, low=0.001, corrected=True)
    problem = Problem(on_a_line(0.0, 1.0), np.array([[1, 0], [0, 1]]))
    c = np.array([[-0.49999], [1.49999]])
    given = q.Round(problem, c, problem.u, 1e4)
    edge = theorem_3_ratio(given, given.solutions(), q.r_corrected(problem, 0.0))
    return Found(
        yes(max(edge, search["largest"]) <= 1),
        f"at most {search['largest']:.3f} of the bound; {edge:.2f} in the example with alpha_0, 1/lambda -> 0",
        "1",
        "the missing factor is 2 in both terms: |c_s' - c_s| <= Delta + 2 (1/2 - alpha_0) sqrt(mu/L) delta",
        {"largest": search["largest"], "edge": edge},
        draws=int(search["draws"]),
    )
