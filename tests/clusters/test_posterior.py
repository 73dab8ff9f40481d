"""Mixtures, noise scale and intervals against closed forms and draws with a known truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom
from torch import Tensor

from fedsoft.clusters.posterior import interval, log_density, mixtures, noise_scale
from fedsoft.core.client_data import ClientData


def clients(*sizes: int) -> ClientData:
    return ClientData.concat([(torch.zeros(n, 1), torch.zeros(n)) for n in sizes])


def told_apart(counts: list[int]) -> Tensor:
    """Points that only one center can have made."""
    source = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return torch.full((len(source), len(counts)), -1e3, dtype=torch.float64).scatter(1, source[:, None], 0.0)


def test_the_density_is_that_of_a_gaussian() -> None:
    expected = torch.distributions.Normal(0.0, 1.5).log_prob(torch.tensor([2.0, -1.0]))
    squares = torch.tensor([[4.0], [1.0]])
    assert torch.allclose(log_density(squares, 1.5**2)[:, 0], expected.double())
    both = torch.tensor([[5.0]])  # of two outputs
    assert float(log_density(both, 1.5**2, 2)) == pytest.approx(float(expected.sum()))
    assert torch.equal(log_density(squares, None), -squares.double())


def test_points_that_are_told_apart_are_counted() -> None:
    logp = torch.cat([told_apart([3, 1, 0]), told_apart([0, 0, 5])])
    u = mixtures(logp, clients(4, 5))
    assert torch.allclose(u, torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64))


def test_points_that_tell_nothing_leave_equal_shares() -> None:
    assert torch.allclose(mixtures(torch.zeros(7, 4).double(), clients(7)), torch.full((1, 4), 0.25).double())


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 30))
def test_no_mixture_is_likelier(seed: int, count: int, points: int) -> None:
    """The likelihood is concave: a maximum is where no vertex of the simplex pulls, mean_i p_is / p_i <= 1."""
    rng = np.random.default_rng(seed)
    logp = torch.from_numpy(rng.normal(0, 2, (points, count)))
    u = mixtures(logp, clients(points))[0]
    p = logp.exp()
    assert float((p / (p @ u)[:, None]).mean(0).max()) < 1 + 1e-3
    assert float(u.sum()) == pytest.approx(1)


def test_the_noise_scale_is_found() -> None:
    rng = np.random.default_rng(0)
    source, noise = rng.integers(0, 2, 4000), 0.7 * rng.standard_normal(4000)
    apart = rng.normal(0, 5, 4000)  # how far the other center predicts from the right one
    squares = np.stack([(noise + apart * (source == 1)) ** 2, (noise + apart * (source == 0)) ** 2], axis=1)
    assert noise_scale(torch.from_numpy(squares), clients(2000, 2000)) == pytest.approx(0.49, rel=0.06)
    one = torch.from_numpy(noise[:, None] ** 2)
    assert noise_scale(one, clients(4000)) == pytest.approx(float(one.mean()))


def binomial_ends(k: int, n: int, drop: float = 2.705543 / 2) -> tuple[float, float]:
    """Where k log(u) + (n - k) log(1 - u) is `drop` below its maximum (chi-squared, 90 %)."""

    def height(u: float) -> float:
        return (k * math.log(u) if k else 0.0) + ((n - k) * math.log(1 - u) if k < n else 0.0)

    tiny, peak = 1e-9, min(max(k / n, 1e-9), 1 - 1e-9)
    below = lambda u: height(u) - height(peak) + drop  # noqa: E731
    low: Any = 0.0 if k == 0 else brentq(below, tiny, peak)
    high: Any = 1.0 if k == n else brentq(below, peak, 1 - tiny)
    return float(low), float(high)


@pytest.mark.parametrize(("k", "n"), [(4, 10), (5, 5), (0, 20), (1, 20)])
def test_two_centers_have_the_interval_of_a_binomial_share(k: int, n: int) -> None:
    """That of k of n points, widened to hold that of one further point of each center."""
    logp = told_apart([k, n - k])
    span = interval(logp, mixtures(logp, clients(n))[0], 0.9)
    plain, with_two = binomial_ends(k, n), binomial_ends(k + 1, n + 2)
    assert float(span.low[0]) == pytest.approx(min(plain[0], with_two[0]), abs=1e-5)
    assert float(span.high[0]) == pytest.approx(max(plain[1], with_two[1]), abs=1e-5)
    assert float(span.low[0]) == pytest.approx(1 - float(span.high[1]), abs=1e-5)


@pytest.mark.parametrize("n", [5, 12, 30])
def test_intervals_cover_every_share_of_points_that_are_told_apart(n: int) -> None:
    """Exactly, over all numbers of points that may come: hardly ever below the 90 % that they say."""
    spans = []
    for k in range(n + 1):
        logp = told_apart([k, n - k])
        found = interval(logp, torch.tensor([k / n, 1 - k / n], dtype=torch.float64), 0.9)
        spans.append((float(found.low[0]) - 1e-6, float(found.high[0]) + 1e-6))
    shares = np.linspace(0, 1, 101)
    covered = [
        sum(float(binom.pmf(k, n, p)) for k, (low, high) in enumerate(spans) if low <= p <= high) for p in shares
    ]
    assert min(covered) > 0.85
    assert float(np.mean(covered)) > 0.9


def test_other_shares_are_chosen_best_and_one_center_is_certain() -> None:
    """With three centers a share is profiled over the others: 4 of 10 gives the binomial interval whatever they are."""
    logp = told_apart([4, 3, 3])
    three = interval(logp, mixtures(logp, clients(10))[0], 0.9)
    logp = told_apart([4, 6])
    two = interval(logp, mixtures(logp, clients(10))[0], 0.9)
    assert float(three.low[0]) == pytest.approx(float(two.low[0]), abs=1e-4)
    assert float(three.high[0]) == pytest.approx(float(two.high[0]), abs=1e-4)
    single = interval(torch.zeros(3, 1).double(), torch.ones(1).double(), 0.9)
    assert (float(single.low[0]), float(single.high[0])) == (1, 1)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 20))
def test_the_interval_holds_the_estimate_and_narrows_with_the_points(seed: int, count: int, points: int) -> None:
    logp = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (points, count)))
    u = mixtures(logp, clients(points))[0]
    span, more = interval(logp, u, 0.9), interval(logp.repeat(4, 1), u, 0.9)
    assert bool((span.low <= u + 1e-4).all() and (span.high >= u - 1e-4).all())
    assert bool((more.high - more.low <= span.high - span.low + 1e-3).all())


def coverage(share: float, points: int, apart: float, draws: int) -> tuple[float, float]:
    """How often the 90 % interval of two Gaussian sources holds the true share, and its mean width."""
    rng = np.random.default_rng([points, int(100 * share), int(10 * apart)])
    value = rng.standard_normal(draws * points) + apart * (rng.random(draws * points) >= share)
    logp = log_density(torch.from_numpy(np.stack([value**2, (value - apart) ** 2], axis=1)), 1.0)
    found = mixtures(logp, clients(*[points] * draws))  # all new clients at once
    spans = [interval(rows, u, 0.9) for rows, u in zip(logp.split(points), found, strict=True)]
    held = [float(s.low[0]) - 1e-6 <= share <= float(s.high[0]) + 1e-6 for s in spans]
    return float(np.mean(held)), float(np.mean([float(s.high[0] - s.low[0]) for s in spans]))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_intervals_cover_the_truth_where_sources_overlap(share: float) -> None:
    """At least as often as they say, but for three deviations of so few draws, and they widen with fewer points."""
    (few, wide), (many, narrow) = (coverage(share, points, 1.5, draws=60) for points in (5, 60))
    assert min(few, many) >= 0.78
    assert wide > narrow
