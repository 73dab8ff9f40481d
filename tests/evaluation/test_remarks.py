"""What is said about scores that look better, or worse, than they are."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from fedsoft.evaluation.remarks import remarks_on
from fedsoft.evaluation.spread import Spread, Yardstick


@dataclass
class Some:
    personal_train: Spread | None
    personal_held_out: Spread | None
    metric: str = "accuracy"
    higher_is_better: bool = True
    yardsticks: list[Yardstick] = field(default_factory=list)


def spread(mean: float, std: float = 0.05, points: int | None = 1000) -> Spread:
    return Spread(mean, mean, mean, 40, std, points)


def subjects(scores: Some) -> list[str]:
    return [remark.subject for remark in remarks_on(scores)]


def test_overfitting_is_said() -> None:
    (remark,) = remarks_on(Some(spread(0.984), spread(0.574)))
    assert "98.4% on training points, 57.4% on held-out points" in remark.text
    assert subjects(Some(spread(0.70), spread(0.62))) == []
    assert subjects(Some(spread(0.9), spread(0.6, std=2.0))) == []  # it may be chance
    assert subjects(Some(spread(1.0), spread(2.5), "mse", False)) == ["overfitting"]
    assert subjects(Some(spread(1.0), spread(1.5), "mse", False)) == []


def test_a_worst_decile_of_few_points_is_said() -> None:
    (remark,) = remarks_on(Some(None, spread(0.6, points=8)))
    assert "rests on 8 points of 4 clients, 2 of each" in remark.text
    assert subjects(Some(None, spread(0.6, points=20))) == []
    assert subjects(Some(None, spread(0.6, points=None))) == []


@pytest.mark.parametrize(("metric", "higher", "better"), [("accuracy", True, 0.7), ("mse", False, 0.5)])
def test_what_a_constant_does_better_is_said(metric: str, higher: bool, better: float) -> None:
    sticks = [Yardstick("own mean", None, spread(better)), Yardstick("overall mean", None, None)]
    assert subjects(Some(None, spread(0.6), metric, higher, sticks)) == ["constant"]
    assert subjects(Some(None, spread(better + (0.1 if higher else -0.1)), metric, higher, sticks)) == []
