"""Simulated malicious clients: which clients they are, and what they send in place of their replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.client_draws import Draws as ClientDraws
from fedsoft.core.replies import Kind, Reply
from fedsoft.settings import settings

Kinds = Mapping[str, Kind]
Draws = Sequence[np.random.Generator]


@settings
class Attack:
    """What malicious clients do. Their state is honest: only what they send, or the targets they train on, is false.

    This base changes nothing; attacks override one of its methods.

    Arguments:
        share: the share of clients that are malicious.
    """

    share: Annotated[float, Field(ge=0, lt=1)] = 0.2

    def points(self, y: Tensor, shape: DataShape) -> Tensor:
        """Return the targets that a malicious client trains on."""
        return y

    def reply(self, reply: Reply, sent: Reply, kinds: Kinds, draws: Draws) -> Reply:
        """Return what m malicious clients send in place of `reply`, whose entries have these kinds.

        `sent` is what they received, `draws` holds a generator for each of them.
        """
        return reply


def malicious_clients(names: Sequence[str], share: float, seed: int) -> frozenset[str]:
    """Draw this share of the clients by name: the same ones for every algorithm and engine."""
    order = np.argsort(ClientDraws(seed, "liar", names=names).random(), kind="stable")
    return frozenset(names[int(k)] for k in order[: round(share * len(names))])


def spoiled(data: ClientData, rows: np.ndarray, attack: Attack, shape: DataShape) -> ClientData:
    """Return the same points with the targets of the clients in `rows` replaced by those of the attack."""
    y = data.y.clone()
    for k in rows:
        begin, end = int(data.starts[k]), int(data.starts[k] + data.sizes[k])
        y[begin:end] = attack.points(y[begin:end], shape)
    return ClientData(data.x, y, data.starts, data.sizes, data.augment)


def reference(w: Tensor, sent: Reply) -> Tensor:
    """Return what a model is an update of: the nearest center sent, or for one model per center, that center."""
    centers = sent.get("centers")
    if centers is None or centers.shape[-1] != w.shape[-1] or w.ndim not in (2, 3):
        return torch.zeros_like(w)
    if w.ndim == 3:
        return centers.expand_as(w) if centers.ndim == 2 and len(centers) == w.shape[1] else torch.zeros_like(w)
    centers = centers.expand(len(w), *centers.shape) if centers.ndim == 2 else centers
    nearest = (centers - w[:, None]).square().sum(2).argmin(1)
    return centers[torch.arange(len(w), device=w.device), nearest]


def stretched(reply: Reply, sent: Reply, kinds: Kinds, factor: float) -> Reply:
    """Return the reply with every model at `c + factor (w - c)`, c being what it is an update of."""
    models = {name: value for name, value in reply.items() if kinds[name].has_parameters}
    return reply | {name: w + (factor - 1) * (w - reference(w, sent)) for name, w in models.items()}
