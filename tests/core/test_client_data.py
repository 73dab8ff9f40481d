from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsoft.core.client_data import ClientData


def numbered(sizes: list[int]) -> ClientData:
    """Clients whose points are the numbers 0, 1, 2, ..."""
    values = torch.arange(sum(sizes), dtype=torch.float64)
    parts = values.split(sizes)
    return ClientData.concat([(part[:, None], part) for part in parts])


def test_each_client_gets_back_the_points_it_came_with() -> None:
    clients = [(torch.randn(n, 2), torch.randn(n)) for n in (3, 0, 5)]
    data = ClientData.concat(clients)
    assert data.sizes.tolist() == [3, 0, 5]
    for k, (x, y) in enumerate(clients):
        assert torch.equal(data.client(k)[0], x)
        assert torch.equal(data.client(k)[1], y)


def test_take_keeps_the_order_asked_for_and_copies_no_point() -> None:
    data = numbered([2, 3, 1, 4])
    some = data.take([3, 0, 2])
    assert some.x.data_ptr() == data.x.data_ptr()
    assert some.sizes.tolist() == [4, 2, 1]
    assert [some.client(k)[1].tolist() for k in range(3)] == [[6, 7, 8, 9], [0, 1], [5]]


def test_take_of_take_refers_to_the_rows_of_the_first() -> None:
    assert numbered([2, 3, 1, 4]).take([3, 1]).take([1]).client(0)[1].tolist() == [2, 3, 4]


def test_take_of_nobody_has_no_clients_and_no_points() -> None:
    nobody = numbered([2, 3]).take(np.array([], dtype=np.int64))
    assert len(nobody) == 0
    assert len(nobody.points) == 0


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.randoms())
def test_points_and_owners_list_every_point_client_after_client(sizes: list[int], random: Random) -> None:
    ids = list(range(len(sizes)))
    random.shuffle(ids)
    data = numbered(sizes).take(ids)
    expected = [(row, value) for row in range(len(ids)) for value in data.client(row)[1].tolist()]
    assert list(zip(data.owners.tolist(), data.y[data.points].tolist(), strict=True)) == expected


def test_mean_by_client_is_the_mean_over_the_clients_own_points() -> None:
    data = numbered([2, 3, 1]).take([2, 1, 0])
    assert data.mean_by_client(data.y[data.points]).tolist() == [5.0, 3.0, 0.5]


def test_mean_by_client_keeps_further_axes() -> None:
    data = numbered([2, 2])
    values = torch.tensor([[1.0, 0.0], [0.0, 4.0], [2.0, 2.0], [4.0, 0.0]])
    assert data.mean_by_client(values).tolist() == [[0.5, 2.0], [3.0, 1.0]]


def test_mean_of_a_client_without_points_is_not_a_number_and_spoils_no_other() -> None:
    means = numbered([2, 0, 2]).mean_by_client(torch.ones(4, dtype=torch.float64))
    assert means.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moving_changes_the_precision_of_numbers_but_not_of_labels(dtype: torch.dtype) -> None:
    data = ClientData.concat([(torch.ones(2, 1), torch.tensor([0, 1]))]).to("cpu", dtype)
    assert data.x.dtype == dtype
    assert data.y.dtype == torch.int64
