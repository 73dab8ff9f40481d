"""The paper's quantities as small functions, each beside the place where the paper defines it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsoft.theory.problem import Array, Problem, minimise


def mu_F(problem: Problem) -> float:
    """Assumption 3: all cluster risks are mu_F strongly convex."""
    return min(s.mu for s in problem.sources)


def L_F(problem: Problem) -> float:
    """Assumption 3: all cluster risks are L_F smooth."""
    return max(s.L for s in problem.sources)


def distances(problem: Problem) -> list[float]:
    """|c*_s - c*_s'| of every pair."""
    c = problem.c_star
    return [float(np.linalg.norm(c[i] - c[j])) for i in range(len(c)) for j in range(i)]


def delta(problem: Problem) -> float:
    """The smallest distance between two optima, Section 4."""
    return min(distances(problem))


def Delta(problem: Problem) -> float:
    """The largest distance between two optima, Section 4."""
    return max(distances(problem))


def alpha_0(problem: Problem, c: Array) -> float:
    """Assumption 4: the largest alpha_0 with |c_s - c*_s| <= (0.5 - alpha_0) sqrt(mu_F / L_F) delta for all s.

    The assumption holds where this is positive.
    """
    error = float(np.linalg.norm(c - problem.c_star, axis=1).max())
    return 0.5 - error / (math.sqrt(mu_F(problem) / L_F(problem)) * delta(problem))


@dataclass(frozen=True)
class Round:
    """What is given in round t: the centers c^t, the estimated weights u^t, and lambda."""

    problem: Problem
    c: Array  # [S, d]
    ut: Array  # [N, S]
    lam: float

    def h(self, k: int, w: Array) -> float:
        """h_k, eq. (4): the true risk of the client and the pull by the ESTIMATED weights."""
        p = self.problem
        risk = sum(u * s.value(w) for u, s in zip(p.u[k], p.sources, strict=True))
        return float(risk + self.lam / 2 * (self.ut[k] * np.square(w - self.c).sum(1)).sum())

    def gradient(self, k: int, w: Array) -> Array:
        """The gradient of h_k, without assuming that the weights sum to 1."""
        p = self.problem
        risk = sum((u * s.gradient(w) for u, s in zip(p.u[k], p.sources, strict=True)), np.zeros_like(w))
        return risk + self.lam * (self.ut[k][:, None] * (w - self.c)).sum(0)

    def solve(self, k: int) -> Array:
        """w_k = argmin h_k, exactly (gamma_0 = 0)."""
        pull = self.lam * self.ut[k]
        return minimise(self.problem.sources, self.problem.u[k], float(pull.sum()), pull @ self.c)

    def solutions(self) -> Array:
        """All w_k, `[N, d]`."""
        return np.stack([self.solve(k) for k in range(self.problem.N)])

    def pull(self, k: int, s: int) -> float:
        """lambda u^t_ks / u_ks: how hard sub-problem h_ks is pulled. Only where u_ks > 0."""
        return self.lam * self.ut[k, s] / self.problem.u[k, s]

    def h_ks(self, k: int, s: int, w: Array) -> float:
        """The sub-problem h_ks, Section 4."""
        return self.problem.sources[s].value(w) + self.pull(k, s) / 2 * float(np.square(w - self.c[s]).sum())

    def gradient_ks(self, k: int, s: int, w: Array) -> Array:
        return self.problem.sources[s].gradient(w) + self.pull(k, s) * (w - self.c[s])

    def solve_ks(self, k: int, s: int) -> Array:
        """w*_ks = argmin h_ks."""
        pull = self.pull(k, s)
        return minimise([self.problem.sources[s]], np.ones(1), pull, pull * self.c[s])

    def slope(self, s: int) -> float:
        """|grad F_s(c_s)|."""
        return float(np.linalg.norm(self.problem.sources[s].gradient(self.c[s])))

    def parts(self) -> list[tuple[int, int]]:
        """All (k, s) with u_ks > 0: the sub-problems that exist."""
        return [(int(k), int(s)) for k, s in np.argwhere(self.problem.u > 0)]


def mu_lambda(given: Round) -> float:
    """Section 4: every sub-problem is mu_lambda strongly convex. A constant must serve all: the smallest."""
    return mu_F(given.problem) + min(given.pull(k, s) for k, s in given.parts())


def L_lambda(given: Round) -> float:
    """Section 4: every sub-problem is L_lambda smooth: the largest."""
    return L_F(given.problem) + max(given.pull(k, s) for k, s in given.parts())


def gamma_0(given: Round, w: Array) -> float:
    """Assumption 1: the smallest gamma_0 with |grad h_k(w_k)| <= gamma_0 min_s |grad F_s(c_s)| for all k."""
    least = min(given.slope(s) for s in range(given.problem.S))
    worst = max(float(np.linalg.norm(given.gradient(k, w[k]))) for k in range(given.problem.N))
    return worst / least if least > 0 else (0.0 if worst < 1e-12 else math.inf)


