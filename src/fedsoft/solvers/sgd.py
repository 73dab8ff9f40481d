"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.checks import settings
from fedsoft.local import Moments, Problem, descend

__all__ = ["SGD"]


@settings
class SGD:
    """Mini-batch gradient descent, with momentum where asked: `m = mu m + g; w = w - lr m`.

    Arguments:
        lr: learning rate.
        momentum: mu.
        epochs: passes over the client's points per round.
        batch: points in a batch; the last one of an epoch may be smaller.
        shuffle: draw the order of points anew for every epoch.
    """

    lr: Annotated[float, Field(gt=0)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    epochs: Annotated[int, Field(ge=1)] = 10
    batch: Annotated[int, Field(ge=1)] = 10
    shuffle: bool = True

    def moments(self, w: Tensor) -> Moments:
        """One velocity per client, none without momentum."""
        return {"velocity": torch.zeros_like(w)} if self.momentum else {}

    def solve(self, problem: Problem, w: Tensor, moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        """See `Solver`."""
        return descend(problem, w, moments, lambda m: _Step(self.lr, self.momentum, m),
                       batch=self.batch, epochs=self.epochs, shuffle=self.shuffle)  # fmt: skip


class _Step:
    def __init__(self, lr: float, momentum: float, moments: Moments) -> None:
        self.lr, self.momentum, self.velocity = lr, momentum, moments.get("velocity")

    def epoch(self, batches: Tensor) -> None:
        pass

    def step(self, w: Tensor, gradient: Tensor, b: int) -> None:
        if self.velocity is not None:
            gradient = self.velocity[: len(w)].mul_(self.momentum).add_(gradient)
        w.sub_(gradient, alpha=self.lr)
