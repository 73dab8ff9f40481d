"""Whether a run has come to rest, by courses that are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

import fedsoft as fs
from fedsoft.errors import DivergedError
from fedsoft.training.records import RoundRecord
from fedsoft.training.settled import settled
from tests.helpers import record


def course(values: Sequence[float]) -> list[RoundRecord]:
    return [replace(record(t), best=[value]) for t, value in enumerate(values)]


def test_a_flat_end_is_rest_and_a_slope_is_not() -> None:
    falling = [100 - t for t in range(40)]
    resting = [10 + 90 * math.exp(-t) for t in range(40)]
    assert settled(course(falling), higher_is_better=False) is False
    assert settled(course(resting), higher_is_better=False) is True
    assert settled(course(falling), higher_is_better=True) is True  # it gets worse: more rounds do not help
    assert settled(course([1 - value / 200 for value in falling]), higher_is_better=True) is False


def test_noise_around_a_level_is_rest() -> None:
    assert settled(course([9, *(5 + 0.3 * (-1) ** t for t in range(30))]), higher_is_better=False) is True


def test_nothing_is_said_of_few_rounds() -> None:
    assert settled(course([9, 8, 7, 6, 5, 4, 3]), higher_is_better=False) is None
    assert settled([record(t) for t in range(20)], higher_is_better=False) is None


@pytest.mark.parametrize("algorithm", [fs.FedAvg(), fs.FedSoft(S=2)], ids=["fedavg", "fedsoft"])
def test_a_run_that_diverges_in_its_first_round_is_not_finished(algorithm: fs.FedAvg | fs.FedSoft) -> None:
    made = fs.datasets.synthetic(clients=4, points=(20, 30), test_points=10)
    clients = [made.train.client(k) for k in range(4)]
    own = fs.Federation.from_clients(clients, held_out=0.2)  # nothing is known of its sources
    for federation in (made, own):
        with pytest.raises(DivergedError, match=r"after round 1, .* times that of the start"):
            fs.fit(algorithm, federation, fs.models.linear(), rounds=1, solver=fs.SGD(lr=3.0, epochs=3))