def beta(given: Round) -> float:
    """Assumption 2: the smallest beta with sum_s' u_ks' |grad h_ks'(w*_ks; c_s')|^2 <= beta |grad F_s(c_s)|^2.

    For all clients k and all s with u_ks > 0. The paper writes c_s for the center of sub-problem s'; its proof needs
    c_s' (see the check `theorem-2-literal`).
    """
    worst = 0.0
    for k, s in given.parts():
        w = given.solve_ks(k, s)
        others = sum(
            given.problem.u[k, j] * float(np.square(given.gradient_ks(k, j, w)).sum())
            for j in range(given.problem.S)
            if given.problem.u[k, j] > 0 and j != s
        )
        slope = given.slope(s)
        worst = max(worst, others / slope**2 if slope > 0 else (0.0 if others < 1e-24 else math.inf))
    return worst


def beta_literal(given: Round) -> float:
    """beta with the center c_s in all sub-problems, as Assumption 2 is written."""
    found = 0.0
    for k, s in given.parts():
        w, total = given.solve_ks(k, s), 0.0
        for j in range(given.problem.S):
            if j != s and given.problem.u[k, j] > 0:
                slope = given.problem.sources[j].gradient(w) + given.pull(k, j) * (w - given.c[s])
                total += given.problem.u[k, j] * float(slope @ slope)
        found = max(found, total / given.slope(s) ** 2)
    return found


def gamma(given: Round, w: Array) -> float:
    """Theorem 2: gamma = sqrt((gamma_0^2 + beta) L_lambda / mu_lambda)."""
    return math.sqrt((gamma_0(given, w) ** 2 + beta(given)) * L_lambda(given) / mu_lambda(given))


def r(problem: Problem, gamma: float) -> float:
    """Theorem 3, as stated: r = (gamma S + 1)/4 sqrt(L_F/mu_F) + 1/2 sqrt(mu_F/L_F) + 1."""
    root = math.sqrt(L_F(problem) / mu_F(problem))
    return (gamma * problem.S + 1) / 4 * root + 0.5 / root + 1


def r_corrected(problem: Problem, gamma: float) -> float:
    """What the proof of Theorem 3 gives for every alpha_0: 1/2 in place of 1/4, 1 in place of 1/2."""
    root = math.sqrt(L_F(problem) / mu_F(problem))
    return (gamma * problem.S + 1) / 2 * root + 1 / root + 1


@dataclass(frozen=True)
class Masses:
    """The sums of Theorem 4 for one center s."""

    n: float
    n_s: float
    m_s: float
    m_bar: float
    m_hat: float


def masses(problem: Problem, s: int, p: float, p_prime: float) -> Masses:
    """Theorem 4: n, n_s, m_s, bar m_s, hat m_s."""
    u, n = problem.u[:, s], problem.n
    there = u > 0
    m_s = float(n[there].sum())
    m_hat = (1 - p) * m_s + p_prime * float((n[there] / u[there]).sum())
    return Masses(float(n.sum()), float((u * n).sum()), m_s, float(n[~there].sum()), m_hat)


def rho(
    m: Masses, *, gamma: float, L: float, mu_lambda: float, lam: float, K: float, p: float, p_prime: float
) -> float:
    """Theorem 4: rho, which has to be positive."""
    wide = (gamma + 1) ** 2 * m.m_hat
    return (
        (m.n_s - gamma * m.m_s) / lam
        - (gamma + 1) * L * m.m_s / (mu_lambda * lam)
        - p_prime * m.m_bar / (2 * mu_lambda)
        - L * wide / (2 * mu_lambda**2)
        - 4 * L * wide / (mu_lambda**2 * math.sqrt(K))
        - (wide + (1 - p) * m.n_s + p_prime * m.n) / (mu_lambda * math.sqrt(2 * K))
    )


def R(m: Masses, *, r: float, L: float, mu_lambda: float, K: float) -> float:
    """Theorem 4: R."""
    return 0.5 * (mu_lambda + L) * m.m_bar * r**2 + (4 * L + mu_lambda) * m.m_bar * r**2 / math.sqrt(K)


def descent_bound(
    m: Masses, *, S: int, rho: float, R: float, Delta: float, slope: float, p: float, p_prime: float
) -> float:
    """The right-hand side of Theorem 4: how much E F_s(c_s) changes at most in a round."""
    left = -rho * slope**2 / ((1 - p) * m.n_s + p_prime * m.n)
    return left + p_prime * R * Delta**2 / ((1 - p) * m.n_s - p_prime * (S - 2) * m.n)


# --- Lemma 1 ----------------------------------------------------------------------------------------------------------


def p_epsilon_gaussian(own: Array, other: Array, theta: Array, noise: float) -> float:
    """The probability that a point of a linear regression is matched to the `other` center, exactly.

    For y = <x, theta> + noise e with standard normal x and e the two residuals a, b are jointly normal, and
    P(b^2 < a^2) = P((b - a)(b + a) < 0) = arccos(corr(b - a, b + a)) / pi.
    """
    da, db = theta - own, theta - other
    va, vb, cov = float(da @ da) + noise**2, float(db @ db) + noise**2, float(da @ db) + noise**2
    scale = math.sqrt(max(0.0, (va + vb) ** 2 - 4 * cov**2))
    return math.acos(max(-1.0, min(1.0, (vb - va) / scale))) / math.pi if scale > 0 else 0.0


