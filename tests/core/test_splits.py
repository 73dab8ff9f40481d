"""Which points are held out: no group on both sides, time in order, and something left to train on for everybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import fedsoft as fs
from fedsoft.core.federation import Federation
from fedsoft.errors import InputError

Values = list[list[int]]
VALUES = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=25), min_size=1, max_size=6)
SHARES = st.floats(0, 0.99)


def numbered(sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Clients whose points know their place: x is the client and the row."""
    return [
        (np.column_stack([np.full(n, k), np.arange(n)]).astype(np.float64), np.zeros(n)) for k, n in enumerate(sizes)
    ]


def sides(values: Values, share: float, **split: Any) -> tuple[list[list[int]], list[list[int]]]:
    """The values of each client's training and held-out points."""
    fed = Federation.from_clients(numbered([len(own) for own in values]), held_out=share, split=split, seed=3)
    found = []
    for data in (fed.train, fed.held_out):
        found.append([[values[k][int(row)] for row in data.client(k)[0][:, 1]] for k in range(len(values))])
    for k, own in enumerate(values):
        assert sorted(found[0][k] + found[1][k]) == sorted(own)  # no point is lost or there twice
    return found[0], found[1]


@given(values=VALUES, share=SHARES)
def test_no_group_is_on_both_sides_and_everybody_trains(values: Values, share: float) -> None:
    train, held_out = sides(values, share, group=values)
    assert not {g for own in train for g in own} & {g for own in held_out for g in own}
    assert all(train)


@given(values=VALUES, share=SHARES)
def test_what_is_held_out_comes_last_and_is_the_share(values: Values, share: float) -> None:
    train, held_out = sides(values, share, time=values)
    for before, after in zip(train, held_out, strict=True):
        assert before
        assert len(after) == int((len(before) + len(after)) * share)
        assert not after or max(before) <= min(after)


def test_own_groups_are_held_out_up_to_the_share() -> None:
    values = [[g for g in range(10) for _ in range(5)]]
    _, held_out = sides(values, 0.3, group=values)
    assert len(held_out[0]) == 15


def test_dates_may_be_text() -> None:
    dates = [["2026-03-01", "2025-12-31T23:59", "2026-01-02"]]
    fed = Federation.from_clients(numbered([3]), held_out=0.4, split={"time": dates})
    assert fed.held_out.x.tolist() == [[0, 0]]


def test_a_column_tells_what_is_held_out() -> None:
    values = [[1, 5, 5], [2, 5]]
    train, held_out = sides(values, 0.2, column=values, test=["5"])
    assert (train, held_out) == ([[1], [2]], [[5, 5], [5]])


def test_points_may_be_given() -> None:
    fed = Federation.from_clients(
        numbered([3, 2]), names=["a", "b"], split={"test": {"b": (np.ones((1, 2)), np.ones(1))}}
    )
    assert (fed.train.sizes.tolist(), fed.held_out.sizes.tolist()) == ([3, 2], [0, 1])


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"column": [[1, 1]], "test": [1]}, "client '0': all of its 2 points are held out"),
        ({"time": [["31.12.2026", "x"]]}, "split.time should be numbers or dates"),
        ({"time": [[1]]}, "split.time should have an array for each of 1 clients"),
        ({"time": [[1, 2]], "group": [[1, 2]]}, "split has time and group"),
        ({"column": [[1, 2]]}, "split has column, should have column and test"),
        ({"test": {"z": (np.ones((1, 2)), np.ones(1))}}, "unknown client 'z'"),
        ({"test": []}, "test has 0 parts for 1 clients"),
    ],
)
def test_bad_splits_are_one_sentence(split: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Federation.from_clients(numbered([2]), split=split)


# --- what clients may be given as -------------------------------------------------------------------------------------


class Letters(Dataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[torch.Tensor, str]:
        return torch.full((2,), float(i)), "bab"[i]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(np.array([i, i]), "c") for i in range(2)])


