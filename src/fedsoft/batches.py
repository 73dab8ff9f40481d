"""The local problem of many clients, cut into mini-batches that all of them walk through together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsoft.clientdata import ClientData, augmented
from fedsoft.model import Layout, Model, Outer, as_numbers, write_out

FEW = 40  # parameters; where products of matrices, one for each client, begin to be as fast


@dataclass(frozen=True)
class Prox:
    """`1/2 sum_s a_s |w - c_s|^2` for each client, pre-summed: its gradient is `strength w - target`.

    So a step costs the same for any number of centers.
    """

    strength: Tensor  # [m, 1]: sum_s a_s
    target: Tensor  # [m, P]: sum_s a_s c_s

    @staticmethod
    def to_centers(a: Tensor, centers: Tensor) -> Prox:
        """The pull of weights `a[m, S]` towards `centers[S, P]`."""
        return Prox(a.sum(1, keepdim=True), a @ centers)


@dataclass(frozen=True)
class Slope:
    """The gradient of a batch for each of a clients, in the parts that it is made of."""

    gradient: Tensor  # [a, P]: of the loss
    pull: tuple[Tensor, Tensor] | None = None  # strength [a, 1] and target [a, P] of the proximal term
    layout: Layout | None = None
    outer: Sequence[Outer] = ()  # what is not yet in `gradient`, of a single client

    def total(self, w: Tensor) -> Tensor:
        """All of it, in the memory of `gradient`. To be called once."""
        for outer in self.outer:
            assert self.layout is not None
            write_out(outer, self.layout, self.gradient[0])
        if self.pull is not None:
            strength, target = self.pull
            self.gradient.addcmul_(strength, w).sub_(target)
        return self.gradient


@dataclass(frozen=True)
class Problem:
    """What each of m clients has to minimise: its mean loss (weighted by point where asked) plus the proximal term."""

    model: Model
    data: ClientData
    prox: Prox | None
    point_weights: Tensor | None  # one for each of data.points
    generators: Callable[[], Sequence[np.random.Generator]]  # one for each client


@dataclass(frozen=True)
class Plan:
    """Which points each client uses when.

    Clients with the most batches come first, so that those who still have a batch b are always the leading `active[b]`:
    the others' parameters and optimiser memory are not touched. The batches of an epoch lie side by side, batch b as
    `active[b]` columns, so that `split(active)` gives them back. Only a client's last batch is padded.
    """

    clients: Tensor  # [m]: the order of the clients
    batches: Tensor  # [m]: batches per epoch, falling
    active: list[int]  # [most batches]
    owners: Tensor  # [columns]: the client of each column, by its place in `clients`
    taken: Tensor  # [epochs, columns]: how many turns that client has taken before
    places: Tensor  # [epochs, batch, columns]: place among `data.points`
    weights: Tensor  # [batch, columns]: 1 / (points in the batch), 0 where padded


def plan_batches(
    data: ClientData, batch: int, epochs: int, generators: Sequence[np.random.Generator] | None, dtype: torch.dtype
) -> Plan:
    """Cut each client's points into batches, in an order that its own generator draws anew for every epoch."""
    sizes, starts = data.sizes.cpu().numpy(), data.offsets.cpu().numpy()
    orders = np.tile(np.arange(sizes.sum()), (epochs, 1))
    for k, rng in enumerate(generators or ()):
        own = orders[:, starts[k] : starts[k] + sizes[k]]
        rng.permuted(own, axis=1, out=own)

    batches = -(-sizes // batch)
    clients = np.argsort(-batches, kind="stable")
    batches = batches[clients]
    active = np.array([np.count_nonzero(batches > b) for b in range(batches[0])], dtype=np.int64)
    turns = np.repeat(np.arange(len(active)), active)  # [columns]: which batch it is
    owners = np.arange(len(turns)) - (np.cumsum(active) - active)[turns]
    within = turns * batch + np.arange(batch)[:, None]
    real = within < sizes[clients[owners]]
    within = np.where(real, within + starts[clients[owners]], 0)

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(data.x.device)

    return Plan(
        clients=tensor(clients),
        batches=tensor(batches),
        active=active.tolist(),
        owners=tensor(owners),
        taken=tensor(turns + np.arange(epochs)[:, None] * batches[owners]),
        places=tensor(orders.take(within, axis=1)),
        weights=tensor(real / real.sum(0)).to(dtype),
    )


class Walk:
    """All clients of a problem on their way through their batches, turn by turn.

    Iterating gives the number of the turn and of the batch in its epoch; `gradient` is then that of this batch, for the
    leading `plan.active[batch]` clients of a stack. Bring rows into the order of the stack with `stack`, back with
    `unstack`.
    """

    def __init__(self, problem: Problem, dtype: torch.dtype, *, batch: int, epochs: int, shuffle: bool) -> None:
        model, data = problem.model, problem.data
        self.model, self.weigh, self.sizes = model, problem.point_weights, data.sizes
        generators = problem.generators() if shuffle or data.augment else []
        self.plan = plan = plan_batches(data, batch, epochs, generators if shuffle else None, dtype)
        self.variations = _variations(data, epochs, generators)
        x, y = data.x.index_select(0, data.points), data.y.index_select(0, data.points)
        # A product of tiny matrices for each client would cost several times its arithmetic. For linear models of a few
        # parameters, clients lie along the last axis and products are written out.
        self.side_by_side = model.features is not None and model.size <= FEW and data.augment is None
        if self.side_by_side and model.features is not None:
            axis, self.places, self.weights = -1, plan.places, plan.weights * 2
            x = model.features(as_numbers(x, dtype)[None])[0].t().contiguous()
        else:
            axis, self.places, self.weights = 0, plan.places.mT, plan.weights.t().contiguous()
        self.epochs = [_Epoch(pool, axis, self.weights.shape, plan.active) for pool in (x, y)]
        self.weight = self.weights.clone()
        self.batches = list(zip(*(e.batches for e in self.epochs), self.weight.split(plan.active, axis), strict=True))
        self.pull: list[tuple[Tensor, Tensor]] = []
        if problem.prox is not None:
            strength, target = self.stack(problem.prox.strength), self.stack(problem.prox.target)
            self.pull = [(strength[:a], target[:a]) for a in plan.active]
        self.now = self.calls = 0
        self.buffer: Tensor | None = None  # every gradient is written here

    def stack(self, rows: Tensor) -> Tensor:
        """Rows of the clients `[m, ...]` in the order of the stack."""
        rows = rows.index_select(0, self.plan.clients)
        return rows.movedim(0, -1).contiguous().movedim(-1, 0) if self.side_by_side else rows

    def unstack(self, rows: Tensor) -> Tensor:
        """Rows in the order of the stack as rows of the clients."""
        return rows[torch.argsort(self.plan.clients)].contiguous()

    @property
    def gradients(self) -> Tensor:
        """The gradients that each client has spent so far, in points, when every turn asked for as many."""
        epochs, turns = len(self.places), len(self.batches)
        return self.sizes * epochs * self.calls // max(1, epochs * turns)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        turn = 0
        for number, places in enumerate(self.places):
            for epoch in self.epochs:
                epoch.fetch(places)
            if self.variations is not None:
                shift, flip = (drawn[number, places.flatten()] for drawn in self.variations)
                images = self.epochs[0].memory
                images.copy_(augmented(images, shift, flip))
            if self.weigh is not None:
                torch.mul(self.weights, self.weigh[places], out=self.weight)
            for b in range(len(self.batches)):
                self.now = b
                yield turn, b
                turn += 1

    def gradient(self, w: Tensor) -> Tensor:
        """The gradient of the problem on the current batch at `w[active, P]`, the proximal term included."""
        total = self.slope(w).total(w)
        return total if self.side_by_side else total.clone()

    def slope(self, w: Tensor) -> Slope:
        """The same in parts, so that an optimiser can take all of them in one pass over the parameters.

        It holds memory that the next call uses again.
        """
        self.calls += 1
        x, y, weight = self.batches[self.now]
        pull = self.pull[self.now] if self.pull else None
        if self.side_by_side:
            slope = (x * w.t().unsqueeze(1)).sum(0).sub_(y).mul_(weight)
            return Slope((x * slope).sum(1).t(), pull)
        if self.buffer is None:
            self.buffer = w.new_empty(len(self.plan.clients), w.shape[1])
        gradient = self.buffer[: len(w)]
        return Slope(gradient, pull, self.model.layout, self.model.gradient_into(gradient, w, x, y, weight))


def _variations(
    data: ClientData, epochs: int, generators: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor] | None:
    """How every point is varied in every epoch: shifts `[epochs, points, 2]` and flips `[epochs, points]`."""
    if data.augment is None:
        return None
    sizes = data.sizes.tolist()
    drawn = [data.augment.draw(rng, epochs * n) for rng, n in zip(generators, sizes, strict=True)]
    shifts = [shift.view(epochs, n, 2) for (shift, _), n in zip(drawn, sizes, strict=True)]
    flips = [flip.view(epochs, n) for (_, flip), n in zip(drawn, sizes, strict=True)]
    return torch.cat(shifts, 1).to(data.x.device), torch.cat(flips, 1).to(data.x.device)


class _Epoch:
    """Every epoch is fetched from a pool of points into the same memory, so the views of its batches are made once."""

    def __init__(self, pool: Tensor, axis: int, sides: Sequence[int], active: list[int]) -> None:
        self.pool, self.axis = pool, axis
        shape = list(pool.shape)
        shape[axis] = math.prod(sides)
        self.memory = pool.new_empty(shape)
        self.batches = self.memory.unflatten(axis, sides).split(active, axis if axis < 0 else 0)

    def fetch(self, places: Tensor) -> None:
        torch.index_select(self.pool, self.axis, places.flatten(), out=self.memory)
