"""Theorem 4 and its corollary: descent of the centers' risks, and when its assumptions can be met."""

from __future__ import annotations

import itertools
import math

import numpy as np

from fedsoft.seeds import generator
from fedsoft.theory import quantities as q
from fedsoft.theory.check import Found, met, statement, yes
from fedsoft.theory.library import FixedWeights, estimate
from fedsoft.theory.objective import SIGMA, disturbed_weights
from fedsoft.theory.problem import (
    Array,
    Problem,
    Quadratic,
    draw_copies,
    draw_quadratics,
    on_a_line,
    within_assumption_4,
)

HARD = np.array([[1, 0], [2, 0], [0, 1], [0, 2]])  # every client has one source: the only case with rho > 0
FLOORS = (1e-8, 1e-4, 1e-2)  # sigma
MANY = 1e18  # a K so large that the terms with K vanish


def hard_problem(rng: np.random.Generator) -> tuple[Problem, Array]:
    """Clients of one source each, and centers within Assumption 4 at which the library makes no wrong match."""
    while True:
        problem = Problem(draw_quadratics(rng, d=3, mu=1.0, L=rng.uniform(1.0, 3.0)), HARD)
        c = within_assumption_4(problem.sources, rng.uniform(0.2, 0.45), rng)
        if np.array_equal(estimate(problem, c, 0.0), problem.u):
            return problem, c


def bounds(given: q.Round, gamma: float, K: float, sigma: float) -> list[tuple[float, float, float]]:
    """rho, the right-hand side of Theorem 4 for every center that has points, and its second term, for p_eps = 0."""
    problem, found = given.problem, []
    L, mu_l = q.L_F(problem), q.mu_lambda(given)
    for s in np.flatnonzero(problem.u.sum(0)).tolist():
        m = q.masses(problem, s, 0.0, sigma)
        rho = q.rho(m, gamma=gamma, L=L, mu_lambda=mu_l, lam=given.lam, K=K, p=0.0, p_prime=sigma)
        R = q.R(m, r=q.r(problem, gamma), L=L, mu_lambda=mu_l, K=K)
        whole = q.descent_bound(m, S=problem.S, rho=rho, R=R, Delta=q.Delta(problem), slope=given.slope(s), p=0.0,
                                p_prime=sigma)  # fmt: skip
        found.append((rho, whole, whole + rho * given.slope(s) ** 2 / (m.n_s + sigma * m.n)))
    return found


