"""All clients of a problem, step by step through their batches: one class for each memory layout."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.batches import GradientParts, Plan, Problem, Prox, check_rows, plan_batches
from fedsoft.core.client_data import ClientData, augmented
from fedsoft.core.client_draws import Draws
from fedsoft.core.draws import sub_key
from fedsoft.core.mapped import MappedRows
from fedsoft.core.model import Step, as_numbers

Vary = Callable[[Tensor, Tensor], Tensor]
"""Images, and their places among the points of the clients, to other images."""

FEW = 40  # parameters; beyond that, products of matrices, one for each client, are as fast


@runtime_checkable
class ColumnBackend(Protocol):
    """A model's backend that can also compute with clients along the last axis (see `models.linear`)."""

    def to_columns(self, x: Tensor) -> Tensor:
        """Return inputs `[points, ...]` as `[features, points]`."""
        ...

    def column_weights(self, weight: Tensor) -> Tensor:
        """Return weights of points as `column_gradient` needs them."""
        ...

    def column_gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient `[a, P]` at `w[a, P]` for `x[features, B, a]`, `y[B, a]` and `weight[B, a]`."""
        ...


def iterate_batches(
    problem: Problem, dtype: torch.dtype, *, batch: int, epochs: int, shuffle: bool
) -> BatchIterator:  # fmt: skip
    """Return the iterator for the memory layout that is fastest for the model.

    A product of tiny matrices for each client would cost several times its arithmetic, so models of a few parameters
    have clients along the last axis where their backend can do that.
    """
    model = problem.model
    tiny = model.size <= FEW and problem.data.augment is None and isinstance(model.backend, ColumnBackend)
    layout = ColumnBatches if tiny else RowBatches
    return layout(problem, dtype, batch=batch, epochs=epochs, shuffle=shuffle)


class BatchIterator(abc.ABC):
    """All clients of a problem on their way through their batches.

    Iterating gives the number of the step and of the batch in its epoch; `gradient` is then that of this batch, for the
    leading `plan.active[batch]` clients of a stack. Bring rows into the order of the stack with `stack`, back with
    `unstack`.
    """

    axis: ClassVar[int]  # of points in memory, and of clients in a batch
    statistics: Tensor | None = None  # of the last batch, where the model keeps any

    def __init__(self, problem: Problem, dtype: torch.dtype, *, batch: int, epochs: int, shuffle: bool) -> None:
        data = problem.data
        self.model, self.point_weights, self.sizes = problem.model, problem.point_weights, data.sizes
        draws = problem.draws() if shuffle or data.augment or problem.model.needs_step else None
        plan = plan_batches(data, batch, epochs, draws if shuffle else None, dtype)
        self.plan = plan = replace(plan, layout=problem.model.layout, t=problem.t)
        self.variations = _variations(data, epochs, draws)
        self.steps = _Steps(plan, draws) if problem.model.needs_step and draws is not None else None
        self.places, self.weights = self._lay_out()
        sides = self.weights.shape
        if isinstance(data.x, MappedRows):
            rows = data.x.pick(data.points)
            self.inputs = _StreamedEpoch(rows, self.axis, plan.active, lambda x: self._arrange(x, dtype))
        else:
            x = self._arrange(data.x.index_select(0, data.points), dtype)
            self.inputs = _Epoch(x, self.axis, sides, plan.active)
        self.targets = _Epoch(data.y.index_select(0, data.points), self.axis, sides, plan.active)
        self.weight = self.weights.clone()
        self.batch_weights = self.weight.split(plan.active, self.axis)
        self.pull: list[tuple[Tensor, Tensor]] = []
        if problem.prox is not None:
            strength, target = self.stack(problem.prox.strength), self.stack(problem.prox.target)
            self.pull = [(strength[:a], target[:a]) for a in plan.active]
        self.now = self.calls = 0

    @abc.abstractmethod
    def _lay_out(self) -> tuple[Tensor, Tensor]:
        """Return the plan's places and weights in this memory layout."""

    @abc.abstractmethod
    def _arrange(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return inputs `[points, ...]` in this memory layout."""

    @abc.abstractmethod
    def stack(self, rows: Tensor) -> Tensor:
        """Bring rows of the clients `[m, ...]` into the order of the stack."""

    def unstack(self, rows: Tensor) -> Tensor:
        """Bring rows in the order of the stack into that of the clients."""
        return rows[torch.argsort(self.plan.clients)].contiguous()

    @abc.abstractmethod
    def gradient_parts(self, w: Tensor) -> GradientParts:
        """Return the gradient of the current batch at `w[active, P]` in parts, for optimizers that use all in one pass.

        They hold memory that the next call uses again.
        """

    def gradient(self, w: Tensor) -> Tensor:
        """Return the gradient of the current batch at `w[active, P]`, including the proximal term."""
        return self.gradient_parts(w).total(w)

    def settle(self, w: Tensor, statistics: Tensor | None = None) -> None:
        """Give `w[active, P]`, after a step, the `statistics` that a gradient left (default: the last gradient)."""
        statistics = self.statistics if statistics is None else statistics
        if statistics is not None:
            w[:, -statistics.shape[1] :] = statistics

    @property
    def gradients(self) -> Tensor:
        """The gradients that each client has computed so far, in points, if every step computed as many."""
        epochs, steps = len(self.places), len(self.batch_weights)
        return self.sizes * epochs * self.calls // max(1, epochs * steps)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        step = 0
        for number, places in enumerate(self.places):
            self.inputs.fetch(places, self._variation(number))
            self.targets.fetch(places)
            if self.point_weights is not None:
                torch.mul(self.weights, self.point_weights[places], out=self.weight)
            for b in range(len(self.batch_weights)):
                self.now = b
                if self.steps is not None:
                    self.steps.go_to(number, b)
                yield step, b
                step += 1

    def _variation(self, number: int) -> Vary | None:
        """Return how images at their places are varied in an epoch."""
        if self.variations is None:
            return None
        shifts, flips = (drawn[number] for drawn in self.variations)
        return lambda images, places: augmented(images, shifts[places], flips[places])

    def current(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets and weights of the current batch."""
        b = self.now
        return self.inputs.batches[b], self.targets.batches[b], self.batch_weights[b]


class RowBatches(BatchIterator):
    """Clients along the first axis, for every model."""

    axis = 0
    buffer: Tensor | None = None  # every gradient is written here

    def _lay_out(self) -> tuple[Tensor, Tensor]:
        return self.plan.places.mT, self.plan.weights.t().contiguous()

    def _arrange(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x

    def stack(self, rows: Tensor) -> Tensor:
        return rows.index_select(0, self.plan.clients)

    def gradient_parts(self, w: Tensor) -> GradientParts:
        self.calls += 1
        check_rows("the stack of models", w, len(w), self.model.size)
        if self.buffer is None:
            self.buffer = w.new_empty(len(self.plan.clients), w.shape[1])
        gradient, pull = self.buffer[: len(w)], self.pull[self.now] if self.pull else None
        step = None if self.steps is None else self.steps.next()
        products = self.model.gradient_into(gradient, w, *self.current(), step=step)
        if self.model.statistics:
            kept = gradient[:, -self.model.statistics :]
            self.statistics = kept.clone()
            kept.zero_()
        return GradientParts(gradient, pull, self.model.layout, products)

    def gradient(self, w: Tensor) -> Tensor:
        return super().gradient(w).clone()

    def objective(self, w: Tensor, k: int) -> tuple[Tensor, GradientParts]:
        """Return the loss of client k's current batch at `w[k]`, with the proximal term up to a constant, and its
        gradient."""
        x, y, weight = (part[k : k + 1] for part in self.current())
        own = w[k : k + 1].detach()
        value = (self.model.loss(self.model.outputs(own, x), y) * weight).sum()
        pull = None
        if self.pull:
            strength, target = (part[k : k + 1] for part in self.pull[self.now])
            value = value + Prox(strength, target).value(own).sum()
            pull = (strength, target)
        return value.detach(), GradientParts(self.model.gradient(own, x, y, weight), pull)


class ColumnBatches(BatchIterator):
    """Clients along the last axis, for models whose backend is a `ColumnBackend`."""

    axis = -1

    def _lay_out(self) -> tuple[Tensor, Tensor]:
        assert isinstance(self.model.backend, ColumnBackend)
        self.backend = self.model.backend
        return self.plan.places, self.backend.column_weights(self.plan.weights)

    def _arrange(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return self.backend.to_columns(as_numbers(x, dtype))

    def stack(self, rows: Tensor) -> Tensor:
        return rows.index_select(0, self.plan.clients).movedim(0, -1).contiguous().movedim(-1, 0)

    def gradient_parts(self, w: Tensor) -> GradientParts:
        self.calls += 1
        pull = self.pull[self.now] if self.pull else None
        return GradientParts(self.backend.column_gradient(w, *self.current()), pull)


class _Steps:
    """Names the draws of every step: each client draws one key, and its own steps number it."""

    def __init__(self, plan: Plan, draws: Draws) -> None:
        words = draws.words(np.ones(len(draws), dtype=np.int64))
        drawn = torch.from_numpy(words.view(np.int64)).to(plan.clients.device)
        self.keys = [epoch.split(plan.active) for epoch in sub_key(drawn[plan.clients][plan.owners], plan.done)]
        self.points = (plan.weights > 0).sum(0).split(plan.active)
        self.epoch = self.batch = self.calls = 0

    def go_to(self, epoch: int, batch: int) -> None:
        self.epoch, self.batch, self.calls = epoch, batch, 0

    def next(self) -> Step:
        """Return this step; if several gradients are computed in it, each draws anew."""
        keys = self.keys[self.epoch][self.batch]
        self.calls += 1
        return Step(keys if self.calls == 1 else sub_key(keys, self.calls), self.points[self.batch])


def _variations(data: ClientData, epochs: int, draws: Draws | None) -> tuple[Tensor, Tensor] | None:
    """Draw how every point is varied in every epoch: shifts `[epochs, points, 2]` and flips `[epochs, points]`."""
    if data.augment is None or draws is None:
        return None
    shift, flip = data.augment.draw(draws, epochs * data.sizes.cpu().numpy())
    # Drawn epoch after epoch for each client; wanted for all clients in each epoch.
    offsets, sizes = data.offsets[data.owners], data.sizes[data.owners]
    along = torch.arange(len(data.owners), device=sizes.device) - offsets
    at = (epochs * offsets + along + torch.arange(epochs, device=sizes.device)[:, None] * sizes).cpu()
    return shift[at].to(data.x.device), flip[at].to(data.x.device)


class _Epoch:
    """Every epoch is fetched from a pool of points into the same memory, so the views of its batches are made once."""

    def __init__(self, pool: Tensor, axis: int, sides: Sequence[int], active: list[int]) -> None:
        self.pool, self.axis = pool, axis
        shape = list(pool.shape)
        shape[axis] = math.prod(sides)
        self.memory = pool.new_empty(shape)
        self.batches = self.memory.unflatten(axis, sides).split(active, axis)

    def fetch(self, places: Tensor, vary: Vary | None = None) -> None:
        torch.index_select(self.pool, self.axis, places.flatten(), out=self.memory)
        if vary is not None:
            self.memory.copy_(vary(self.memory, places.flatten()))


class _StreamedEpoch:
    """The same for points on disk: a batch is read when it is used, and no more than one is in memory."""

    def __init__(self, pool: MappedRows, axis: int, active: list[int], arrange: Callable[[Tensor], Tensor]) -> None:
        self.pool, self.axis, self.active, self.arrange = pool, axis, active, arrange
        self.places: Sequence[Tensor] = ()
        self.vary: Vary | None = None

    def fetch(self, places: Tensor, vary: Vary | None = None) -> None:
        self.places, self.vary = places.split(self.active, self.axis), vary

    @property
    def batches(self) -> _StreamedEpoch:
        return self

    def __getitem__(self, b: int) -> Tensor:
        places = self.places[b].flatten()
        x = self.pool.read(places)
        x = x if self.vary is None else self.vary(x, places)
        return self.arrange(x).unflatten(self.axis, self.places[b].shape)
