from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core import local_solve as local
from fedsoft.core.batches import Prox
from fedsoft.core.client_data import ClientData
from fedsoft.core.model import Model
from fedsoft.errors import InputError
from tests.helpers import Pairs, class_clients, problem, random_stack, regression_clients, shape_of


def linear(pairs: Pairs) -> Model:
    return fs.models.linear()(shape_of(pairs))


def objective(pair: tuple[Tensor, Tensor], w: Tensor, u: Tensor, centers: Tensor) -> Tensor:
    """h_k(w), written out."""
    x, y = pair
    value = ((x @ w - y) ** 2).mean()
    for s in range(len(centers)):
        value = value + u[s] / 2 * ((w - centers[s]) ** 2).sum()
    return value


@pytest.mark.parametrize("block", [4, 256])
def test_the_gradient_of_the_local_objective_vanishes_at_the_solution(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "EVALUATION_BLOCK", block)  # clients of more points than a block are summed up
    pairs = regression_clients()
    model = linear(pairs)
    u, centers = torch.rand(len(pairs), 3, dtype=torch.float64), random_stack(model, 3)
    w, _, _ = fs.Exact().solve(
        problem(model, ClientData.concat(pairs), Prox.to_centers(u, centers)), random_stack(model, len(pairs)), {}
    )
    for k, pair in enumerate(pairs):
        at = w[k].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(pair, at, u[k], centers), at)
        assert float(gradient.abs().max()) < 1e-10


@pytest.mark.parametrize("scales", [(1.0,) * 10, tuple(10.0 ** (k / 3) for k in range(10))], ids=["alike", "uneven"])
def test_with_fewer_points_than_parameters_and_no_pull_the_solution_is_the_one_nearest_to_the_start(
    scales: tuple[float, ...],
) -> None:
    for seed in range(20):
        pairs = [(x * torch.tensor(scales), y) for x, y in regression_clients((3, 6, 9), dimension=10, seed=seed)]
        model = linear(pairs)
        prox = Prox.to_centers(torch.zeros(3, 2, dtype=torch.float64), random_stack(model, 2))
        start = random_stack(model, 3)
        w, _, _ = fs.Exact().solve(problem(model, ClientData.concat(pairs), prox), start, {})
        for k, (x, y) in enumerate(pairs):
            nearest = start[k].numpy() + np.linalg.lstsq(x.numpy(), (y - x @ start[k]).numpy())[0]
            assert w[k].numpy() == pytest.approx(nearest, rel=1e-6, abs=1e-6 * np.abs(nearest).max())


def test_the_solution_does_not_depend_on_where_the_solve_starts() -> None:
    pairs = regression_clients()
    model = linear(pairs)
    task = problem(model, ClientData.concat(pairs))
    a, b = (fs.Exact().solve(task, random_stack(model, len(pairs), seed=seed), {})[0] for seed in (0, 1))
    assert torch.allclose(a, b, atol=1e-10)


def test_a_point_of_weight_2_counts_like_two_points() -> None:
    x, y = regression_clients((6,))[0]
    model = linear([(x, y)])
    weights = torch.tensor([2.0, 1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    kept = torch.tensor([0, 0, 1, 2, 4, 5])
    start = random_stack(model, 1)
    weighted = fs.Exact().solve(problem(model, ClientData.concat([(x, y)]), point_weights=weights), start, {})[0]
    repeated = fs.Exact().solve(problem(model, ClientData.concat([(x[kept], y[kept])])), start, {})[0]
    assert torch.allclose(weighted, repeated, atol=1e-10)


def test_models_that_are_not_linear_are_refused() -> None:
    pairs = class_clients()
    model = fs.models.mlp()(shape_of(pairs))
    with pytest.raises(InputError, match="needs the model 'linear'"):
        fs.Exact().solve(problem(model, ClientData.concat(pairs)), random_stack(model, len(pairs)), {})
