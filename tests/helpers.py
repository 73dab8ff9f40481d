"""Small federations for the tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedsoft.batches import Problem, Prox
from fedsoft.clientdata import ClientData
from fedsoft.federation import DataShape, Federation
from fedsoft.model import Model
from fedsoft.seeds import generator

# Batches of 5 leave last batches of 5, 1, 4, 3 and 2 points; the number of batches runs from 1 to 5.
RAGGED = (5, 11, 23, 8, 19, 6, 14, 12)

Pairs = list[tuple[Tensor, Tensor]]


def regression_clients(sizes: Sequence[int] = RAGGED, dimension: int = 3, seed: int = 0) -> Pairs:
    """Clients whose points come from two linear models, in shares that run from one to the other."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((2, dimension)) * 2
    pairs = []
    for k, n in enumerate(sizes):
        x = rng.standard_normal((n, dimension))
        source = (rng.random(n) < (k + 0.5) / len(sizes)).astype(int)
        y = (x * theta[source]).sum(1) + 0.3 * rng.standard_normal(n)
        pairs.append((torch.from_numpy(x), torch.from_numpy(y)))
    return pairs


def class_clients(sizes: Sequence[int] = RAGGED, dimension: int = 3, classes: int = 4, seed: int = 0) -> Pairs:
    """Clients with class labels that depend on x; half of the clients count the classes backwards."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((dimension, classes)) * 2
    pairs = []
    for k, n in enumerate(sizes):
        x = rng.standard_normal((n, dimension))
        y = (x @ theta).argmax(1)
        pairs.append((torch.from_numpy(x), torch.from_numpy(y if k % 2 else classes - 1 - y)))
    return pairs


def federation(clients: Pairs, names: Sequence[str] | None = None) -> Federation:
    """All points for training, so that a test knows where each is."""
    return Federation.from_clients(clients, names=names, held_out=0.0)


def shape_of(clients: Pairs) -> DataShape:
    return federation(clients).shape


def problem(model: Model, data: ClientData, prox: Prox | None = None, point_weights: Tensor | None = None) -> Problem:
    """A local problem whose batches are drawn under the names 0, 1, 2, ..."""
    return Problem(model, data, prox, point_weights, lambda: [generator(0, "batches", k) for k in range(len(data))])


def random_stack(model: Model, m: int, seed: int = 0) -> Tensor:
    """m models in float64, each drawn on its own."""
    return torch.stack([model.draw(np.random.default_rng([seed, i])) for i in range(m)]).double()


class Held:
    """Replies in memory, as `contract.Rows`."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def gather(self) -> Tensor:
        return self.values

    def weighted(self, weights: Tensor) -> Tensor:
        return torch.tensordot(weights.double(), self.values.double(), 1)
