"""Ways from a center to models of clients, on losses that can be written down."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.clusters.personal_way import (
    HELD_BACK,
    LARGEST_FACTOR,
    SCALES,
    TASKS,
    Trial,
    hold_back,
    lowest,
    taken,
    task_solver,
)
from fedsoft.core.batches import Prox
from fedsoft.core.contract import Way
from fedsoft.core.local_solve import Work
from fedsoft.core.site import Site
from tests.helpers import RAGGED, federation, regression_clients, shape_of


def parabola(best: float) -> Tensor:
    """Losses at the scales, lowest at `best`."""
    return (torch.tensor(SCALES).double() - best).square() + 1


def minimum(own: Tensor, sizes: Tensor):
    """Solve the problem of clients with n_k f_k = n_k/2 |w - own_k|^2 exactly."""

    def solve(w: Tensor, pull: Prox, task: int) -> Tensor:
        return (own + pull.target) / (1 + pull.strength)

    return solve


@pytest.mark.parametrize("best", [0.0, 0.05, 0.3, 0.84, 1.0, 1.37, 1.5])
def test_the_lowest_scale_of_a_parabola(best: float) -> None:
    scale, loss = lowest(parabola(best))
    assert (scale, loss) == (pytest.approx(best, abs=0.06 if best < 0.1 else 1e-6), pytest.approx(1, abs=3e-3))


def test_a_way_by_hand() -> None:
    """Two tasks of strengths 4 and 12 for clients of 4 and 2 points: each keeps n / (n + strength) of the way."""
    c, own, sizes = torch.zeros(2, 1).double(), torch.tensor([[1.0], [2.0]]).double(), torch.tensor([4, 2])
    found = taken(Way((4.0, 12.0), 0.5), c, sizes, minimum(own, sizes))
    assert found.flatten().tolist() == pytest.approx([0.5 * (4 / 8 + 4 / 16) / 2, 0.5 * 2 * (2 / 6 + 2 / 14) / 2])


@pytest.mark.parametrize("solver", [fs.SGD(lr=0.3), fs.Adam(lr=0.3), fs.AdamW(lr=0.3)])
def test_steps_become_smaller_from_task_to_task(solver: fs.SGD | fs.Adam | fs.AdamW) -> None:
    assert task_solver(solver, 0) == solver
    assert task_solver(solver, 2) == replace(solver, lr=0.3 / 3)
    assert task_solver(fs.Exact(), 2) == fs.Exact()


def test_no_way_and_no_scale_are_the_center() -> None:
    c, sizes = torch.randn(3, 2).double(), torch.tensor([1, 2, 3])
    solve = minimum(torch.zeros(3, 2).double(), sizes)
    assert torch.equal(taken(Way((), 1.0), c, sizes, solve), c)
    assert torch.equal(taken(Way((1.0, 2.0), 0.0), c, sizes, solve), c)


def test_models_that_went_too_far_are_pulled_more_and_others_less() -> None:
    begun = Trial.begin(1.0)
    assert begun.after(parabola(0.8)).strength == pytest.approx(0.8**-2)
    assert begun.after(parabola(1.25)).strength == pytest.approx(1.25**-2)
    assert begun.after(parabola(0.2)).strength == LARGEST_FACTOR
    assert begun.after(parabola(0.0)).strength == LARGEST_FACTOR
    assert begun.after(parabola(0.8)).way == Way((1.0,), 0.8)


def test_a_trial_ends_where_the_loss_rises_and_keeps_the_best_way() -> None:
    trial = Trial.begin(1.0)
    for loss in (3.0, 2.0):
        trial = trial.after(parabola(0.5) + loss)
        assert not trial.over
    best = trial.way
    trial = trial.after(parabola(0.5) + 2.5)
    assert (trial.over, trial.way) == (True, best)
    assert best.strengths == pytest.approx((1.0, 4.0))


def test_a_trial_has_so_many_tasks_at_most() -> None:
    trial, tasks = Trial.begin(1.0), 0
    while not trial.over:
        trial, tasks = trial.after(parabola(1.0) - tasks), tasks + 1
    assert (tasks, trial.way) == (TASKS, Way((1.0,) * TASKS, 1.0))


def test_the_trial_finds_the_strength_that_gaussian_clients_have() -> None:
    """Clients N(c, width^2) whose n points tell their own way up to noise: the best strength is width^-2."""
    clients, size, n, width = 400, 4, 5, 0.5
    rng = torch.Generator().manual_seed(0)
    true = width * torch.randn(clients, size, generator=rng, dtype=torch.float64)
    own = true + torch.randn(clients, size, generator=rng, dtype=torch.float64) / n**0.5
    c, sizes = torch.zeros(clients, size).double(), torch.full((clients,), n)
    trial, losses = Trial.begin(1e-3), c
    for task in range(40):
        each = trial.strength / n
        w = minimum(own, sizes)(c, Prox(torch.full((clients, 1), each).double(), each * c), task)
        losses = torch.stack([(scale * w - true).square().sum() for scale in SCALES])
        trial = trial.after(losses)
    assert trial.strength == pytest.approx(width**-2, rel=0.1)
    assert lowest(losses)[0] == pytest.approx(1.0, abs=0.02)


def test_points_are_held_back_by_name_and_all_come_back() -> None:
    pairs = regression_clients((*RAGGED, 1))
    data = federation(pairs).train
    model = fs.models.linear()(shape_of(pairs))
    names = [str(k) for k in range(len(pairs))]
    site = Site(model, data, fs.Exact(), names, 0, 3, torch.float64, work=Work.none(len(pairs)))
    rest, back = hold_back(site, "held back")
    assert back.data.sizes.tolist() == [round(HELD_BACK * n) if n > 1 else 0 for n in (*RAGGED, 1)]
    for k in range(len(pairs)):
        both = torch.cat([rest.data.client(k)[1], back.data.client(k)[1]]).sort().values
        assert torch.equal(both, data.client(k)[1].sort().values)
    one = Site(model, data.take([2]), fs.Exact(), ["2"], 0, 3, torch.float64, work=Work.none(1))
    assert torch.equal(hold_back(one, "held back")[1].data.client(0)[1], back.data.client(2)[1])
