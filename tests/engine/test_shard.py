"""Shards of clients: where they are cut, and that their points arrive as they were."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsoft.core.client_data import Augment, ClientData
from fedsoft.engine.shard import Points, cuts


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 40))
def test_every_shard_has_clients_and_none_has_much_more_than_its_part(sizes: list[int], shards: int) -> None:
    shards = min(shards, len(sizes))
    found = cuts(torch.tensor(sizes), shards)
    assert found[0] == 0
    assert found[-1] == len(sizes)
    assert (np.diff(found) >= 1).all()
    if len(sizes) >= shards * max(sizes):  # nobody is larger than a part, so no shard had to be filled up
        points = np.add.reduceat(sizes, found[:-1])
        assert points.max() <= sum(sizes) / shards + max(sizes)


def test_the_cuts_of_a_case_by_hand() -> None:
    assert cuts(torch.tensor([3, 3, 3, 3]), 2).tolist() == [0, 2, 4]
    assert cuts(torch.tensor([9, 1, 1, 1]), 3).tolist() == [0, 1, 2, 4]
    assert cuts(torch.tensor([1, 1, 1, 9]), 3).tolist() == [0, 2, 3, 4]
    assert cuts(torch.tensor([5]), 1).tolist() == [0, 1]


def test_points_arrive_as_they_were_wherever_they_lay_in_the_pool() -> None:
    x, y = torch.arange(20, dtype=torch.uint8).view(10, 2), torch.arange(10)
    together = ClientData(x, y, torch.tensor([0, 3, 4, 8]), torch.tensor([3, 1, 4, 2]), Augment(pad=1, flip=True))
    scattered = ClientData(x, y, torch.tensor([6, 0, 2, 5]), torch.tensor([3, 2, 0, 1]))
    for data in (together, scattered):
        sent = Points.of(data, 1, 4)
        got = sent.data()
        assert sent.bytes == sent.x.nbytes + sent.y.nbytes + 3 * 8
        assert len(sent.y) == int(data.sizes[1:].sum())
        assert got.augment == data.augment
        for k in range(3):
            for one, other in zip(got.client(k), data.client(k + 1), strict=True):
                assert torch.equal(one, other)
