"""Section 3: the constants, the gradient of h_k, and how h_k falls apart into sub-problems."""

from __future__ import annotations

import numpy as np
import torch

from fedsoft.clusters.importance_weights import aggregation_weights
from fedsoft.core.batches import Prox
from fedsoft.core.local_solve import own_gradients
from fedsoft.seeds import generator
from fedsoft.solvers.sgd import SGD
from fedsoft.theory import quantities as q
from fedsoft.theory.check import Found, met, statement, yes
from fedsoft.theory.library import FixedWeights, estimate, quiet, wrong_matches
from fedsoft.theory.problem import (
    Array,
    Problem,
    draw_copies,
    draw_logistic,
    draw_quadratics,
    on_a_line,
    within_assumption_4,
)

SIGMA = 1e-4  # the paper's smoother

SHOWN = ("delta", "p_epsilon", "p_epsilon_bound", "gamma_0", "beta", "gamma", "r", "rho", "R")

SHARES = np.array([[9, 1]] * 3 + [[1, 9]] * 3)  # a small 10:90 federation


def drawn_problem(rng: np.random.Generator, *, soft: bool = False, logistic: bool = False) -> Problem:
    """Two or three sources in one to four dimensions, two to five clients."""
    S, d, N = int(rng.integers(2, 4)), int(rng.integers(1, 5)), int(rng.integers(2, 6))
    if logistic:
        return Problem(draw_logistic(rng, S=S, d=d), draw_copies(rng, N, S, soft=soft))
    L = 10 ** rng.uniform(0, 1.5)
    sources = draw_quadratics(rng, S=S, d=d, mu=1.0, L=L, distance=10 ** rng.uniform(-1, 1))
    return Problem(sources, draw_copies(rng, N, S, soft=soft))


def disturbed_weights(problem: Problem, rng: np.random.Generator) -> Array:
    """Estimated weights: the true ones, disturbed, rows summing to 1 before the floor sigma."""
    noisy = problem.u * rng.uniform(0.5, 1.5, problem.u.shape) + 0.05 * rng.random(problem.u.shape)
    return np.maximum(noisy / noisy.sum(1, keepdims=True), SIGMA)


def library_gradient(given: q.Round, w: Array) -> Array:
    """The gradients of all h_k at w[N, d] by the library's own parts: batched gradients and the pre-summed pull."""
    problem = given.problem
    wt, ut = torch.from_numpy(w), torch.from_numpy(given.ut)
    with quiet():
        risk = own_gradients(problem.model(), problem.federation().train, wt)
        prox = Prox.to_centers(given.lam * ut, torch.from_numpy(given.c))
        return (risk + prox.strength * wt - prox.target).numpy()


def constants(problem: Problem, seed: int, lam: float = 1.0) -> dict[str, float]:
    """Every quantity of the paper on one problem, with centers at alpha_0 = 1/4 and weights that clients estimate."""
    c = within_assumption_4(problem.sources, 0.25, generator(seed, "centers"))
    ut = estimate(problem, c, SIGMA)
    given = q.Round(problem, c, ut, lam)
    short = SGD(lr=0.5 / (q.L_F(problem) + lam), epochs=5, batch=int(problem.n.max()), shuffle=False)
    library = FixedWeights(problem, ut, lam, solver=short, seed=seed)
    library.round(c)
    g0, b = q.gamma_0(given, library.w), q.beta(given)
    gamma = q.gamma(given, library.w)
    p, variance = wrong_matches(problem, c)
    m = q.masses(problem, 0, p, p + SIGMA)
    mu_l, L, K = q.mu_lambda(given), q.L_F(problem), 60.0
    r = q.r(problem, gamma)
    return {
        "mu_F": q.mu_F(problem),
        "L_F": L,
        "delta": q.delta(problem),
        "Delta": q.Delta(problem),
        "alpha_0": q.alpha_0(problem, c),
        "p_epsilon": p,
        "p_epsilon_bound": q.p_epsilon_bound(variance, q.mu_F(problem), 0.25, q.delta(problem)),
        "mu_lambda": mu_l,
        "L_lambda": q.L_lambda(given),
        "gamma_0": g0,
        "beta": b,
        "gamma": gamma,
        "r": r,
        "rho": q.rho(m, gamma=gamma, L=L, mu_lambda=mu_l, lam=lam, K=K, p=p, p_prime=p + SIGMA),
        "R": q.R(m, r=r, L=L, mu_lambda=mu_l, K=K),
    }


