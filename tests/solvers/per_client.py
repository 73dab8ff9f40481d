"""What a solver must do, one client at a time with an optimiser of torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsoft.core.client_draws import Draws
from fedsoft.core.model import Model
from tests.helpers import Pairs

Optimiser = Callable[[list[Tensor]], torch.optim.Optimizer]


@dataclass
class PerClient:
    """Clients that keep their own parameters and their own optimiser over rounds."""

    model: Model
    pairs: Pairs
    w: list[Tensor]
    optimisers: list[torch.optim.Optimizer]

    @staticmethod
    def at(model: Model, pairs: Pairs, w: Tensor, make: Optimiser) -> PerClient:
        """Start from the rows of `w[m, P]`."""
        own = [row.clone().requires_grad_() for row in w]
        return PerClient(model, pairs, own, [make([row]) for row in own])

    def round(
        self, u: Tensor, centers: Tensor, *, batch: int, epochs: int, point_weights: list[Tensor] | None = None
    ) -> Tensor:
        """Descend on the mean loss plus `1/2 sum_s u_ks |w - c_s|^2`, written out; the new models `[m, P]`."""
        for k, (x, y) in enumerate(self.pairs):
            for order in Draws(0, "batches", names=[str(k)]).permutations([len(y)], epochs):
                for part in torch.from_numpy(order).split(batch):
                    losses = self.model.loss(self.model.outputs(self.w[k][None], x[part][None]), y[part][None])[0]
                    if point_weights is not None:
                        losses = losses * point_weights[k][part]
                    objective = losses.mean()
                    for s in range(len(centers)):
                        objective = objective + u[k, s] / 2 * ((self.w[k] - centers[s]) ** 2).sum()
                    self.optimisers[k].zero_grad()
                    objective.backward()
                    self.optimisers[k].step()
        return torch.stack([row.detach().clone() for row in self.w])
