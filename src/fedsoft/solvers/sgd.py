"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.batches import GradientParts, Plan, Problem
from fedsoft.core.local_solve import OptimizerState, descend
from fedsoft.settings import settings

__all__ = ["SGD"]


@settings
class SGD:
    """Mini-batch gradient descent, with optional momentum: `m = mu m + g; w = w - lr m`.

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

    def init_state(self, w: Tensor) -> OptimizerState:
        return {"velocity": torch.zeros_like(w)} if self.momentum else {}

    def solve(self, problem: Problem, w: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState, Tensor]:
        return descend(self, problem, w, state)

    def stepper(self, state: OptimizerState, plan: Plan) -> SGDStepper:
        return SGDStepper(self, state, plan)


class SGDStepper:
    """The steps of `SGD` over a stack of clients."""

    def __init__(self, sgd: SGD, state: OptimizerState, plan: Plan) -> None:
        self.lr, self.momentum = sgd.lr, sgd.momentum
        velocity = state.get("velocity")
        self.velocity = [velocity[:a] for a in plan.active] if velocity is not None else None

    def step(self, number: int, w: Tensor, parts: GradientParts) -> None:
        gradient = parts.total(w)
        if self.velocity is not None:
            gradient = self.velocity[number % len(self.velocity)].mul_(self.momentum).add_(gradient)
        w.sub_(gradient, alpha=self.lr)