def test_torch_data_sets_are_clients_and_text_is_classes() -> None:
    fed = Federation.from_clients([Letters(), Stream(), (np.ones((1, 2)), ["a"])], held_out=0.0)
    assert fed.train.x.tolist() == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1], [1, 1]]
    assert fed.train.y.tolist() == [1, 0, 1, 2, 2, 0]
    assert fed.columns.classes == ("a", "b", "c")
    assert fed.new_client(np.ones((1, 2)), ["c"])[1].tolist() == [2]
    with pytest.raises(InputError, match="unknown class 'd'"):
        fed.new_client(np.ones((1, 2)), ["d"])


def test_the_order_of_classes_can_be_told() -> None:
    clients = [(np.ones((2, 1)), ["low", "high"])]
    fed = Federation.from_clients(clients, classes=["low", "mid", "high"], held_out=0.0)
    assert (fed.train.y.tolist(), fed.shape.outputs) == ([0, 2], 3)


def test_tensor_data_sets_are_taken_and_loaders_refused() -> None:
    tensors = TensorDataset(torch.eye(2), torch.tensor([0, 1]))
    assert Federation.from_clients([tensors], held_out=0.0).train.y.tolist() == [0, 1]
    with pytest.raises(InputError, match=r"client '0' is a DataLoader, should be the data set in it: loader\.dataset"):
        Federation.from_clients([DataLoader(tensors)])


@pytest.mark.parametrize("kind", [bool, np.int64, np.float32])
def test_labels_that_apply_together(kind: type) -> None:
    y = np.array([[1, 0, 1], [0, 0, 0]]).astype(kind)
    fed = Federation.from_clients([(np.ones((2, 4)), y)], task="multilabel", held_out=0.0)
    assert (fed.shape.task, fed.shape.outputs, fed.train.y.tolist()) == ("multilabel", 3, [[1, 0, 1], [0, 0, 0]])


def test_labels_that_apply_together_need_the_task() -> None:
    x, y = np.ones((2, 4)), np.ones((2, 5), dtype=int)
    with pytest.raises(InputError, match=r"y has shape \[points, 5\].*task = 'multilabel'"):
        Federation.from_clients([(x, y)])
    with pytest.raises(InputError, match="y holds 2, labels should be 0 or 1"):
        Federation.from_clients([(x, 2 * y)], task="multilabel")


def test_a_value_that_no_point_has_is_an_error_and_not_an_empty_test_set() -> None:
    with pytest.raises(InputError) as caught:
        Federation.from_clients(numbered([3]), split={"column": [["red", "blue", "red"]], "test": ["Blue"]})
    assert str(caught.value) == (
        "split.test: unknown value of the column 'Blue': did you mean 'blue'? (known: blue, red)"
    )


def test_held_out_points_that_are_trained_on_are_counted() -> None:
    x, y = np.array([[1.0, 2], [-1, -2], [3, 4]]), np.array([0.5, 0.5, 1.5])
    same, other_target, opposite, other_client = (x[:1], y[:1]), (x[:1], y[2:]), (-x[2:], y[2:]), (x[2:], y[2:])

    def notices(*test: tuple[np.ndarray, np.ndarray]) -> tuple[str, ...]:
        points = tuple(np.concatenate(part) for part in zip(*test, strict=True))
        clients = [(x[:2], y[:2]), (x[2:], y[2:])]
        return Federation.from_clients(clients, names=["a", "b"], split={"test": {"a": points}}).notices

    assert notices(other_target, opposite, other_client) == ()
    (said,) = notices(same, opposite, (x[1:2].astype(np.float32), y[1:2]))
    assert said == "2 of 3 held-out points are training points of the same client, too"


def test_the_fingerprint_covers_held_out_points_and_test_sets() -> None:
    fed = Federation.from_clients(numbered([4, 3]), held_out=0.3)
    held_out = replace(fed.held_out, y=fed.held_out.y + 1)
    changed = replace(fed, held_out=held_out).fingerprint
    half = len(changed) // 2
    assert changed[:half] == fed.fingerprint[:half]
    assert changed[half:] != fed.fingerprint[half:]
    made = fs.datasets.synthetic(clients=3, points=(4, 6), test_points=5)
    assert made.truth is not None
    tests = tuple((x, y + 1) for x, y in made.truth.tests)
    assert replace(made, truth=replace(made.truth, tests=tests)).fingerprint != made.fingerprint
