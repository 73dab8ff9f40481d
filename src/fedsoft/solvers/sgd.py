"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.batches import Plan, Problem, Slope
from fedsoft.checks import settings
from fedsoft.local import Moments, descend

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
        return descend(self, problem, w, moments)

    def rule(self, moments: Moments, plan: Plan) -> _Step:
        """See `FirstOrder`."""
        return _Step(self, moments, plan)


class _Step:
    def __init__(self, sgd: SGD, moments: Moments, plan: Plan) -> None:
        self.lr, self.momentum = sgd.lr, sgd.momentum
        velocity = moments.get("velocity")
        self.velocity = [velocity[:a] for a in plan.active] if velocity is not None else None

    def step(self, turn: int, w: Tensor, slope: Slope) -> None:
        gradient = slope.total(w)
        if self.velocity is not None:
            gradient = self.velocity[turn % len(self.velocity)].mul_(self.momentum).add_(gradient)
        w.sub_(gradient, alpha=self.lr)
