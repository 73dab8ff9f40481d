"""The local problem of many clients, and the plan that cuts their points into mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Draws
from fedsoft.core.model import Layout, Model, OuterProduct
from fedsoft.errors import InputError


@dataclass(frozen=True)
class Prox:
    """`1/2 sum_s a_s |w - c_s|^2` for each client, pre-summed: its gradient is `strength w - target`.

    So a step costs the same for any number of centers. The strength may differ between parameters, `[m, P]`, or be a
    matrix, `[m, P, P]`.
    """

    strength: Tensor  # [m, 1]: sum_s a_s
    target: Tensor  # [m, P]: sum_s a_s c_s

    @staticmethod
    def to_centers(a: Tensor, centers: Tensor) -> Prox:
        """Return the pull of weights `a[m, S]` towards `centers[S, P]`."""
        return Prox(a.sum(1, keepdim=True), a @ centers)

    def matrix(self) -> Tensor:
        """Return the strength as a matrix, `[m, P, P]`."""
        if self.strength.ndim == 3:
            return self.strength
        return torch.diag_embed(self.strength.expand_as(self.target))

    def gradient(self, w: Tensor) -> Tensor:
        """Return its gradient at `w[m, P]`."""
        return pulled(self.strength, w) - self.target

    def value(self, w: Tensor) -> Tensor:
        """Return its value at `w[m, P]`, but for a constant."""
        return (w * (pulled(self.strength, w) / 2 - self.target)).sum(1)

    def check(self, clients: int, size: int, dtype: torch.dtype) -> None:
        """Raise unless it has a row for each client and a column for each parameter, of the type of the models."""
        check_rows("the proximal term", self.target, clients, size)
        if self.strength.shape not in ((clients, 1), (clients, size), (clients, size, size)):
            raise InputError(
                f"the strength of the proximal term has shape {list(self.strength.shape)}: should be {[clients, 1]}, "
                f"{[clients, size]} or {[clients, size, size]}"
            )
        for part in (self.strength, self.target):
            if part.dtype != dtype:
                raise InputError(f"the proximal term is of {part.dtype}: should be of {dtype}, as the models are")


def pulled(strength: Tensor, w: Tensor) -> Tensor:
    """Return the product of a strength `[a, 1]`, `[a, P]` or `[a, P, P]` with `w[a, P]`."""
    return (strength @ w[:, :, None])[:, :, 0] if strength.ndim == 3 else strength * w


def check_rows(what: str, rows: Tensor, clients: int, columns: int) -> None:
    """Raise unless `rows` is `[clients, columns]`: compiled loops do not look where an array ends.

    What clients are sent may have any shape, and what lies behind it in memory must not become part of a reply.
    """
    if rows.shape != (clients, columns):
        raise InputError(f"{what} has shape {list(rows.shape)}: should be {[clients, columns]}")


@dataclass(frozen=True)
class GradientParts:
    """The gradient of a batch for each of a clients, in the parts that it is made of."""

    gradient: Tensor  # [a, P]: of the loss
    pull: tuple[Tensor, Tensor] | None = None  # strength and target of the proximal term, as in `Prox`
    layout: Layout | None = None
    products: Sequence[OuterProduct] = ()  # what is not yet in `gradient`, of a single client

    def total(self, w: Tensor, clip: float | None = None) -> Tensor:
        """Return their sum, in the memory of `gradient`, at most `clip` long for each client. To be called once."""
        for product in self.products:
            assert self.layout is not None
            product.write(self.layout, self.gradient[0])
        if self.pull is not None:
            strength, target = self.pull
            if strength.ndim == 3:
                self.gradient.add_(pulled(strength, w)).sub_(target)
            else:
                self.gradient.addcmul_(strength, w).sub_(target)
        if clip is not None:  # as `torch.nn.utils.clip_grad_norm_` does
            norms = torch.linalg.vector_norm(self.gradient, dim=1, keepdim=True)
            self.gradient.mul_((clip / (norms + 1e-6)).clamp_(max=1))
        return self.gradient


@dataclass(frozen=True)
class Problem:
    """What each of m clients minimizes: its mean loss (weighted by point where given) plus the proximal term."""

    model: Model
    data: ClientData
    prox: Prox | None
    point_weights: Tensor | None  # one for each of data.points
    draws: Callable[[], Draws]  # of each client
    t: int = 0  # the round, from 0: learning rates may depend on it


@dataclass(frozen=True)
class Plan:
    """Which points each client uses when.

    Clients with the most batches come first, so that those who still have a batch b are always the leading `active[b]`:
    the others' parameters and optimizer state are not touched. The batches of an epoch lie side by side, batch b as
    `active[b]` columns, so that `split(active)` gives them back. Only a client's last batch is padded.
    """

    clients: Tensor  # [m]: the order of the clients
    batches: Tensor  # [m]: batches per epoch, falling
    active: list[int]  # [most batches]
    owners: Tensor  # [columns]: the client of each column, by its place in `clients`
    done: Tensor  # [epochs, columns]: how many steps that client has taken before
    places: Tensor  # [epochs, batch, columns]: place among `data.points`
    weights: Tensor  # [batch, columns]: 1 / (points in the batch), 0 where padded
    layout: Layout | None = None  # of the models
    t: int = 0  # the round


def plan_batches(data: ClientData, batch: int, epochs: int, draws: Draws | None, dtype: torch.dtype) -> Plan:
    """Cut each client's points into batches, in an order that is drawn anew for every epoch."""
    sizes, starts = data.sizes.cpu().numpy(), data.offsets.cpu().numpy()
    orders = np.tile(np.arange(sizes.sum()), (epochs, 1)) if draws is None else draws.permutations(sizes, epochs)
    batch = min(batch, int(sizes.max()))  # no client needs more
    batches = -(-sizes // batch)
    clients = np.argsort(-batches, kind="stable")
    batches = batches[clients]
    active = np.array([np.count_nonzero(batches > b) for b in range(batches[0])], dtype=np.int64)
    number = np.repeat(np.arange(len(active)), active)  # [columns]: which batch it is
    owners = np.arange(len(number)) - (np.cumsum(active) - active)[number]
    within = number * batch + np.arange(batch)[:, None]
    real = within < sizes[clients[owners]]
    within = np.where(real, within + starts[clients[owners]], 0)

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(data.x.device)

    return Plan(
        clients=tensor(clients),
        batches=tensor(batches),
        active=active.tolist(),
        owners=tensor(owners),
        done=tensor(number + np.arange(epochs)[:, None] * batches[owners]),
        places=tensor(orders.take(within, axis=1)),
        weights=tensor(real / real.sum(0)).to(dtype),
    )
