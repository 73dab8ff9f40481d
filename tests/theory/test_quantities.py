"""The quantities of the paper against closed forms, and the reference problems against the library."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsoft.clusters.importance_weights import aggregation_weights
from fedsoft.core.local_solve import own_gradients
from fedsoft.seeds import generator
from fedsoft.theory import quantities as q
from fedsoft.theory.library import FixedWeights, estimate, gaussian_clients, wrong_matches
from fedsoft.theory.problem import (
    Problem,
    Quadratic,
    RidgeLogistic,
    draw_copies,
    draw_logistic,
    draw_quadratics,
    minimise,
    on_a_line,
    quadratic,
    within_assumption_4,
)

TEN_NINETY = np.array([[9, 1], [1, 9]])


def test_a_quadratic_has_the_spectrum_that_was_asked_for() -> None:
    source = quadratic([1.0, 2.0, 5.0], np.array([1.0, -1.0, 0.5]), generator(0, "q"))
    assert source.mu == pytest.approx(1.0)
    assert source.L == pytest.approx(5.0)
    assert source.gradient(source.minimiser) == pytest.approx(np.zeros(3))
    x, y = source.points()
    w = np.array([0.3, 0.1, -2.0])
    assert np.square(x @ w - y).mean() == pytest.approx(source.value(w))  # the library's loss on its points


def test_the_constants_of_logistic_regression() -> None:
    # One feature, x = 2 and -2, labels that pull against each other: F = log(1 + e^-2w)/2 + log(1 + e^2w)/2 + w^2/2.
    source = RidgeLogistic(np.array([[2.0], [-2.0]]), np.array([1.0, 1.0]), 1.0)
    assert source.minimiser == pytest.approx(np.zeros(1), abs=1e-12)
    assert source.value(np.zeros(1)) == pytest.approx(math.log(2))
    assert source.mu == 1.0
    assert source.L == pytest.approx(1 + 4 / 4)
    assert source.hessian(np.zeros(1)) == pytest.approx(np.array([[2.0]]))  # the bound L is reached at 0
    assert source.gradient(np.array([0.7])) == pytest.approx(np.array([math.tanh(0.7) + 0.7]))


def test_newton_finds_the_minimum_of_a_sum() -> None:
    rng = generator(0, "newton")
    sources = draw_logistic(rng, S=3, d=4)
    weights, target = np.array([0.2, 0.5, 0.3]), rng.standard_normal(4)
    w = minimise(sources, weights, 0.7, target)
    slope = sum(a * s.gradient(w) for a, s in zip(weights, sources, strict=True)) + 0.7 * w - target
    assert np.abs(slope).max() < 1e-12


@st.composite
def problems(draw: st.DrawFn, logistic: bool = True, soft: bool = False) -> Problem:
    """A few sources and clients: chosen spectra and copies, drawn axes and optima."""
    rng = generator(draw(st.integers(0, 10**6)), "problem")
    S, d = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    copies = draw(
        st.lists(st.lists(st.integers(int(soft), 6), min_size=S, max_size=S).filter(any), min_size=1, max_size=4)
    )
    if logistic and draw(st.integers(0, 5)) == 0:
        ridge = draw(st.floats(0.1, 2.0))
        return Problem(draw_logistic(rng, S=S, d=d, points=12, ridge=ridge), np.array(copies))
    sources = []
    for _ in range(S):
        spectrum = draw(st.lists(st.floats(0.2, 8.0), min_size=d, max_size=d))
        sources.append(quadratic(spectrum, rng.standard_normal(d) * draw(st.floats(0.5, 5.0)), rng))
    return Problem(tuple(sources), np.array(copies))


@given(problems(), st.integers(0, 1000))
def test_slopes_lie_between_mu_and_L(problem: Problem, seed: int) -> None:
    a, b = generator(seed, "ab").standard_normal((2, problem.c_star.shape[1]))
    for source in problem.sources:
        slope = (source.gradient(a) - source.gradient(b)) @ (a - b) / ((a - b) @ (a - b))
        assert q.mu_F(problem) - 1e-9 <= source.mu - 1e-9 <= slope <= source.L + 1e-9 <= q.L_F(problem) + 2e-9
        eigenvalues = np.linalg.eigvalsh(source.hessian(a))
        assert source.mu - 1e-9 <= eigenvalues[0] <= eigenvalues[-1] <= source.L + 1e-9


@given(problems(), st.integers(0, 1000))
def test_the_federation_has_the_risk_of_the_problem(problem: Problem, seed: int) -> None:
    w = generator(seed, "w").standard_normal((problem.N, problem.c_star.shape[1]))
    federation = problem.federation()
    assert federation.train.sizes.tolist() == problem.n.tolist()
    with torch.no_grad():
        got = own_gradients(problem.model(), federation.train, torch.from_numpy(w)).numpy()
    for k in range(problem.N):
        naive = sum(u * s.gradient(w[k]) for u, s in zip(problem.u[k], problem.sources, strict=True))
        assert got[k] == pytest.approx(naive, rel=1e-9, abs=1e-9)


@given(problems(), st.integers(0, 1000), st.floats(0.05, 20))
@settings(max_examples=40)
def test_a_round_of_the_library_is_the_round_of_the_paper(problem: Problem, seed: int, lam: float) -> None:
    rng = generator(seed, "round")
    c = problem.c_star + rng.standard_normal(problem.c_star.shape)
    ut = np.maximum(rng.dirichlet(np.ones(problem.S), problem.N), 1e-4)
    library = FixedWeights(problem, ut, lam)
    got = library.round(c)
    w = q.Round(problem, c, ut, lam).solutions()
    assert library.w == pytest.approx(w, rel=1e-8, abs=1e-8)
    assert got == pytest.approx(q.aggregation(ut, problem.n) @ w, rel=1e-8, abs=1e-8)
    v = aggregation_weights(torch.from_numpy(ut), torch.from_numpy(problem.n)).numpy()
    assert q.aggregation(ut, problem.n) == pytest.approx(v)


def test_distances_and_alpha() -> None:
    problem = Problem(on_a_line(0.0, 1.0, 4.0, curvature=[1.0, 2.0, 4.0]), np.eye(3, dtype=int))
    assert q.mu_F(problem) == 1
    assert q.L_F(problem) == 4
    assert q.delta(problem) == 1
    assert q.Delta(problem) == 4
    # |c_0 - c*_0| = 0.1 = (0.5 - alpha) sqrt(1/4) 1
    assert q.alpha_0(problem, np.array([[0.1], [1.0], [4.05]])) == pytest.approx(0.3)
    c = within_assumption_4(problem.sources, 0.2, generator(0, "c"))
    assert q.alpha_0(problem, c) == pytest.approx(0.2)


def test_gamma_beta_and_r_by_hand() -> None:
    # F_0 = w^2/2, F_1 = (w-1)^2/2, u = (3/4, 1/4), c = (1/2, 1/2), lambda = 1: w*_0 = 1/4, w*_1 = 3/4,
    # grad h_1(w*_0) = -3/4 - 1/4 = -1, |grad F| = 1/2: beta = max(1/4, 3/4) * 1 / (1/4) = 3.
    problem = Problem(on_a_line(0.0, 1.0), np.array([[3, 1]]))
    now = q.Round(problem, np.array([[0.5], [0.5]]), problem.u, 1.0)
    assert now.solve_ks(0, 0) == pytest.approx([0.25])
    assert q.beta(now) == pytest.approx(3.0)
    assert q.mu_lambda(now) == pytest.approx(2)
    assert q.L_lambda(now) == pytest.approx(2)
    w = now.solutions()
    assert w[0] == pytest.approx([0.375])  # (1/4 + 1/2) / 2
    assert q.gamma_0(now, w) == pytest.approx(0, abs=1e-12)
    assert q.gamma_0(now, w + 0.1) == pytest.approx(2 * 0.1 / 0.5)
    assert q.gamma(now, w) == pytest.approx(math.sqrt(3))
    assert q.r(problem, 0.5) == pytest.approx(2 / 4 + 1 / 2 + 1)
    assert q.r_corrected(problem, 0.5) == pytest.approx(2 / 2 + 1 + 1)
    uneven = q.Round(problem, now.c, np.array([[0.5, 0.5]]), 3.0)  # lambda u^t/u is 2 and 6
    assert q.mu_lambda(uneven) == pytest.approx(1 + 2)
    assert q.L_lambda(uneven) == pytest.approx(1 + 6)


def test_gamma_0_where_no_slope_is_left() -> None:
    problem = Problem(on_a_line(0.0, 1.0), np.array([[1, 1]]))
    now = q.Round(problem, problem.c_star, problem.u, 1.0)
    assert q.gamma_0(now, np.array([[0.5]])) == 0
    assert q.gamma_0(now, np.array([[0.6]])) == math.inf
    assert q.beta(now) == math.inf


def test_rho_and_R_by_hand() -> None:
    problem = Problem(on_a_line(0.0, 1.0), np.array([[3, 1], [0, 4]]))
    m = q.masses(problem, 0, 0.1, 0.2)
    assert m == q.Masses(n=8, n_s=3, m_s=4, m_bar=4, m_hat=0.9 * 4 + 0.2 * 4 / 0.75)
    rho = q.rho(m, gamma=0.5, L=2.0, mu_lambda=3.0, lam=4.0, K=16, p=0.1, p_prime=0.2)
    wide = 2.25 * m.m_hat
    by_hand = (
        (3 - 2) / 4 - 1.5 * 2 * 4 / 12 - 0.2 * 4 / 6 - 2 * wide / 18 - 8 * wide / (9 * 4)
        - (wide + 0.9 * 3 + 0.2 * 8) / (3 * math.sqrt(32))
    )  # fmt: skip
    assert rho == pytest.approx(by_hand)
    R = q.R(m, r=1.5, L=2.0, mu_lambda=3.0, K=16)
    assert R == pytest.approx(0.5 * 5 * 4 * 2.25 + 11 * 4 * 2.25 / 4)
    got = q.descent_bound(m, S=3, rho=2.0, R=R, Delta=2.0, slope=0.5, p=0.1, p_prime=0.2)
    assert got == pytest.approx(-2 * 0.25 / (2.7 + 1.6) + 0.2 * R * 4 / (2.7 - 1.6))


def test_the_probability_of_a_wrong_match() -> None:
    theta = np.zeros(2)
    # at the optima: arctan(2 noise / delta) / pi
    for delta in (0.5, 2.0, 50.0):
        got = q.p_epsilon_gaussian(theta, np.array([delta, 0.0]), theta, 1.0)
        assert got == pytest.approx(math.atan(2 / delta) / math.pi)
    assert q.p_epsilon_gaussian(np.array([0.0, 1.0]), np.array([1.0, 0.0]), theta, 0.3) == pytest.approx(0.5)
    assert q.p_epsilon_gaussian(theta, np.array([3.0, 0.0]), theta, 0.0) == pytest.approx(0, abs=1e-7)
    assert q.p_epsilon_gaussian(theta, theta, theta, 1.0) == 0.0  # one center twice: never strictly better


def test_the_variance_of_the_loss_and_the_bound() -> None:
    data, _ = gaussian_clients(np.zeros((1, 2)), np.array([[200_000]]), 0.5, generator(0, "v"))
    c = np.array([0.6, -0.8])
    losses = np.square(data.x.numpy() @ c - data.y.numpy())
    assert q.loss_variance_gaussian(c, np.zeros(2), 0.5) == pytest.approx(2 * 1.25**2)
    assert losses.var() == pytest.approx(2 * 1.25**2, rel=0.03)
    assert q.p_epsilon_bound(variance=2.0, mu=4.0, alpha_0=0.5, delta=2.0) == pytest.approx(8 * 2 / (16 * 0.25 * 16))


@given(st.floats(0.01, 0.5), st.floats(0.1, 100), st.floats(0, 5), st.integers(0, 1000))
def test_chebyshevs_constant_is_never_exceeded_and_never_below_16(
    alpha: float, delta: float, noise: float, seed: int
) -> None:
    rng = generator(seed, "chebyshev")
    theta = np.zeros((2, 3))
    theta[1, 0] = delta
    direction = rng.standard_normal((2, 3))
    c = theta + direction / np.linalg.norm(direction, axis=1, keepdims=True) * (0.5 - alpha) * delta
    variance = max(q.loss_variance_gaussian(c[s], theta[0], noise) for s in (0, 1))
    bound = q.p_epsilon_bound(variance, 2.0, alpha, delta)
    assert bound >= 16 * (1 - 1e-9)
    assert q.p_epsilon_gaussian(c[0], c[1], theta[0], noise) <= bound


def test_wrong_matches_are_counted_by_source() -> None:
    # One point per source, at 0 and 1; both centers beyond source 1: the point of source 0 prefers center 1.
    problem = Problem(on_a_line(0.0, 1.0), np.array([[1, 1]]))
    assert wrong_matches(problem, np.array([[0.0], [1.0]]))[0] == 0
    assert wrong_matches(problem, np.array([[3.0], [2.0]]))[0] == 1
    assert estimate(problem, np.array([[3.0], [2.0]]), 0.01).tolist() == [[0.01, 1.0]]


def brute_force_inclusion(v: np.ndarray, K: int) -> np.ndarray:
    """Successive draws without replacement, every order of every set."""
    found = np.zeros(len(v))
    for order in permutations(range(len(v)), K):
        p, left = 1.0, float(v.sum())
        for k in order:
            p *= v[k] / left
            left -= v[k]
        found[list(order)] += p
    return found


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6), st.data())
@settings(max_examples=30)
def test_inclusion_without_replacement(weights: list[float], data: st.DataObject) -> None:
    v = np.array(weights) / sum(weights)
    K = data.draw(st.integers(1, len(v) - 1))
    got = q.inclusion_without_replacement(v, K)
    assert got == pytest.approx(brute_force_inclusion(v, K), abs=2e-5)
    assert got.sum() == pytest.approx(K, abs=1e-4)


def test_inclusion_at_the_edges() -> None:
    assert q.inclusion_without_replacement(np.array([0.5, 0.25, 0.25]), 2) == pytest.approx(
        [5 / 6, 7 / 12, 7 / 12], abs=1e-6
    )
    assert q.inclusion_without_replacement(np.array([0.5, 0.0, 0.5]), 2).tolist() == [1, 0, 1]
    assert q.inclusion_with_replacement(np.array([0.5, 0.5]), 2).tolist() == [0.75, 0.75]
    assert q.expected_selected(np.array([[1.0, 0.5], [0.0, 0.5]])) == pytest.approx(1 + 0.75)


@given(st.integers(2, 200), st.data())
def test_the_papers_number_is_exact_without_replacement(N: int, data: st.DataObject) -> None:
    K, S = data.draw(st.integers(1, N)), data.draw(st.integers(1, 5))
    uniform = np.full((S, N), K / N)  # every client is in a set of K with probability K/N
    assert q.expected_selected(uniform) == pytest.approx(q.expected_selected_paper(N, K, S))
    if S == 2:
        assert q.expected_selected_paper(N, K, 2) == pytest.approx(2 * K - K**2 / N)


def test_the_joint_minimiser_is_where_the_gradient_vanishes() -> None:
    rng = generator(0, "joint")
    problem = Problem(draw_quadratics(rng, S=3), draw_copies(rng, 4, 3, soft=True))
    weight = rng.uniform(1, 3, 4)
    c = q.joint_minimiser(problem, problem.u, 0.8, weight)
    w = q.Round(problem, c, problem.u, 0.8).solutions()
    for s in range(3):  # d/dc_s of sum_k weight_k h_k = lambda sum_k weight_k u_ks (c_s - w_k)
        assert (weight[:, None] * problem.u[:, s : s + 1] * (c[s] - w)).sum(0) == pytest.approx(np.zeros(3), abs=1e-10)


def test_the_matrix_of_a_round_is_its_derivative() -> None:
    rng = generator(0, "matrix")
    for sources in (draw_quadratics(rng), draw_logistic(rng, points=8)):
        problem = Problem(sources, TEN_NINETY)
        c, v = problem.c_star, q.aggregation(problem.u, problem.n)
        w = q.Round(problem, c, problem.u, 0.7).solutions()
        M = q.round_matrix(problem, problem.u, 0.7, v, w)
        for i in range(c.size):
            step = np.zeros(c.size)
            step[i] = 1e-5
            ends = [
                v @ q.Round(problem, c + sign * step.reshape(c.shape), problem.u, 0.7).solutions() for sign in (1, -1)
            ]
            assert M[:, i] == pytest.approx(((ends[0] - ends[1]) / 2e-5).ravel(), abs=1e-8)


def test_the_rate_for_equal_curvature() -> None:
    problem = Problem(on_a_line(0.0, 1.0, curvature=3.0), TEN_NINETY)
    M = q.round_matrix(problem, problem.u, 2.0, q.aggregation(problem.u, problem.n), np.zeros((2, 1)))
    assert sorted(np.linalg.eigvals(M).real) == pytest.approx(
        [2 / 5 * 0.64, 2 / 5]
    )  # lambda/(mu + lambda) times 0.64, 1
    assert q.spectral_rate(M) == pytest.approx(2 / 5)


def test_quadratic_of_one_axis() -> None:
    assert Quadratic(np.array([[2.0]]), np.array([1.0])).value(np.array([3.0])) == 4.0