@statement("theorem-4", "Theorem 4", "E F_s(c_s) falls by at least the stated amount per round, where rho > 0")
def check_theorem_4(seed: int, draws: int) -> Found:
    """The library's rounds with K = 50 draws with replacement, clients of one source, estimated u, lambda = 10 L.

    The floor sigma of the weights takes three sizes, so that both terms of the bound matter: with the largest the
    second one, p' R Delta^2 / (...), outweighs the first.
    """
    rng = generator(seed, "theorem-4")
    K, problems, rounds = 50, 6, max(10, draws // 6)
    margin, ratios, least_rho, seconds = math.inf, [], math.inf, []
    series: dict[str, list[list[float]]] = {"E F_0(c_0)": [], "bound": []}
    for i in range(problems):
        problem, c = hard_problem(rng)
        sigma = FLOORS[i % len(FLOORS)]
        given = q.Round(problem, c, np.maximum(problem.u, sigma), 10 * q.L_F(problem))
        library = FixedWeights(problem, given.ut, given.lam, K=K, seed=seed + i)
        moved = np.stack([library.round(c, t=1 + t) for t in range(rounds)])
        gamma = q.gamma(given, given.solutions())
        for s, (rho, bound, second) in enumerate(bounds(given, gamma, K, sigma)):
            F = problem.sources[s]
            change = np.array([F.value(m[s]) for m in moved]) - F.value(c[s])
            error = float(change.std()) / math.sqrt(rounds)
            margin, least_rho = min(margin, bound - float(change.mean()) + 3 * error), min(least_rho, rho)
            seconds.append(second / (second - bound))
            if sigma == FLOORS[0]:
                ratios.append(bound / float(change.mean()))
        if i == 0:
            now = stated = problem.sources[0].value(c[0])
            for t in range(15):
                series["E F_0(c_0)"].append([t, now])
                series["bound"].append([t, stated])
                at = q.Round(problem, c, given.ut, given.lam)
                stated = problem.sources[0].value(c[0]) + bounds(at, gamma, K, sigma)[0][1]
                moved = np.stack([library.round(c, t=1000 + 100 * t + j) for j in range(10)])
                now = float(np.mean([problem.sources[0].value(m[0]) for m in moved]))
                c = moved[0]
    return Found(
        yes(margin >= 0) if least_rho > 0 else met(False),
        f"bound minus change >= {margin:.2e}; of the true descent it gives {min(ratios):.0%} to {max(ratios):.0%}",
        ">= 0",
        f"clients of ONE source each, lambda = 10 L_F, K = {K}, no wrong match, sigma = {', '.join(map(str, FLOORS))}: "
        f"rho > 0 there, and the second term of the bound is up to {max(seconds):.1f} times the first. Clients that "
        "are mixtures: 'theorem-4-counterexample', 'theorem-4-mixtures'",
        {"smallest_margin": margin, "smallest_rho": least_rho, "shares": ratios, "second_over_first": seconds},
        series,
        draws=problems * rounds,
    )


@statement(
    "theorem-4-counterexample", "Theorem 4", "the same for clients that are mixtures, with beta as written",
    about="theorem-4",
)  # fmt: skip
def check_counterexample(seed: int, draws: int) -> Found:
    """All assumptions hold as they are written, rho > 0, and F_0 grows.

    beta takes c_s in both sub-problems ('theorem-2-literal'), so it does not see how far the centers are apart, while
    lambda pulls every model half way between them.
    """
    A = np.diag([1.0, 100.0])
    problem = Problem((Quadratic(A, np.zeros(2)), Quadratic(A, np.array([1.0, 0.0]))), np.array([[1, 1]] * 4))
    c, lam, K = problem.c_star + np.array([0.0, 0.045]), 1000.0, 1000
    given = q.Round(problem, c, problem.u, lam)
    gamma = math.sqrt(q.beta_literal(given) * q.L_lambda(given) / q.mu_lambda(given))
    rho, bound, _ = bounds(given, gamma, K, 0.0)[0]
    moved = FixedWeights(problem, given.ut, lam, K=K, seed=seed).round(c)
    F, m = problem.sources[0], q.masses(problem, 0, 0.0, 0.0)
    grown = F.value(moved[0]) - F.value(c[0])
    return Found(
        yes(grown <= bound),
        f"F_0 grows by {grown:.4f}",
        f"{bound:.4f}",
        "F_s = (w - c*_s)' diag(1, 100) (w - c*_s) / 2, c* = (0, 0), (1, 0), c = c* + (0, 0.045), all clients 50:50, "
        f"exact u and solutions (gamma_0 = 0, p_eps = sigma = 0), lambda = K = 1000: gamma = {gamma:.3f}, lambda rho "
        f"/ n = {lam * rho / m.n:.3f} > 0, alpha_0 = {q.alpha_0(problem, c):.2f}. Every w_k is half way "
        "between the centers",
        {"growth": grown, "bound": bound, "rho": rho, "gamma": gamma},
    )


def gamma_of_mixture(problem: Problem, c: Array, lam: float, ut: Array) -> float:
    """gamma with exact solutions: the smallest that Assumption 2 leaves."""
    given = q.Round(problem, c, ut, lam)
    return math.sqrt(q.beta(given) * q.L_lambda(given) / q.mu_lambda(given))


@statement(
    "theorem-4-mixtures", "Theorem 4", "rho > 0 can be met when clients hold mixtures, beta with c_s'",
    about="theorem-4", kind="corrected",
)  # fmt: skip
def check_mixtures(seed: int, draws: int) -> Found:
    """Assumptions 2 and 4 force gamma > 2 sqrt(1 - u_ks) for all s with u_ks > 0; rho > 0 needs gamma < 1."""
    rng = generator(seed, "mixtures")
    least, smallest, best, count = math.inf, math.inf, -math.inf, draws
    for _ in range(count):
        S = int(rng.integers(2, 4))
        sources = draw_quadratics(rng, S=S, d=int(rng.integers(1, 4)), mu=1.0, L=10 ** rng.uniform(0, 2))
        problem = Problem(sources, draw_copies(rng, 1, S, soft=True))
        c = within_assumption_4(sources, 10 ** rng.uniform(-4, -0.31), rng)
        lam = 10 ** rng.uniform(-3, 3)
        gamma = gamma_of_mixture(problem, c, lam, problem.u)
        least = min(least, gamma / (2 * math.sqrt(1 - problem.u.min())))
        smallest = min(smallest, gamma, gamma_of_mixture(problem, c, lam, disturbed_weights(problem, rng)))
        for s in range(S):
            m = q.masses(problem, s, 0.0, 0.0)
            mu, L = q.mu_F(problem), q.L_F(problem)
            rho = q.rho(m, gamma=gamma, L=L, mu_lambda=mu + lam, lam=lam, K=MANY, p=0, p_prime=0)
            best = max(best, rho * lam / m.n_s)
    edge = Problem(on_a_line(0.0, 1.0), np.array([[1, 1]]))
    tight = gamma_of_mixture(edge, np.array([[0.4999], [0.5001]]), 1e-4, edge.u)
    return Found(
        met(best > 0),
        f"largest rho lambda / n_s = {best:.2f}; gamma >= {least:.3f} * 2 sqrt(1 - min u), >= {smallest:.2f} with "
        "disturbed u^t",
        "rho > 0",
        "one client with two sources suffices: its smaller share is at most 1/2, so gamma >= sqrt(2) > 1 >= n_s/m_s "
        "and "
        "rho < 0 for every lambda and K, even with exact u. Tight: F_0 = w^2/2, F_1 = (w-1)^2/2, u = (1/2, 1/2), "
        f"c -> (1/2, 1/2), lambda -> 0 gives gamma = {tight:.4f}",
        {"largest_rho": best, "smallest_ratio": least, "smallest_gamma": smallest, "tight_gamma": tight},
        draws=count,
    )


def least_K(sigma: float, mu: float = 1.0, L: float = 1.0) -> float:
    """The smallest K with rho > 0 for some lambda, clients of one source, when u^t may fall to sigma."""
    m = q.Masses(n=2.0, n_s=1.0, m_s=1.0, m_bar=1.0, m_hat=1.0)

    def best(K: float) -> float:
        return max(lam * q.rho(m, gamma=0.0, L=L, mu_lambda=mu + lam * sigma, lam=lam, K=K, p=0.0, p_prime=0.0)
                   for lam in np.logspace(-2, 14, 400))  # fmt: skip

    low, high = 1.0, 1e16
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if best(middle) > 0 else (middle, high)
    return high


@statement(
    "theorem-4-weights", "Theorem 4", "rho > 0 can be met when u^t is random and may fall to sigma", about="theorem-4"
)
def check_disturbed_weights(seed: int, draws: int) -> Found:
    """mu_lambda must serve every draw: it is mu_F + lambda sigma for a client whose points are all matched wrongly."""
    found = {sigma: least_K(sigma) for sigma in (1.0, 0.5, 0.1, 1e-2, SIGMA)}
    return Found(
        met(found[SIGMA] < 1e4),
        f"K of at least {found[SIGMA]:.2g} for sigma = 1e-4",
        "K < N",
        "clients of one source, mu_F = L_F, no other error: with mu_lambda = mu_F + lambda u^t/u and lambda -> "
        "infinity "
        "rho > 0 needs 1 > 2 / ((u^t/u) sqrt(2K)), so K > 2 (u/u^t)^2. With u^t = u: K > 2; if u^t = sigma can happen: "
        "K > 2/sigma^2 = 2e8 clients",
        {"least_K": {str(k): v for k, v in found.items()}},
        {"least K over u^t/u": [[k, v] for k, v in found.items()]},
    )


@statement(
    "theorem-4-floor",
    "Theorem 4",
    "the descent holds for clients of one source and exact matches, with the floor",
    about="theorem-4",
)
def check_floor(seed: int, draws: int) -> Found:
    """All assumptions hold, rho > 0, and the bound says that F_0 does not grow; the floor lets it grow."""
    problem = Problem(on_a_line(0.0, 1.0), np.array([[1, 0]] * 4))
    given = q.Round(problem, problem.c_star, np.array([[1.0, SIGMA]] * 4), 100.0)
    library = FixedWeights(problem, given.ut, given.lam, K=100, seed=seed)
    grown = problem.sources[0].value(library.round(given.c)[0])
    rho, bound, _ = bounds(given, 0.0, 100.0, SIGMA)[0]
    return Found(
        yes(grown <= bound),
        f"F_0 grows by {grown:.2e}",
        f"{bound:.0f}",
        "F_0 = w^2/2, F_1 = (w-1)^2/2, four clients of source 0 only, c = c* = (0, 1), u^t = (1, sigma), lambda = 100, "
        f"K = 100: gamma = 0, rho = {rho:.4f} > 0, bar m_0 = 0 so R = 0, and grad F_0(c_0) = 0: bound 0. But w = "
        f"lambda "
        "sigma / (1 + lambda + lambda sigma) = 9.9e-5 and F_0 = 4.9e-9",
        {"growth": grown, "bound": bound, "rho": rho},
    )


def lemma_2_sides(n: Array, own: list[Array], chance: list[Array], k: int) -> tuple[float, float]:
    """Both sides of Lemma 2 by enumeration: client j has u = own[j][i] with probability chance[j][i]."""
    left = mean = inverse = 0.0
    for picks in itertools.product(*(range(len(o)) for o in own)):
        p = math.prod(float(chance[j][i]) for j, i in enumerate(picks))
        parts = [float(own[j][i]) * float(n[j]) for j, i in enumerate(picks)]
        left += p * parts[k] / sum(parts)
        mean += p * parts[k]
        inverse += p / sum(parts)
    return left, mean * inverse


@statement("lemma-2", "Lemma 2", "E[u_ks n_k / sum] <= E[u_ks n_k] E[1 / sum], clients independent")
def check_lemma_2(seed: int, draws: int) -> Found:
    """Every client's matches are binomial; all outcomes are enumerated."""
    rng = generator(seed, "lemma-2")
    worst, count = 0.0, max(10, draws // 4)
    for _ in range(count):
        N = int(rng.integers(2, 5))
        n = rng.integers(1, 4, N)
        own, chance = [], []
        for size in n:
            p, j = rng.random(), np.arange(size + 1)
            own.append(np.maximum(j / size, SIGMA))
            chance.append(np.array([math.comb(int(size), int(i)) * p**i * (1 - p) ** (size - i) for i in j]))
        left, right = lemma_2_sides(n, own, chance, 0)
        worst = max(worst, left / right)
    return Found(
        yes(worst <= 1 + 1e-12),
        f"left / right at most {worst:.3f}",
        "1",
        "the larger u_ks, the smaller 1/sum: they are negatively correlated",
        {"largest": worst},
        draws=count,
    )


@statement(
    "theorem-4-jensen", "proof of Thm. 4", "E[1 / sum_k u^t_ks n_k] <= 1 / ((1 - p) n_s - p' (S - 2) n)",
    kind="step of a proof",
)  # fmt: skip
def check_jensen(seed: int, draws: int) -> Found:
    """The last step of the proof replaces E[1/X] by 1/E[X] on the side where it is too small.

    That refutes the step; the theorem's own inequality could hold without it ('theorem-4-counterexample': it does not).
    """
    p = 0.1
    n, own, chance = np.array([1]), [np.array([1.0, SIGMA])], [np.array([1 - p, p])]
    left = sum(float(c) / (float(u) * 1) for u, c in zip(own[0], chance[0], strict=True))
    right = 1 / ((1 - p) * 1 - 0 * float(n.sum()))
    return Found(
        yes(left <= right),
        f"{left:.1f}",
        f"{right:.3f}",
        "S = 2, one client with one point of source s, matched wrongly with p = 0.1, sigma = 1e-4: E[1/u] = 0.9 + 0.1/"
        "sigma = 1000.9, the bound 1/0.9. E[1/X] >= 1/E[X], never the other way; also sigma n is lost from the "
        "denominator, which is not positive when p' (S-2) n >= (1-p) n_s",
        {"left": left, "right": right},
    )


@statement(
    "assumption-4", "Assumption 4", "once within (0.5 - alpha_0) sqrt(mu/L) delta of its optimum, a center stays"
)
def check_assumption_4(seed: int, draws: int) -> Found:
    """Theorems 3 and 4 use it in every round, the appendix says that alpha_t rises to 0.5."""
    tied = Problem(on_a_line(0.0, 1.0), np.array([[1, 1], [1, 1]]))
    half = FixedWeights(tied, tied.u, 1.0).round(tied.c_star)
    ten = Problem(on_a_line(0.0, 1.0), np.array([[9, 1], [1, 9]]))
    library, c, series = FixedWeights(ten, ten.u, 1.0), ten.c_star, []
    for t in range(20):
        series.append([t, q.alpha_0(ten, c)])
        c = library.round(c)
    return Found(
        yes(q.alpha_0(tied, half) > 1e-9 and series[-1][1] >= series[0][1]),
        f"50:50: |c_s - c*_s| = {abs(float(half[0, 0])):.2f} delta after one round; 10:90: alpha falls to "
        f"{series[-1][1]:.3f}",
        "alpha_t rises to 0.5",
        "F_0 = w^2/2, F_1 = (w-1)^2/2, exact u, started AT the optima (alpha_0 = 1/2). All clients 50:50: every w_k = "
        "1/2 for any lambda, so both centers jump to 1/2, delta/2 away, where the assumption fails for any alpha_0 > "
        "0. "
        "10:90, lambda = 1: alpha_t falls from 0.5 to 4/17",
        {"half": float(half[0, 0]), "alpha_10_90": series[-1][1]},
        {"alpha_t, 10:90 clients": series},
    )


def separation(share: float, lam: float, curvature: float = 1.0) -> float:
    """|c_1 - c_0| / delta that FedSoft ends at, exact u: half the clients (share, 1 - share), half the other way.

    For equal curvatures a the two groups' models differ by (2 share - 1) (a delta + lam D) / (a + lam), the centers by
    (2 share - 1) of that: D = e (a delta + lam D) / (a + lam) with e = (2 share - 1)^2.

    >>> round(separation(0.9, 1.0), 4)  # 8/17
    0.4706
    """
    e = (2 * share - 1) ** 2
    return e * curvature / (curvature + lam * (1 - e))


@statement("remaining-error", "Corollary 1", "the centers' remaining error is O(p_eps Delta^2): none with perfect u")
def check_remaining_error(seed: int, draws: int) -> Found:
    """The library with exact u: its centers converge, but not to the optima."""
    values, series = {}, {}
    for share, lam in ((0.9, 1.0), (0.9, 0.1), (0.7, 1.0)):
        a = round(10 * share)
        problem = Problem(on_a_line(0.0, 1.0), np.array([[a, 10 - a], [10 - a, a]]))
        library, c, curve = FixedWeights(problem, problem.u, lam), problem.c_star, []
        for t in range(60):
            curve.append([t, abs(float(c[0, 0]))])
            c = library.round(c)
        name = f"{10 - a}0:{a}0, lambda = {lam:g}"
        values[name] = {"error": float(c[0, 0]), "closed_form": (1 - separation(share, lam)) / 2}
        series[f"|c_0 - c*_0| / delta, {name}"] = curve
    first = values["10:90, lambda = 1"]["error"]
    return Found(
        yes(first < 1e-9),
        f"|c_s - c*_s| = {first:.4f} delta with p_eps = 0, sigma = 0",
        "0",
        "F_0 = w^2/2, F_1 = (w-1)^2/2, 10:90 clients, exact u, lambda = 1, everybody takes part: the centers end at "
        "9/34 and 25/34, their distance is 8/17 of delta; in general e a/(a + lambda (1 - e)), e = (2 share - 1)^2. "
        "Each w_k is fitted to mixed data, whatever is known of u. Only clients of one source leave no error",
        values,
        series,
    )


@statement("corollary-1", "Corollary 1", "sum over t of rho E|grad F_s|^2 / (...) <= B_s/T + O(p_eps Delta^2)")
def check_corollary(seed: int, draws: int) -> Found:
    """Summing Theorem 4 over T rounds bounds the MEAN over t by B_s/T; the sum is bounded by B_s."""
    problem = Problem(on_a_line(0.0, 1.0), np.array([[1, 0], [0, 1]]))
    c = np.array([[0.4], [1.4]])
    m, lam = q.masses(problem, 0, 0.0, 0.0), 10.0
    rho = q.rho(m, gamma=0.0, L=1.0, mu_lambda=1 + lam, lam=lam, K=MANY, p=0.0, p_prime=0.0)
    library, B = FixedWeights(problem, problem.u, lam), problem.sources[0].value(c[0])
    total, fails, literal, right, mean_holds = rho * 0.4**2 / m.n_s, 0, [], [], True
    for T in range(1, 21):
        mean_holds &= total / T <= B / T  # t = 0 .. T-1
        c = library.round(c)
        total += rho * float(c[0, 0]) ** 2 / m.n_s
        literal.append([T, total - rho * 0.4**2 / m.n_s])  # t = 1 .. T, as written
        right.append([T, B / T])
        if not fails and literal[-1][1] > B / T:
            fails = T
    return Found(
        yes(fails == 0),
        f"fails from T = {fails}: {literal[fails - 1][1]:.4f}",
        f"B/T = {right[fails - 1][1]:.4f}",
        "F_0 = w^2/2, clients of one source, exact u, sigma = 0 (so p' = 0), c_0 = 0.4, lambda = 10, everybody takes "
        f"part: rho/n_s = {rho / m.n_s:.4f}, |grad F_0| shrinks by 10/11 a round. With 1/T before the sum, over t = 0 "
        f".. "
        f"T-1, it {'holds' if mean_holds else 'fails'} for T to 20",
        {"fails_from": fails, "mean_holds": mean_holds, "rho_over_n_s": rho / m.n_s},
        {"sum over t, as written": literal, "B_s / T": right},
    )
