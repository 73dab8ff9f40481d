from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.clusters.least_squares import parted, solved
from fedsoft.core.replies import Answer
from fedsoft.engine.client_store import Budget, ClientStore
from tests.helpers import engine_for, federation


def replies(**values: Any) -> Answer:
    """What clients answered, one row each."""
    rows = {name: torch.tensor(value).double() for name, value in values.items()}
    count = len(next(iter(rows.values())))
    vault = ClientStore(count, Budget(2**20))
    vault.put(np.arange(count), rows)
    return Answer(np.arange(count), {name: vault.column(name) for name in vault})


def test_centers_solve_the_sums_and_stay_without_points() -> None:
    answer = replies(gram=[[[[2.0]], [[0.0]]], [[[6.0]], [[0.0]]]], sum=[[[2.0], [0.0]], [[22.0], [0.0]]])
    c = torch.tensor([[7.0], [5.0]]).double()
    assert solved(c, answer, torch.ones(1, 2).double()).flatten().tolist() == pytest.approx([3.0, 5.0])
    assert solved(c, answer, torch.tensor([[0.0, 1.0]]).double())[0].item() == pytest.approx(22 / 6)


def scene(misfit: list[float]) -> tuple[Tensor, Answer]:
    """Centers 0 and 1 at the same place, 2 elsewhere; the second client's own least squares for 2 is 9."""
    gram = [[[[1.0]], [[1.0]], [[4.0]]], [[[1.0]], [[1.0]], [[2.0]]]]
    sums = [[[1.0], [1.0], [16.0]], [[1.0], [1.0], [18.0]]]
    given = [[5.0, 4.0, 6.0], [5.0, 4.0, 6.0]]
    return torch.tensor([[1.0], [1.05], [5.0]]).double(), replies(
        gram=gram, sum=sums, n=given, misfit=[[m * n * share for m, n in zip(misfit, given[0], strict=True)]
                                              for share in (0.5, 1.5)],
    )  # fmt: skip


def test_a_twin_starts_again_where_points_fit_badly() -> None:
    new, answer = scene([1.0, 1.0, 3.0])
    found = parted(new, new, answer)
    assert found is not None
    assert found.flatten().tolist() == pytest.approx([1.0, 9.0, 5.0])  # the twin of fewer points, at the worst client


@pytest.mark.parametrize("misfit", [[1.0, 1.0, 1.5], [3.0, 1.0, 1.0]], ids=["all fit", "a twin itself fits badly"])
def test_twins_stay_where_nobody_needs_them(misfit: list[float]) -> None:
    new, answer = scene(misfit)
    assert parted(new, new, answer) is None


def test_centers_that_are_apart_stay() -> None:
    new, answer = scene([1.0, 1.0, 3.0])
    assert parted(new, torch.tensor([[1.0], [3.0], [5.0]]).double(), answer) is None


def test_sources_are_found_from_twins() -> None:
    """Three sources; two centers begin at the same one, the third between the others: EM alone stays there."""
    rng, theta = np.random.default_rng(0), np.array([[3.0, 0.0], [-3.0, 3.0], [-3.0, -3.0]])
    pairs = []
    for _ in range(20):
        x, source = rng.standard_normal((60, 2)), rng.choice(3, 60, p=rng.dirichlet(np.ones(3)))
        pairs.append((x, (x * theta[source]).sum(1) + 0.1 * rng.standard_normal(60)))
    engine = engine_for(
        fs.FedRoute(S=3, first="xavier"), federation(pairs), fs.models.linear(), seed=0, dtype="float64"
    )
    first = torch.tensor([[3.0, 0.05], [3.0, -0.05], [-3.0, 0.0]]).double()
    ends = []
    for rounds in (4, 25):
        with torch.no_grad():
            state = engine.start().update(centers=first)
            for t in range(rounds):
                state, _ = engine.round(state, t)
        ends.append(float(torch.cdist(torch.from_numpy(theta), state.centers).amin(1).max()))
    assert ends[0] > 1
    assert ends[1] < 0.05
