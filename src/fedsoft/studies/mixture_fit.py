"""How well centers explain the points of a federation: mixtures of clients, likelihoods, assignments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsoft.clusters.posterior import log_density, mixtures, noise_scale, posterior
from fedsoft.core.client_data import ClientData
from fedsoft.core.federation import Federation
from fedsoft.core.local_solve import losses_of_all
from fedsoft.core.metrics import squared_loss
from fedsoft.core.model import Model


@dataclass(frozen=True)
class MixtureFit:
    """The losses of all points under all centers, and what follows from them.

    Arguments:
        losses: of the training points, `[points, S]`, and of the held-out points.
        s2: noise variance of the training points, for squared loss.
        outputs: numbers in one target.
    """

    train: ClientData
    held_out: ClientData
    losses: tuple[Tensor, Tensor]
    s2: float | None
    outputs: int

    @staticmethod
    def of(federation: Federation, model: Model, centers: Tensor) -> MixtureFit:
        parts = [part.to(centers.device, centers.dtype) for part in (federation.train, federation.held_out)]
        train, held_out = (losses_of_all(model, part, centers).double() for part in parts)
        outputs = max(1, parts[0].y[:1].numel())
        s2 = noise_scale(train, parts[0], outputs) if model.loss is squared_loss else None
        return MixtureFit(parts[0], parts[1], (train, held_out), s2, outputs)

    def only(self, centers: Sequence[int]) -> MixtureFit:
        """Return the same with some of the centers."""
        train, held_out = (losses[:, list(centers)] for losses in self.losses)
        return replace(self, losses=(train, held_out))

    @cached_property
    def mixture(self) -> Tensor:
        """Return the mixture of every client, `[N, S]`."""
        return mixtures(log_density(self.losses[0], self.s2, self.outputs), self.train, rough=True)

    def assignment(self) -> Tensor:
        """Return the posterior of every training point, `[points, S]`."""
        logp = log_density(self.losses[0], self.s2, self.outputs)
        return posterior(-logp, self.mixture[self.train.owners])

    def likelihood(self) -> float:
        """Return the mean log-likelihood of the training points."""
        return float(self._by_client(self.losses[0], self.train).mean())

    def held_out_likelihood(self) -> np.ndarray:
        """Return the mean log-likelihood of the held-out points of each client that has some."""
        values = self._by_client(self.losses[1], self.held_out)
        return values[self.held_out.sizes > 0].numpy()

    def _by_client(self, losses: Tensor, data: ClientData) -> Tensor:
        """Use the shares of the training points plus half a point of every center, so that none is ruled out."""
        sizes = self.train.sizes[:, None].double()
        u = (self.mixture * sizes + 0.5) / (sizes + self.mixture.shape[1] / 2)
        logp = log_density(losses, self.s2, self.outputs)
        return data.mean_by_client(torch.logsumexp(u.log()[data.owners] + logp, dim=1))


def stability(fits: Sequence[MixtureFit]) -> float | None:
    """Return the mean adjusted Rand index between assignments of training points, over pairs; None for S = 1."""
    from sklearn.metrics import adjusted_rand_score

    if len(fits) < 2 or fits[0].losses[0].shape[1] == 1:
        return None
    labels = [fit.assignment().argmax(1).numpy() for fit in fits]
    return float(np.mean([adjusted_rand_score(a, b) for a, b in itertools.combinations(labels, 2)]))


def needed_centers(fit: MixtureFit, least: float) -> int:
    """Return how few centers keep the held-out score at `least`, leaving out the least important one at a time."""
    left = list(range(fit.losses[0].shape[1]))
    while len(left) > 1:
        scores = [float(fit.only([s for s in left if s != out]).held_out_likelihood().mean()) for out in left]
        if max(scores) < least:
            break
        left.pop(int(np.argmax(scores)))
    return len(left)
