from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.clusters.drift import LEAST, QUIET, watch
from fedsoft.core.contract import State
from fedsoft.training.notices import drift
from tests.helpers import fitted, record

AT = 16
NONE = torch.empty(0, 1)  # centers, which do not matter here


def seen(course: list[Tensor]) -> list[list[int]]:
    """Who is flagged in each round of a course of u."""
    state, found = State(NONE), []
    for u in course:
        state, changed = watch(State(NONE, u), state)
        found.append(changed)
    return found


def shares(first: list[float]) -> Tensor:
    a = torch.tensor(first).double()
    return torch.stack([a, 1 - a], dim=1)


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_a_client_that_leaves_its_usual_mixture_is_flagged_once() -> None:
    calm, left = shares([0.1, 0.5, 0.9]), shares([0.1, 0.9, 0.9])
    assert seen([calm] * 8 + [left] * 5) == [[]] * 8 + [[1]] + [[]] * 4


def test_nothing_is_flagged_before_it_has_been_calm() -> None:
    calm, left = shares([0.1, 0.5, 0.9]), shares([0.1, 0.9, 0.9])
    assert seen([calm] * QUIET + [left] * 5) == [[]] * (QUIET + 5)


def test_when_all_move_it_is_the_centers() -> None:
    assert not any(seen([shares([0.1, 0.2, 0.3])] * 10 + [shares([0.6, 0.7, 0.8])] * 10))


def test_a_restless_client_is_not_news() -> None:
    course = [shares([0.3, 0.4 + 0.2 * (-1) ** t, 0.8]) for t in range(30)]
    assert not any(seen(course)[QUIET + 2 :])
    assert not any(seen([shares([0.3, 0.4 + 0.9 * LEAST * (t > 8), 0.8]) for t in range(20)]))


def test_hard_choices_and_single_centers_are_not_watched() -> None:
    flips = [shares([0.0, 1.0, 1.0])] * 9 + [shares([0.0, 0.0, 1.0])] * 3
    assert not any(seen(flips))
    assert watch(State(NONE, torch.ones(3, 1)), State(NONE))[0].tensors().keys() == {"centers", "u"}
    assert watch(State(NONE), State(NONE))[0].tensors().keys() == {"centers"}


def test_rows_that_do_not_sum_to_one_are_scaled() -> None:
    course = [shares([0.1, 0.5, 0.9]) * (1 + 0.5 * (t % 2)) for t in range(12)]
    assert not any(seen(course))


def test_what_is_told_of_a_run() -> None:
    many = [str(k) for k in range(12)]
    one, more = drift([record(0), record(7, changed=["x"]), record(9, changed=many)])
    assert one.text == "after round 8 the mixture of 1 client had changed: x"
    assert more.text == "after round 10 the mixture of 12 clients had changed: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"


def test_a_few_undecided_points_are_no_news() -> None:
    """Of ten points four change their center: that may be chance; of a hundred points forty may not."""
    calm, left = shares([0.1, 0.5, 0.9]), shares([0.1, 0.9, 0.9])
    state = State(NONE)
    for points, flagged in ((10, []), (100, [1])):
        state = State(NONE)
        for u in [calm] * 8:
            state, _ = watch(State(NONE, u), state, torch.full((3,), points))
        assert watch(State(NONE, left), state, torch.full((3,), points))[1] == flagged


# --- data that changes ------------------------------------------------------------------------------------------------


def federation(change: tuple[int, float] | None, seed: int = 0, partition: str = "10:90") -> fs.Federation:
    return fs.datasets.synthetic(partition=partition, clients=30, change=change, seed=seed, test_points=50)


def test_some_clients_have_other_points_from_a_round_on() -> None:
    fed, still = federation((AT, 0.2)), federation(None)
    assert fed.before is not None
    assert fed.truth is not None
    assert still.truth is not None
    assert torch.equal(fed.before.x, still.train.x)
    moved = (fed.truth.mixture != still.truth.mixture).any(1)
    assert int(moved.sum()) == 6
    assert torch.equal(fed.truth.mixture[moved], still.truth.mixture[moved].flip(1))
    same = [k for k in range(30) if torch.equal(fed.before.client(k)[1], fed.train.client(k)[1])]
    assert same == torch.nonzero(~moved).flatten().tolist()
    assert torch.equal(fed.before.sizes, fed.train.sizes)
    assert len({fed.fingerprint, still.fingerprint}) == 2


def test_a_run_trains_on_the_points_of_its_round() -> None:
    fed = federation((2, 0.5))
    run = fitted(fs.FedAvg(), fed, 3)
    assert fed.before is not None
    for data, rounds in ((fed.before, 2), (fed.train, 3)):
        own = [np.linalg.lstsq(x.double().numpy(), y.double().numpy())[0] for x, y in map(data.client, range(30))]
        expected = np.average(own, axis=0, weights=data.sizes.numpy())
        part = fitted(fs.FedAvg(), fed, rounds)
        assert part.state.centers[0].numpy() == pytest.approx(expected, abs=1e-8)
    assert run.rounds == 3


METHODS = [
    fs.FedRoute(S=2, K=20, warm=1, hard=2),
    fs.FedSoft(S=2, weights="soft", aggregate="unmix", first="simplex"),
]


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_change_is_found_within_a_few_rounds_and_only_at_those_that_changed(algorithm: Any, seed: int) -> None:
    fed, still = federation((AT, 0.2), seed), federation(None, seed)
    assert fed.truth is not None
    assert still.truth is not None
    run = fs.fit(algorithm, fed, fs.models.linear(), rounds=AT + 8, seed=seed)
    moved = (fed.truth.mixture != still.truth.mixture).any(1)
    found = [(record.round, int(name)) for record in run.history for name in record.changed]
    assert {k for _, k in found} == set(torch.nonzero(moved).flatten().tolist())
    assert all(AT < t <= AT + 6 for t, _ in found)


@pytest.mark.parametrize("algorithm", [*METHODS, fs.FedSoft(S=2, K=20), fs.FedEM(S=2, first="simplex"), fs.IFCA(S=2)],
                         ids=lambda a: type(a).__name__)  # fmt: skip
@pytest.mark.parametrize("partition", ["10:90", "linear"])
def test_hardly_anybody_is_flagged_where_nothing_changes(algorithm: Any, partition: str) -> None:
    run = fs.fit(algorithm, federation(None, 3, partition), fs.models.linear(), rounds=25, seed=3)
    flagged = {name for record in run.history for name in record.changed}
    assert len(flagged) <= 1  # of 30 clients in 25 rounds: the test of each has a level