@statement("constants", "Assumptions 1 to 4", "mu_F, L_F, delta, Delta, c*, gamma_0, beta, gamma, r, rho, R are known")
def check_constants(seed: int, draws: int) -> Found:
    """Slopes between drawn points lie between mu and L, and the library's gradient is the one written here."""
    rng = generator(seed, "constants")
    kinds = {
        "quadratic": Problem(draw_quadratics(rng), SHARES),
        "logistic": Problem(draw_logistic(rng), SHARES),
    }
    outside = apart = 0.0
    for problem in kinds.values():
        w = rng.standard_normal((problem.N, problem.c_star.shape[1]))
        c, ut = problem.c_star, problem.u
        naive = np.stack([q.Round(problem, c, ut, 1.0).gradient(k, w[k]) for k in range(problem.N)])
        apart = max(apart, float(np.abs(naive - library_gradient(q.Round(problem, c, ut, 1.0), w)).max()))
        for source in problem.sources:
            apart = max(apart, float(np.abs(source.gradient(source.minimiser)).max()))
            for _ in range(draws):
                a, b = rng.standard_normal((2, w.shape[1])) * 3
                slope = (source.gradient(a) - source.gradient(b)) @ (a - b) / ((a - b) @ (a - b))
                outside = max(outside, source.mu - slope, slope - source.L)
    values = {kind: constants(problem, seed) for kind, problem in kinds.items()}
    short = "; ".join(f"{kind}: " + ", ".join(f"{name} {v[name]:.3g}" for name in SHOWN) for kind, v in values.items())
    good = outside < 1e-9 and apart < 1e-9
    return Found(
        yes(good),
        f"slopes outside [mu, L] by {max(0, outside):.0e}; library and formula differ by {apart:.0e}",
        "0",
        f"10:90 clients, alpha_0 = 1/4, lambda = 1, K = 60. {short}",
        values,
        draws=4 * draws,
    )


