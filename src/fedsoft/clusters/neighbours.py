"""Predictions from a client's own points that are nearest in the latent space of a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsoft.core.model import Model

AT_ONCE = 2**22  # numbers that are compared at once


@dataclass(frozen=True)
class Store:
    """`count[m]` points of each of m clients: latent values `keys[m, capacity, d]`, targets `values[m, capacity, ...]`.

    Targets of classes are rows of 0 and 1.
    """

    keys: Tensor
    values: Tensor
    count: Tensor

    def predict(self, z: Tensor, owners: Tensor, k: int, scale: float) -> Tensor:
        """Return for points of latent values `z[points, d]` the mean target of their clients' k nearest points.

        A neighbour at the distance r weighs exp(-r^2 / (d scale)). Points of a client without any get 0.
        """
        size = self.keys.shape[1] * self.keys.shape[2]
        parts = [
            self._predict(part, own, k, scale)
            for part, own in zip(*(t.split(max(1, AT_ONCE // max(1, size))) for t in (z, owners)), strict=True)
        ]
        return torch.cat(parts) if parts else self.values.new_zeros((0, *self.values.shape[2:]))

    def _predict(self, z: Tensor, owners: Tensor, k: int, scale: float) -> Tensor:
        squares = (z[:, None] - self.keys[owners]).square().sum(2)
        places = torch.arange(squares.shape[1], device=z.device)
        squares = squares.masked_fill(places >= self.count[owners, None], torch.inf)
        near, which = squares.sort(dim=1, stable=True)
        near, which = near[:, :k], which[:, :k]
        # Relative to the nearest: far from all points every weight would be 0.
        weight = torch.exp(-(near - near[:, :1]) / (z.shape[1] * scale)).nan_to_num(0.0)
        weight = weight / weight.sum(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
        values = self.values[owners[:, None], which]
        return (weight.view(*weight.shape, *[1] * (values.ndim - 2)) * values).sum(1)


@dataclass(frozen=True)
class Neighbours:
    """lam_k of what neighbours say and 1 - lam_k of what the model predicts; see `contract.Gate`.

    Arguments:
        model, w: whose latent values are compared, `[1, P]`.
        store: the clients' points.
        lam: `[m]`.
        k, scale: see `Store.predict`.
    """

    model: Model
    w: Tensor
    store: Store
    lam: Tensor
    k: int
    scale: float

    def combined(self, x: Tensor, owners: Tensor, each: Tensor) -> Tensor:
        """Return the mean of both predictions."""
        said = self.store.predict(self.model.latents(self.w, x[None])[0], owners, self.k, self.scale).to(each)
        lam = self.lam[owners].to(each).view(-1, *[1] * (each.ndim - 2))
        return (1 - lam) * each[0] + lam * said

    def row(self, k: int) -> Neighbours:
        """Return the gate of one client alone."""
        own = Store(*(part[k : k + 1] for part in (self.store.keys, self.store.values, self.store.count)))
        return Neighbours(self.model, self.w, own, self.lam[k : k + 1], self.k, self.scale)


def as_targets(y: Tensor, predicted: Tensor) -> Tensor:
    """Return targets in the form of predictions: classes as rows of 0 and 1."""
    return F.one_hot(y, predicted.shape[-1]).to(predicted) if predicted.ndim > y.ndim else y.to(predicted)
