from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedsoft.evaluation.failures import RunEnd, failed
from fedsoft.evaluation.ranks import critical_difference, ranks_of


def test_friedman_is_that_of_scipy() -> None:
    table = np.random.default_rng(0).integers(0, 5, (12, 4)).astype(float)  # with ties
    found = ranks_of(
        {name: dict(enumerate(table[:, i].tolist())) for i, name in enumerate("abcd")}, higher_is_better=False
    )
    assert found is not None
    wanted = stats.friedmanchisquare(*table.T)
    assert (found.statistic, found.p) == pytest.approx((wanted.statistic, wanted.pvalue))


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_has_the_published_values(methods: int, q: float) -> None:
    """Demsar 2006, table 5: q at 5 %."""
    wanted = q * np.sqrt(methods * (methods + 1) / 60)
    assert critical_difference(methods, 10) == pytest.approx(wanted, abs=1e-3 * wanted)


def test_ranks_by_hand() -> None:
    found = ranks_of(
        {"a": {1: 0.9, 2: 0.9}, "b": {1: 0.8, 2: float("nan")}, "c": {1: 0.7, 2: 0.9, 3: 1.0}}, higher_is_better=True
    )
    assert found is not None
    assert dict(found.mean) == {"a": 1.25, "c": 2.25, "b": 2.5}  # c: 3 and 1.5; a run that failed is last
    assert found.seeds == 2
    assert found.groups == [("a", "c", "b")]
    assert ranks_of({"a": {1: 1.0}, "b": {2: 1.0}}, higher_is_better=True) is None


def test_groups_are_as_large_as_can_be() -> None:
    values = {name: {seed: float(rank) for seed in range(10)} for rank, name in enumerate("abcde")}
    found = ranks_of(values, higher_is_better=False)
    assert found is not None
    assert 1.9 < found.critical < 2.0  # so neighbours are alike, and no others
    assert found.groups == [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")]


def test_runs_that_failed() -> None:
    def end(centers: float, personal: float | None = None) -> RunEnd:
        return RunEnd(centers=centers, several=True, oracle=1.0, one_model=57.0, personal=personal, constant=10.0)

    poor = [end(30.0), end(33.0), end(28.0)]
    assert failed(poor) == [False] * 3  # as always
    assert failed([*poor, end(57.0)])[-1]  # one model for all is no better
    assert failed([RunEnd(diverged=True), end(2.0, personal=20.0)]) == [True, True]
    assert failed([RunEnd(centers=57.0, oracle=1.0, one_model=57.0)]) == [False]  # that is one model for all
    assert failed([end(1.001), end(1.02), end(1.0001)]) == [False] * 3  # at the oracle ratios mean nothing
    assert failed([]) == []