@statement("gradient", "Section 3", "grad h_k = grad f_k + lambda (w - sum_s u_ks c_s) when the u_ks sum to 1")
def check_gradient(seed: int, draws: int) -> Found:
    """The library's gradient, the formula, and central differences of h_k."""
    rng = generator(seed, "gradient")
    worst = rough = 0.0
    count = max(4, draws // 20)
    for i in range(count):
        problem = drawn_problem(rng, logistic=i % 4 == 3)
        c = problem.c_star + rng.standard_normal(problem.c_star.shape)
        ut = rng.dirichlet(np.ones(problem.S), problem.N)
        given = q.Round(problem, c, ut, float(10 ** rng.uniform(-2, 2)))
        w = rng.standard_normal((problem.N, c.shape[1]))
        got = library_gradient(given, w)
        for k in range(problem.N):
            risk = sum(u * s.gradient(w[k]) for u, s in zip(problem.u[k], problem.sources, strict=True))
            paper = risk + given.lam * (w[k] - ut[k] @ c)
            scale = 1 + float(np.abs(paper).max())
            worst = max(worst, float(np.abs(got[k] - paper).max()) / scale)
            steps = 1e-5 * np.eye(len(w[k]))
            central = np.array([(given.h(k, w[k] + e) - given.h(k, w[k] - e)) / 2e-5 for e in steps])
            rough = max(rough, float(np.abs(central - paper).max()) / scale)
    return Found(
        yes(worst < 1e-12 and rough < 1e-5),
        f"library against formula {worst:.0e}, central differences {rough:.0e} (relative)",
        "0",
        "library, formula and differences of h_k agree",
        {"library": worst, "differences": rough},
        draws=count,
    )


@statement(
    "gradient-floor", "Section 3", "the u_ks that Algorithm 1 reports sum to 1, as that formula needs",
    about="gradient",
)  # fmt: skip
def check_gradient_floor(seed: int, draws: int) -> Found:
    """u = max(n_ks / n_k, sigma) sums to more than 1 as soon as a center is best for no point of the client."""
    problem = Problem(on_a_line(0.0, 1.0), np.array([[1, 0]]))
    given = q.Round(problem, problem.c_star, estimate(problem, problem.c_star, SIGMA), 1.0)
    w = np.array([[2.0]])
    paper = float(problem.sources[0].gradient(w[0])[0] + given.lam * (w[0, 0] - given.ut[0] @ given.c[:, 0]))
    true = float(library_gradient(given, w)[0, 0])
    total = float(given.ut[0].sum())
    return Found(
        met(abs(total - 1) < 1e-12),
        f"the sum is {total:.4f}, the gradient {true:.4f}",
        f"sum 1, gradient {paper:.4f}",
        "u = (1, 0) becomes (1, sigma). F_0 = w^2/2, c = (0, 1), lambda = 1, at w = 2: formula "
        f"{paper:.4f}, true {true:.4f}; the difference is lambda (sum u - 1) w, at most (S-1) sigma lambda |w|. "
        "The library uses (sum u) w",
        {"sum": total, "paper": paper, "true": true},
    )


@statement("mixture", "Section 3", "the minimiser of h_k at the optimal centers is the mixture sum_s u_ks c*_s")
def check_mixture(seed: int, draws: int) -> Found:
    """True when all sources curve alike, not otherwise."""
    rng = generator(seed, "mixture")
    alike = 0.0
    for _ in range(max(4, draws // 20)):
        A = draw_quadratics(rng, S=1, d=3)[0].hessian(np.zeros(3))
        sources = tuple(type(s)(A, s.minimiser) for s in draw_quadratics(rng, S=3, d=3))  # pyright: ignore
        problem = Problem(sources, draw_copies(rng, 3, 3))
        library = FixedWeights(problem, problem.u, 1.0)
        library.round(problem.c_star)
        alike = max(alike, float(np.abs(library.w - problem.u @ problem.c_star).max()))
    problem = Problem(on_a_line(0.0, 1.0, curvature=[1.0, 3.0]), np.array([[1, 1]]))
    library = FixedWeights(problem, problem.u, 1.0)
    library.round(problem.c_star)
    w = float(library.w[0, 0])
    return Found(
        yes(abs(w - 0.5) < 1e-9),
        f"w = {w:.4f}",
        "1/2",
        "F_0 = w^2/2, F_1 = 3 (w-1)^2/2, u = (1/2, 1/2), lambda = 1: w = 2/3, not 1/2. With equal Hessians it holds "
        f"(to {alike:.0e})",
        {"w": w, "mixture": 0.5, "equal_hessians": alike},
        draws=max(4, draws // 20),
    )


@statement("decoupling", "Section 3", "with exact u, h_k = sum_s u_ks (F_s(w) + lambda/2 |w - c_s|^2)")
def check_decoupling(seed: int, draws: int) -> Found:
    """An identity of functions; and the library's solution minimises the sum."""
    rng = generator(seed, "decoupling")
    worst = slope = 0.0
    count = max(4, draws // 20)
    for i in range(count):
        problem = drawn_problem(rng, logistic=i % 8 == 7)
        c = problem.c_star + rng.standard_normal(problem.c_star.shape)
        given = q.Round(problem, c, problem.u, float(10 ** rng.uniform(-1, 1)))
        library = FixedWeights(problem, problem.u, given.lam)
        library.round(c)
        for k in range(problem.N):
            w = rng.standard_normal(c.shape[1])
            split = sum(u * given.h_ks(k, s, w) for s, u in enumerate(problem.u[k]) if u > 0)
            worst = max(worst, abs(given.h(k, w) - split) / (1 + abs(split)))
            parts = [u * given.gradient_ks(k, s, library.w[k]) for s, u in enumerate(problem.u[k]) if u > 0]
            slope = max(slope, float(np.linalg.norm(sum(parts))) / (1 + q.L_F(problem) * float(np.abs(c).max())))
    return Found(
        yes(worst < 1e-12 and slope < 1e-8),
        f"difference {worst:.0e}; slope of the sum at the library's w_k {slope:.0e}",
        "0",
        "as functions they are equal; the minimisation is not separate, since all parts share one w_k",
        {"difference": worst, "slope": slope},
        draws=count,
    )


@statement(
    "decoupling-floor", "Section 4", "h_k = sum over s with u_ks > 0 of u_ks h_ks, for the estimated u^t",
    about="decoupling",
)  # fmt: skip
def check_decoupling_floor(seed: int, draws: int) -> Found:
    """The floor sigma pulls towards centers that the sum leaves out."""
    problem = Problem(on_a_line(0.0, 1.0), np.array([[1, 0]]))
    given = q.Round(problem, problem.c_star, np.array([[1.0, 0.01]]), 1.0)
    w = np.array([0.0])
    true, split = given.h(0, w), given.h_ks(0, 0, w)
    return Found(
        yes(abs(true - split) < 1e-12),
        f"h_k = {true:.4f}",
        f"sum = {split:.4f}",
        "u = (1, 0), u^t = (1, sigma) with sigma = 0.01, F_0 = w^2/2, c = (0, 1), lambda = 1, at w = 0: h_k = 0.005, "
        "the sum 0. Missing: lambda/2 sum over u_ks = 0 of u^t_ks |w - c_s|^2, never 0 because u^t >= sigma",
        {"h_k": true, "sum": split},
    )


@statement("equal-weights", "Section 3", "v_sk = 1/N for a center that is best for no point")
def check_equal_weights(seed: int, draws: int) -> Found:
    """Then all u_ks are sigma, and v_sk = n_k / n."""
    v = aggregation_weights(torch.full((2, 1), SIGMA, dtype=torch.float64), torch.tensor([100, 200]))[0].tolist()
    return Found(
        yes(abs(v[0] - v[1]) < 1e-12),
        f"v = ({v[0]:.4f}, {v[1]:.4f})",
        "(0.5, 0.5)",
        "two clients of 100 and 200 points, u = sigma for both: eq. (5) gives v = (1/3, 2/3) = n_k/n; 1/N needs equal "
        "n_k",
        {"v": v},
    )
