"""Local work over a stack of clients: batches, the proximal pull, and the descent that first-order solvers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsoft.clientdata import ClientData
from fedsoft.model import Model

Moments = dict[str, Tensor]
"""What an optimiser remembers of each client, `[m, ...]`."""

EVALUATION_BLOCK = 256  # points of a client that are pushed through its model at once


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
class Work:
    """What one client's job cost: gradients and plain evaluations, counted in points."""

    gradients: Tensor  # [m]
    evaluations: Tensor  # [m]

    @staticmethod
    def none(m: int) -> Work:
        """No work yet for m clients."""
        return Work(torch.zeros(m, dtype=torch.int64), torch.zeros(m, dtype=torch.int64))


@dataclass(frozen=True)
class Problem:
    """What each of m clients has to minimise: its mean loss (weighted by point where asked) plus the proximal term."""

    model: Model
    data: ClientData
    prox: Prox | None
    point_weights: Tensor | None  # one for each of data.points
    generators: Callable[[], Sequence[np.random.Generator]]  # one for each client


class Solver(Protocol):
    """Minimises the problem of each of m clients, all at once."""

    def moments(self, w: Tensor) -> Moments:
        """Fresh optimiser memory for clients with models `w[m, P]`."""
        ...

    def solve(self, problem: Problem, w: Tensor, moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        """From `w[m, P]` to the new models, the new memory, and the gradients spent by each client (in points)."""
        ...


class Stepper(Protocol):
    """The rule of a first-order solver, in place, on the leading `w[:a]` of a stack."""

    def epoch(self, batches: Tensor) -> None:
        """An epoch begins in which client i takes `batches[i]` steps."""
        ...

    def step(self, w: Tensor, gradient: Tensor, b: int) -> None:
        """Batch b of the epoch."""
        ...


@dataclass(frozen=True)
class Plan:
    """Which points each client uses when. Clients with the most batches come first, so that those who still have a
    batch b are always the leading `active[b]`: the others' parameters and optimiser memory are not touched."""

    clients: Tensor  # [m]: the order of the clients
    batches: Tensor  # [m]: batches per epoch, falling
    active: list[int]  # [max batches]
    places: Tensor  # [epochs, m, longest]: place in the pool
    weights: Tensor  # [m, longest]: 1 / (points in the batch), 0 where padded


def plan_batches(
    data: ClientData, batch: int, epochs: int, generators: Sequence[np.random.Generator] | None, dtype: torch.dtype
) -> Plan:
    """Cut each client's points into batches, in an order that its own generator draws anew for every epoch."""
    sizes = data.sizes.cpu().numpy()
    batches = -(-sizes // batch)
    clients = np.argsort(-batches, kind="stable")
    longest = int(sizes.max())
    orders = np.zeros((epochs, len(sizes), longest), dtype=np.int64)
    for row, k in enumerate(clients):
        n = int(sizes[k])
        order = np.broadcast_to(np.arange(n), (epochs, n))
        orders[:, row, :n] = order if generators is None else generators[k].permuted(order, axis=1)
    sizes, batches = sizes[clients], batches[clients]
    along = np.arange(longest)
    last = along >= ((batches - 1) * batch)[:, None]
    count = np.where(last, (sizes - (batches - 1) * batch)[:, None], batch)
    weights = np.where(along < sizes[:, None], 1.0 / count, 0.0)
    device = data.x.device
    order_of = torch.from_numpy(clients).to(device)
    places = torch.from_numpy(orders).to(device) + data.starts[order_of].view(1, -1, 1)
    return Plan(
        clients=order_of,
        batches=torch.from_numpy(batches).to(device),
        active=[int((batches > b).sum()) for b in range(int(batches.max()))],
        places=places,
        weights=torch.from_numpy(weights).to(device, dtype),
    )


def descend(
    problem: Problem, w: Tensor, moments: Moments, rule: Callable[[Moments], Stepper], *,
    batch: int, epochs: int, shuffle: bool,
) -> tuple[Tensor, Moments, Tensor]:  # fmt: skip
    """Run `epochs` passes of mini-batch descent for all clients of the problem at once."""
    model, data, prox = problem.model, problem.data, problem.prox
    plan = plan_batches(data, batch, epochs, problem.generators() if shuffle else None, w.dtype)
    w = w[plan.clients]
    moments = {name: value[plan.clients] for name, value in moments.items()}
    strength, target = (prox.strength[plan.clients], -prox.target[plan.clients]) if prox else (None, None)
    spread = None
    if problem.point_weights is not None:
        spread = problem.point_weights.new_zeros(len(data.x)).index_copy_(0, data.points, problem.point_weights)
    stepper = rule(moments)
    for places in plan.places:
        x = data.x.index_select(0, places.flatten()).view(*places.shape, *data.x.shape[1:])
        y = data.y.index_select(0, places.flatten()).view(*places.shape, *data.y.shape[1:])
        weights = plan.weights if spread is None else plan.weights * spread[places]
        stepper.epoch(plan.batches)
        for b, a in enumerate(plan.active):
            part = slice(b * batch, (b + 1) * batch)
            now = w[:a]
            gradient = model.gradient(now, x[:a, part], y[:a, part], weights[:a, part])
            if strength is not None and target is not None:
                gradient.addcmul_(strength[:a], now).add_(target[:a])
            stepper.step(now, gradient, b)
    back = torch.argsort(plan.clients)
    return w[back], {name: value[back] for name, value in moments.items()}, data.sizes * epochs


@dataclass(frozen=True)
class Block:
    """Up to EVALUATION_BLOCK consecutive points of every client that has so many, padded."""

    rows: Tensor  # [a]: the clients
    places: Tensor  # [a, length]: place in the pool
    order: Tensor  # [a, length]: place among `data.points`
    real: Tensor  # [a, length]: False where padded


def blocks(data: ClientData) -> Iterator[Block]:
    """All points of all clients as padded blocks, so that clients can be worked on together without a loop."""
    rows = torch.argsort(data.sizes, descending=True, stable=True)
    sizes, starts = data.sizes[rows], data.starts[rows]
    offsets = (torch.cumsum(data.sizes, 0) - data.sizes)[rows]
    for begin in range(0, int(sizes[0]) if len(data) else 0, EVALUATION_BLOCK):
        a = int((sizes > begin).sum())
        along = torch.arange(begin, min(begin + EVALUATION_BLOCK, int(sizes[0])), device=sizes.device)
        real = along < sizes[:a, None]
        inside = torch.where(real, along, 0)
        yield Block(rows[:a], starts[:a, None] + inside, offsets[:a, None] + inside, real)


def own_outputs(model: Model, data: ClientData, w: Tensor) -> Tensor:
    """The output of each client's own model `w[m, P]` on each of its points, in the order of `data.points`."""
    result: Tensor | None = None
    for block in blocks(data):
        output = model.outputs(w[block.rows], data.x[block.places])[block.real]
        if result is None:
            result = output.new_empty((len(data.points), *output.shape[1:]))
        result[block.order[block.real]] = output
    # Nobody has a point: the shape of the outputs is still the model's.
    return model.outputs(w[:1], data.x[:0][None])[0] if result is None else result


def losses_of_all(model: Model, data: ClientData, centers: Tensor) -> Tensor:
    """The loss of every point under every center, `[points, S]`: large batches, no gradient, no loop over clients."""
    count = len(centers)
    block = max(1, 65536 // count)
    parts = []
    for places in data.points.split(block):
        x, y = data.x[places], data.y[places]
        output = model.outputs(centers, x.expand(count, *x.shape))
        parts.append(model.loss(output, y.expand(count, *y.shape)).T)
    return torch.cat(parts) if parts else centers.new_zeros((0, count))
