"""Clients that lie, for studying what that does: who they are, and what they send in place of their replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsoft.clientdata import ClientData
from fedsoft.contract import Reply
from fedsoft.federation import DataShape
from fedsoft.seeds import generator

MIXTURES = ("u", "pi")
"""Under these names clients tell their mixture."""


class Attack(Protocol):
    """What liars do. They hold their own memory honestly: only what they send, or what they learn from, is false."""

    @property
    def share(self) -> float:
        """The share of clients that lie."""
        ...

    def points(self, y: Tensor, shape: DataShape) -> Tensor:
        """What a liar makes of the targets of its points."""
        ...

    def reply(self, reply: Reply, sent: Reply, size: int, draws: Sequence[np.random.Generator]) -> Reply:
        """What m liars send in place of `reply`, after they were sent `sent`; models have `size` parameters."""
        ...


class Honest:
    """Everything as it is: attacks change one of these."""

    def points(self, y: Tensor, shape: DataShape) -> Tensor:
        """The targets."""
        return y

    def reply(self, reply: Reply, sent: Reply, size: int, draws: Sequence[np.random.Generator]) -> Reply:
        """The reply."""
        return reply


def liars(names: Sequence[str], share: float, seed: int) -> frozenset[str]:
    """So many of the clients, drawn by their names: the same ones for every algorithm and engine."""
    order = sorted(names, key=lambda name: generator(seed, "liar", name).random())
    return frozenset(order[: round(share * len(names))])


def spoiled(data: ClientData, rows: np.ndarray, attack: Attack, shape: DataShape) -> ClientData:
    """The same points, with the targets of the clients in `rows` as liars see them."""
    y = data.y.clone()
    for k in rows:
        begin, end = int(data.starts[k]), int(data.starts[k] + data.sizes[k])
        y[begin:end] = attack.points(y[begin:end], shape)
    return ClientData(data.x, y, data.starts, data.sizes, data.augment)


def models(reply: Reply, size: int) -> list[str]:
    """The entries that hold models, or gradients of them."""
    floats = {name: value for name, value in reply.items() if value.is_floating_point() and name not in MIXTURES}
    return [name for name, value in floats.items() if value.shape[-1:] == (size,)]


def reference(w: Tensor, sent: Reply) -> Tensor:
    """What a model is an update of: the nearest center that was sent, center by center where there is one for each."""
    centers = sent.get("centers")
    if centers is None or centers.shape[-1] != w.shape[-1] or w.ndim not in (2, 3):
        return torch.zeros_like(w)
    if w.ndim == 3:
        return centers.expand_as(w) if centers.ndim == 2 and len(centers) == w.shape[1] else torch.zeros_like(w)
    centers = centers.expand(len(w), *centers.shape) if centers.ndim == 2 else centers
    nearest = (centers - w[:, None]).square().sum(2).argmin(1)
    return centers[torch.arange(len(w), device=w.device), nearest]


def stretched(reply: Reply, sent: Reply, size: int, factor: float) -> Reply:
    """The same reply with every model at `c + factor (w - c)`, c being what it is an update of."""
    update = {name: reply[name] - reference(reply[name], sent) for name in models(reply, size)}
    return reply | {name: reply[name] + (factor - 1) * beyond for name, beyond in update.items()}
