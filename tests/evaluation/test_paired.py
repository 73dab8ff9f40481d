"""Differences paired by client, with an interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsoft.evaluation.paired import mean_of, paired


def test_two_clients_by_hand() -> None:
    """Of two differences 1 and 3, resampled means are 1, 2 and 3 with probabilities 1/4, 1/2 and 1/4."""
    found = paired([2.0, 5.0], [1.0, 2.0])
    assert found is not None
    assert (found.mean, found.clients) == (2.0, 2)
    assert (found.low, found.high) == (1.0, 3.0)  # the levels of two clients are far out
    assert found.is_clear


def test_lower_is_better_turns_the_sign() -> None:
    found = paired([1.0, 2.0, 1.5], [2.0, 5.0, 2.0], higher_is_better=False)
    assert found is not None
    assert found.mean == pytest.approx(1.5)
    assert found.low > 0


def test_clients_without_a_value_are_left_out() -> None:
    found = paired([1.0, math.nan, 3.0, 4.0], [0.0, 1.0, math.nan, 2.0])
    assert found is not None
    assert (found.mean, found.clients) == (1.5, 2)
    assert paired([math.nan], [1.0]) is None
    alone = paired([2.0], [1.0])
    assert alone is not None
    assert alone.low == -math.inf
    assert not alone.is_clear
    assert alone.to_dict()["low"] is None


def test_the_same_call_gives_the_same_interval() -> None:
    values = np.random.default_rng(0).standard_normal(30)
    assert paired(values, 0 * values) == paired(values, 0 * values)


@pytest.mark.parametrize(("clients", "draw"), [(10, "normal"), (40, "exponential")])
def test_coverage_is_near_the_level(clients: int, draw: str) -> None:
    rng, hits, repeats = np.random.default_rng(1), 0, 300
    for _ in range(repeats):
        gains = rng.normal(0.3, 1.0, clients) if draw == "normal" else rng.exponential(1.0, clients) - 0.7
        found = paired(gains, np.zeros(clients), draws=300)
        assert found is not None
        hits += found.low <= 0.3 <= found.high
    assert 0.91 <= hits / repeats <= 0.98


def test_several_seeds_of_the_same_clients_count_once() -> None:
    """Values of one client under several seeds are not independent: repeating them does not narrow the interval."""
    gains = np.random.default_rng(2).standard_normal(50)
    once, thrice = paired(gains, 0 * gains), paired(np.tile(gains, (3, 1)), np.zeros((3, 50)))
    assert once is not None
    assert thrice is not None
    assert thrice.mean == pytest.approx(once.mean)
    assert thrice.high - thrice.low == pytest.approx(once.high - once.low, rel=0.1)


def test_seeds_that_differ_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    own, shift = rng.standard_normal(200), np.array([-1.0, 0.0, 1.0])[:, None]
    same, other = paired(np.tile(own, (3, 1)), np.zeros((3, 200))), paired(own + shift, np.zeros((3, 200)))
    assert same is not None
    assert other is not None
    assert other.high - other.low > 2 * (same.high - same.low)


def test_a_mean_skips_what_is_not_there() -> None:
    assert mean_of([1.0, math.nan, 3.0]) == 2.0
    assert math.isnan(mean_of([math.nan]))