def loss_variance_gaussian(c: Array, theta: Array, noise: float) -> float:
    """The variance of a point's squared error under a center: the error is normal, so 2 (|c - theta|^2 + noise^2)^2."""
    return 2 * (float((c - theta) @ (c - theta)) + noise**2) ** 2


def p_epsilon_bound(variance: float, mu: float, alpha_0: float, delta: float) -> float:
    """Lemma 1 with its constant: p_epsilon = c_epsilon / (alpha_0^2 delta^4), c_epsilon = 8 variance / mu^2.

    By Assumptions 3 and 4 the other center's risk is larger by at least alpha_0 mu delta^2; Chebyshev's inequality on
    both sides of the middle of that gap gives 2 variance / (alpha_0 mu delta^2 / 2)^2.
    """
    return 8 * variance / (mu**2 * alpha_0**2 * delta**4)


# --- fixed points and rates -------------------------------------------------------------------------------------------


def aggregation(u: Array, n: Array) -> Array:
    """v_sk = u_ks n_k / sum_k' u_k's n_k', over all clients, `[S, N]`."""
    share = (u * n[:, None]).T
    return share / share.sum(1, keepdims=True)


def joint_minimiser(problem: Problem, ut: Array, lam: float, weight: Array, rounds: int = 2000) -> Array:
    """The centers of argmin_{w, c} sum_k weight_k h_k(w_k; c, u): Theorem 5 has weight 1 for every client.

    By exact alternation to a standstill; strictly convex in (w, c) together, so the standstill is the minimiser.
    """
    c = problem.c_star.copy()
    v = aggregation(ut, weight)
    for _ in range(rounds):
        new = v @ Round(problem, c, ut, lam).solutions()
        if np.abs(new - c).max() < 1e-14 * (1 + np.abs(c).max()):
            return new
        c = new
    return c


def round_matrix(problem: Problem, ut: Array, lam: float, v: Array, w: Array) -> Array:
    """The derivative of c^t -> c^{t+1} with everybody taking part, at clients' models w: `[S d, S d]`.

    Block (s, j) is sum_k v_sk (hessian f_k(w_k) + lambda sum_s u_ks I)^-1 lambda u_kj. Linear for quadratics.
    """
    S, d = problem.c_star.shape
    M = np.zeros((S, d, S, d))
    for k in range(problem.N):
        H = sum((u * s.hessian(w[k]) for u, s in zip(problem.u[k], problem.sources, strict=True)), np.zeros((d, d)))
        inverse = np.linalg.inv(H + lam * ut[k].sum() * np.eye(d))
        M += v[:, k][:, None, None, None] * lam * ut[k][None, None, :, None] * inverse[None, :, None, :]
    return M.reshape(S * d, S * d)


def spectral_rate(M: Array) -> float:
    """The spectral radius: by this factor the distance shrinks in a round, in the long run."""
    return float(np.abs(np.linalg.eigvals(M)).max())


# --- selection --------------------------------------------------------------------------------------------------------


def inclusion_with_replacement(v: Array, K: int) -> Array:
    """The probability that a client is among K independent draws from v."""
    return 1 - (1 - v) ** K


def inclusion_without_replacement(v: Array, K: int, nodes: int = 128) -> Array:
    """The probability that a client is among the first K of successive draws from `v[N]` without replacement.

    As a race: client k rings at an exponential time of rate v_k. With z = exp(-v_k t) uniform on (0, 1), it is in when
    fewer than K others have rung before t, a Poisson-binomial probability; integrated by Gauss-Legendre.
    """
    z, weight = np.polynomial.legendre.leggauss(nodes)
    z, weight = (z + 1) / 2, weight / 2
    alive = v > 0
    if K >= alive.sum():
        return alive.astype(float)
    rates, first, group = np.unique(v, return_index=True, return_inverse=True)  # equal clients, equal chances
    found = np.zeros(len(rates))
    for i in np.flatnonzero(rates):
        t = -np.log(z) / rates[i]
        rung = -np.expm1(-np.outer(np.delete(v, first[i]), t))  # [N - 1, nodes]
        count = np.zeros((K + 1, nodes))  # count[j]: probability that j have rung so far; K or more end in the last
        count[0] = 1
        for q in rung:
            moved = count[:-1] * q
            count[:-1] -= moved
            count[1:] += moved
        found[i] = weight @ count[:K].sum(0)
    return found[group]


def expected_selected(inclusion: Array) -> float:
    """The expected size of the union of the S sets, drawn independently: sum_k (1 - prod_s (1 - inclusion_sk))."""
    return float((1 - np.prod(1 - inclusion, axis=0)).sum())


def expected_selected_paper(N: int, K: int, S: int) -> float:
    """Section 3: N (1 - (1 - K/N)^S).

    >>> expected_selected_paper(100, 60, 2)
    84.0
    """
    return N * (1 - (1 - K / N) ** S)
