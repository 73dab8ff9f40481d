"""What Adam and SGD share: a ragged stack of clients behaves as if each client were alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core.batches import Problem, Prox
from fedsoft.core.client_data import ClientData
from fedsoft.core.local_solve import OptimizerState
from fedsoft.core.model import Builder, Model
from tests.helpers import Pairs, class_clients, problem, random_stack, regression_clients, shape_of
from tests.solvers.per_client import Optimiser, PerClient

BATCH, EPOCHS = 5, 2

SOLVERS: dict[str, tuple[fs.Adam | fs.SGD, Optimiser]] = {
    "adam": (
        fs.Adam(lr=0.03, beta1=0.8, beta2=0.95, eps=1e-6, batch=BATCH, epochs=EPOCHS),
        lambda w: torch.optim.Adam(w, lr=0.03, betas=(0.8, 0.95), eps=1e-6),
    ),
    "sgd": (fs.SGD(lr=0.02, batch=BATCH, epochs=EPOCHS), lambda w: torch.optim.SGD(w, lr=0.02)),
    "momentum": (
        fs.SGD(lr=0.02, momentum=0.9, batch=BATCH, epochs=EPOCHS),
        lambda w: torch.optim.SGD(w, lr=0.02, momentum=0.9),
    ),
}
MODELS: dict[str, tuple[Builder, Pairs]] = {
    "linear": (fs.models.linear(), regression_clients()),
    "softmax": (fs.models.linear(bias=True), class_clients()),
    "mlp": (fs.models.mlp(hidden=[4]), class_clients()),
    "columns": (lambda shape: fs.models.linear()(shape).by("stacked"), regression_clients()),
    "rows": (lambda shape: fs.models.linear(bias=True)(shape).by("stacked"), class_clients()),
}


def built(name: str) -> tuple[Model, Pairs, ClientData]:
    build, pairs = MODELS[name]
    return build(shape_of(pairs)), pairs, ClientData.concat(pairs)


def pulls(model: Model, m: int, round: int) -> tuple[Tensor, Tensor]:
    """Weights `[m, 3]` and three centers, others in each round."""
    rng = torch.Generator().manual_seed(round)
    return torch.rand(m, 3, generator=rng, dtype=torch.float64), random_stack(model, 3, seed=round + 1)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_ragged_stack_equals_torch_optim_client_by_client_over_rounds(solver: str, kind: str) -> None:
    # Bias corrections depend on each client's own number of steps, and must go on where the last round stopped.
    ours, make = SOLVERS[solver]
    model, pairs, data = built(kind)
    w = random_stack(model, len(pairs))
    state = ours.init_state(w)
    alone = PerClient.at(model, pairs, w, make)
    for t in range(3):
        u, centers = pulls(model, len(pairs), t)
        w, state, _ = ours.solve(problem(model, data, Prox.to_centers(u, centers)), w, state)
        expected = alone.round(u, centers, batch=BATCH, epochs=EPOCHS)
        assert torch.allclose(w, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
def test_weights_of_points_scale_their_losses(solver: str) -> None:
    ours, make = SOLVERS[solver]
    model, pairs, data = built("linear")
    w = random_stack(model, len(pairs))
    weights = [torch.rand(len(y), dtype=torch.float64) for _, y in pairs]
    u, centers = pulls(model, len(pairs), 0)
    solved, _, _ = ours.solve(
        problem(model, data, Prox.to_centers(u, centers), torch.cat(weights)), w, ours.init_state(w)
    )
    expected = PerClient.at(model, pairs, w, make).round(u, centers, batch=BATCH, epochs=EPOCHS, point_weights=weights)
    assert torch.allclose(solved, expected, rtol=0, atol=1e-10)


def solve_twice(ours: fs.Adam | fs.SGD, model: Model, pairs: Pairs, w: Tensor) -> tuple[Tensor, OptimizerState]:
    state = ours.init_state(w)
    for _ in range(2):
        w, state, _ = ours.solve(problem(model, ClientData.concat(pairs)), w, state)
    return w, state


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_huge_client_in_the_stack_touches_neither_parameters_nor_optimizer_state_of_the_others(
    solver: str, kind: str
) -> None:
    # Beside it the others are mostly padding.
    model, pairs, _ = built(kind)
    huge = MODELS[kind][1][0]
    huge = (huge[0].repeat(60, 1) * 50, huge[1].repeat(60))
    w = random_stack(model, len(pairs) + 1)
    alone, kept_alone = solve_twice(SOLVERS[solver][0], model, pairs, w[:-1])
    among, kept_among = solve_twice(SOLVERS[solver][0], model, [*pairs, huge], w)
    assert torch.allclose(among[:-1], alone, rtol=0, atol=1e-12)
    for name, value in kept_alone.items():
        assert torch.allclose(kept_among[name][:-1], value, rtol=0, atol=1e-12), name


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_order_of_points_matters_only_when_shuffled(solver: str) -> None:
    model, pairs, data = built("linear")
    w = random_stack(model, len(pairs))
    shuffled = SOLVERS[solver][0]
    in_order = replace(shuffled, shuffle=False)
    a, b = (s.solve(problem(model, data), w, s.init_state(w))[0] for s in (shuffled, in_order))
    assert not torch.allclose(a, b, atol=1e-6)
    # Without shuffling no generator is asked for: the problem need not have any.
    broken = Problem(model, data, None, None, lambda: pytest.fail("asked for a draw"))
    assert torch.equal(in_order.solve(broken, w, in_order.init_state(w))[0], b)
