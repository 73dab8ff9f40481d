from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsoft.evaluation.seed_tests import SeedDifference, corrected, difference, holm


def gains_of(*gains: float) -> SeedDifference:
    found = difference(dict(enumerate(gains)), dict.fromkeys(range(len(gains)), 0.0), higher_is_better=True)
    assert found is not None
    return found


@pytest.mark.parametrize("n", [5, 12, 20, 60])
def test_p_values_and_intervals_are_those_of_scipy(n: int) -> None:
    gains = np.random.default_rng(n).standard_normal(n) + 0.4
    found = gains_of(*gains.tolist())
    student: Any = stats.ttest_1samp(gains, 0.0)
    interval = student.confidence_interval(0.95)
    assert found.student == pytest.approx(student.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    wanted: Any = stats.wilcoxon(gains, method="exact" if n <= 50 else "asymptotic", correction=False)
    assert found.wilcoxon == pytest.approx(wanted.pvalue)
    assert found.wins == (gains > 0).sum()


def test_wilcoxon_by_hand() -> None:
    """Ranks 1, 2, 3 with signs -, +, +: minus has 1; of 8 sums of signs 0 and 1 are as small: 2 * 2 / 8."""
    assert gains_of(-1.0, 2.0, 3.0).wilcoxon == 0.5
    assert gains_of(1.0, 2.0, 3.0, 4.0, 5.0).wilcoxon == 2 / 32  # the smallest that five seeds allow
    assert gains_of(1.0, 1.0, 0.0).wilcoxon == 0.5  # a tie, and a zero that is left out: ++, +-, -+, --
    assert gains_of(0.0, 0.0).wilcoxon == 1.0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_two_seeds_never_decide() -> None:
    (found,) = corrected([gains_of(1.0, 1.0000001)])
    assert found is not None
    assert found.student < 1e-6
    assert (found.test, found.is_better, found.is_worse) == ("none", False, False)


def test_the_test_that_can_decide_does() -> None:
    five, ten = gains_of(*[1.0, 1.1, 0.9, 1.2, 1.0]), gains_of(*[-1.0, -1.1, -0.9, -1.2, -1.0, -1.3, -0.7, -2, -1, -3])
    first, second, third = corrected([five, ten, None])
    assert first is not None
    assert second is not None
    assert third is None
    assert (first.test, second.test) == ("Student", "Wilcoxon")  # 2 / 32 is above 5 % / 2, 2 / 1024 is not
    assert first.is_better
    assert second.is_worse
    assert second.corrected == pytest.approx(2 / 1024)


def test_seeds_that_one_of_them_lost_are_left_out_and_draws_have_a_scale() -> None:
    found = difference({1: 4.0, 2: 8.0, 3: 9.0}, {1: 2.0, 2: 4.0}, higher_is_better=False, scale={1: 2.0, 2: 4.0, 3: 1})
    assert found is not None
    assert (found.mean, found.seeds, found.wins) == (-1.0, 2, 0.0)
    assert difference({1: 1.0}, {2: 1.0}, higher_is_better=True) is None
    single = difference({1: 1.0}, {1: 0.0}, higher_is_better=True)
    assert single is not None
    assert single.low == -math.inf
    assert single.to_dict()["low"] is None


def test_of_methods_that_do_not_differ_few_are_said_to() -> None:
    """Holm's procedure holds the rate of any false word in a comparison at 5 %."""
    rng, wrong, times = np.random.default_rng(0), 0, 200
    for _ in range(times):
        found = corrected([gains_of(*row) for row in rng.standard_normal((8, 20)).tolist()])
        wrong += any(one is not None and (one.is_better or one.is_worse) for one in found)
    assert wrong / times <= 0.08
