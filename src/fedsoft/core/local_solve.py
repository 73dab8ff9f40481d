"""Local work over a stack of clients: what a solver is, the descent that first-order ones share, and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedsoft.core.batch_iterator import iterate_batches
from fedsoft.core.batches import GradientParts, Plan, Problem, check_rows
from fedsoft.core.client_data import ClientData
from fedsoft.core.compiled_solves import compiled_solve
from fedsoft.core.model import Layout, Model

OptimizerState = dict[str, Tensor]
"""What an optimizer keeps of each client between rounds, `[m, ...]`."""

EVALUATION_BLOCK = 256  # points of a client that are evaluated at once


@dataclass(frozen=True)
class Work:
    """What one client's job cost: gradients and plain evaluations, counted in points."""

    gradients: Tensor  # [m]
    evaluations: Tensor  # [m]

    @staticmethod
    def none(m: int) -> Work:
        return Work(torch.zeros(m, dtype=torch.int64), torch.zeros(m, dtype=torch.int64))


@runtime_checkable
class Solver(Protocol):
    """Minimizes the problem of each of m clients, all at once."""

    def init_state(self, w: Tensor, layout: Layout | None = None) -> OptimizerState:
        """Return the optimizer state of clients with models `w[m, P]` of that layout that have taken no step yet."""
        ...

    def solve(self, problem: Problem, w: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState, Tensor]:
        """Return the new models, the new state, and the gradients that each client computed, in points."""
        ...


class Stepper(Protocol):
    """The steps of a first-order solver, in place."""

    def step(self, number: int, w: Tensor, parts: GradientParts) -> None:
        """Take step `number` of the plan for the clients that have a batch there."""
        ...


@runtime_checkable
class FirstOrder(Protocol):
    """A solver that takes steps along gradients of batches."""

    @property
    def epochs(self) -> int:
        """Passes over the points."""
        ...

    @property
    def batch(self) -> int:
        """Points in a batch."""
        ...

    @property
    def shuffle(self) -> bool:
        """Whether points are drawn in a new order for every epoch."""
        ...

    def stepper(self, state: OptimizerState, plan: Plan) -> Stepper:
        """Return the stepper for a stack of clients and its plan; it works on `state` in place."""
        ...


@runtime_checkable
class Rated(Protocol):
    """A solver with a learning rate."""

    def slower(self, factor: float) -> Solver:
        """Return the same solver with its learning rate multiplied."""
        ...


def slowed(solver: Solver, factor: float) -> Solver:
    """Return a solver with its learning rate multiplied, or as it is where it has none that is known."""
    return solver.slower(factor) if isinstance(solver, Rated) else solver


def task_passes(solver: Solver) -> int:
    """Return how many gradients of every point one task takes."""
    return solver.epochs if isinstance(solver, FirstOrder) else 1


def descend(
    solver: FirstOrder, problem: Problem, w: Tensor, state: OptimizerState
) -> tuple[Tensor, OptimizerState, Tensor]:
    """Do mini-batch descent for all clients of the problem at once."""
    check_rows("the start of descent", w, len(problem.data), problem.model.size)
    if problem.prox is not None:
        problem.prox.check(len(problem.data), problem.model.size, w.dtype)
    if not int(problem.data.sizes.sum()):
        return w.clone(), {name: value.clone() for name, value in state.items()}, torch.zeros_like(problem.data.sizes)
    if (solved := compiled_solve(solver, problem, w, state)) is not None:
        return solved
    batches = iterate_batches(problem, w.dtype, batch=solver.batch, epochs=solver.epochs, shuffle=solver.shuffle)
    w = batches.stack(w)
    state = {name: batches.stack(value) for name, value in state.items()}
    stepper = solver.stepper(state, batches.plan)
    active = [w[:a] for a in batches.plan.active]
    for number, b in batches:
        stepper.step(number, active[b], batches.gradient_parts(active[b]))
        batches.settle(active[b])
    return batches.unstack(w), {name: batches.unstack(v) for name, v in state.items()}, batches.gradients


@dataclass(frozen=True)
class Block:
    """Up to EVALUATION_BLOCK consecutive points of every client that has them, padded."""

    rows: Tensor  # [a]: the clients
    places: Tensor  # [a, length]: place in the pool
    order: Tensor  # [a, length]: place among `data.points`
    real: Tensor  # [a, length]: False where padded


def blocks(data: ClientData) -> Iterator[Block]:
    """Yield all points of all clients as padded blocks, so that clients can be worked on together without a loop."""
    rows = torch.argsort(data.sizes, descending=True, stable=True)
    sizes, starts = data.sizes[rows], data.starts[rows]
    offsets = data.offsets[rows]
    for begin in range(0, int(sizes[0]) if len(data) else 0, EVALUATION_BLOCK):
        a = int((sizes > begin).sum())
        along = torch.arange(begin, min(begin + EVALUATION_BLOCK, int(sizes[0])), device=sizes.device)
        real = along < sizes[:a, None]
        inside = torch.where(real, along, 0)
        yield Block(rows[:a], starts[:a, None] + inside, offsets[:a, None] + inside, real)


def own_outputs(model: Model, data: ClientData, w: Tensor) -> Tensor:
    """Return the output of each client's own model `w[m, P]` on each of its points, in the order of `data.points`."""
    return _of_points(model.outputs, data, w)


def own_latents(model: Model, data: ClientData, w: Tensor) -> Tensor:
    """Return what the last layer of each client's own model `w[m, P]` is given for each of its points."""
    return _of_points(model.latents, data, w)


def _of_points(function: Callable[[Tensor, Tensor], Tensor], data: ClientData, w: Tensor) -> Tensor:
    result: Tensor | None = None
    for block in blocks(data):
        output = function(w[block.rows], data.x[block.places])[block.real]
        if result is None:
            result = output.new_empty((len(data.points), *output.shape[1:]))
        result[block.order[block.real]] = output
    # Without any point the shape of the outputs is still the model's.
    return function(w[:1], data.x[:0][None])[0] if result is None else result


def own_gradients(model: Model, data: ClientData, w: Tensor, point_weights: Tensor | None = None) -> Tensor:
    """Return the gradient of each client's mean loss at its own model `w[m, P]`, weighted by point where given."""
    total = torch.zeros_like(w)
    for block in blocks(data):
        weight = block.real.to(w.dtype) / data.sizes[block.rows, None]
        if point_weights is not None:
            weight = weight * point_weights[block.order]
        part = model.gradient(w[block.rows], data.x[block.places], data.y[block.places], weight)
        total.index_add_(0, block.rows, part)
    return total


def evaluation_block(x: Tensor, models: int) -> int:
    """Return how many points may go through this many models at once: a network's layers must fit into memory."""
    inputs = max(1, x[:1].numel())
    return max(16, min(65536, 2**19 // inputs) // max(1, models))


def losses_of_all(model: Model, data: ClientData, centers: Tensor) -> Tensor:
    """Return the loss of every point under every center, `[points, S]`, without a loop over clients."""
    count = len(centers)
    parts = []
    for places in data.points.split(evaluation_block(data.x, count)):
        x, y = model.inputs(data.x.index_select(0, places), centers.dtype), data.y.index_select(0, places)
        output = model.outputs(centers, x.expand(count, *x.shape))
        parts.append(model.loss(output, y.expand(count, *y.shape)).T)
    return torch.cat(parts) if parts else centers.new_zeros((0, count))
