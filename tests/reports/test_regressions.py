from __future__ import annotations

import numpy as np
import pytest

from fedsoft.reports.measures import Measured
from fedsoft.reports.regressions import behind, is_clear


def row(
    name: str, centers: list[list[float]] | None, personal: list[float | None] | None = None,
    seeds: list[int] | None = None,
) -> Measured:  # fmt: skip
    count = len(centers or personal or [])
    nothing: list[float] = [0.0] * count
    return Measured(
        algorithm=name, runs=[""] * count, seeds=seeds or list(range(count)), best_center=centers,
        recovery=[None] * count, personal_train=[None] * count, personal_held_out=personal or [None] * count,
        worst_decile=[None] * count, rounds=[0] * count, gradients_per_client=nothing, evaluations_per_client=nothing,
        bytes_down_per_client=nothing, bytes_up_per_client=nothing, seconds=nothing,
    )  # fmt: skip


def test_what_is_worse_by_more_than_chance_is_named() -> None:
    first = row("fedsoft", [[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]], [1.0, 1.0, 1.0])
    other = row("mine", [[1.5, 4.0], [2.5, 5.0], [3.6, 9.5]], [2.0, 0.5, 0.9])  # 0.5 0.5 0.6; -1 -1 2.5; 1 -0.5 -0.1
    told = "mine is worse than fedsoft, by more than chance over seeds: best center of θ0"
    assert behind([first, other], ["θ0", "θ1"], higher=False) == [told]
    turned = behind([first, other], ["θ0", "θ1"], higher=True)
    assert turned == []


@pytest.mark.parametrize(("higher", "count"), [(True, 1), (False, 0)])
def test_one_seed_has_no_spread(higher: bool, count: int) -> None:
    found = behind([row("a", None, [0.9]), row("b", None, [0.8])], [], higher)
    assert len(found) == count
    assert all("with the only seed" in told and "personal models" in told for told in found)


def test_nothing_to_tell() -> None:
    same = [row("a", [[1.0], [2.0]]), row("b", [[1.0], [2.0]])]
    assert behind(same, ["s"], higher=False) == []
    assert behind([row("a", None, [None]), row("b", None, [None])], [], higher=True) == []


def test_seeds_that_one_of_them_lost_are_left_out() -> None:
    first, other = row("a", [[1.0], [1.0], [1.0]]), row("b", [[1.2], [1.21]], seeds=[0, 2])
    assert behind([first, other], ["s"], higher=False) == [
        "b is worse than a, by more than chance over seeds: best center of s"
    ]
    assert behind([first, row("b", [[1.2], [1.3]], seeds=[7, 8])], ["s"], higher=False) == []


def test_two_seeds_rarely_decide_by_chance() -> None:
    """Of methods that do not differ, at most 2.5 % are said to be better, for any number of seeds."""
    gains = np.random.default_rng(0).standard_normal((4000, 6))
    for seeds in (2, 3, 6):
        assert np.mean([is_clear(row[:seeds].tolist()) for row in gains]) == pytest.approx(0.025, abs=0.008)
    assert not is_clear([0.8, 0.3])
    assert is_clear([0.8, 0.7])
