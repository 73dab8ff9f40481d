"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedsoft.core.batches import GradientParts, Plan, Problem
from fedsoft.core.compiled_solves import Rule
from fedsoft.core.local_solve import OptimizerState, descend
from fedsoft.core.model import Layout
from fedsoft.core.schedules import RateSchedule, by_step, rates
from fedsoft.errors import SettingError
from fedsoft.settings import settings

__all__ = ["SGD"]


@settings
class SGD:
    """Mini-batch gradient descent, with optional momentum: `m = mu m + g; w = w - lr m`. Settings mean what they do in
    `torch.optim.SGD`.

    Arguments:
        lr: learning rate.
        momentum: mu.
        nesterov: step along `g + mu m` instead of m; default: no.
        weight_decay: times w is added to the gradient (L2, coupled), after clipping; default: none.
        clip: largest norm of a client's gradient, the proximal term included; longer ones are shortened; default: any.
        schedule: of the learning rate; default: constant.
        epochs: passes over the client's points per round.
        batch: points in a batch; the last one of an epoch may be smaller.
        shuffle: draw the order of points anew for every epoch.
    """

    lr: Annotated[float, Field(gt=0)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    epochs: Annotated[int, Field(ge=1)] = 10
    batch: Annotated[int, Field(ge=1)] = 10
    shuffle: bool = True
    nesterov: bool | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    clip: Annotated[float, Field(gt=0)] | None = None
    schedule: RateSchedule | None = None

    @model_validator(mode="after")
    def _check_nesterov(self) -> Self:
        if self.nesterov and not self.momentum:
            raise SettingError("SGD", "nesterov", self.nesterov, "needs a momentum above 0")
        return self

    def init_state(self, w: Tensor, layout: Layout | None = None) -> OptimizerState:
        return {"velocity": torch.zeros_like(w)} if self.momentum else {}

    def solve(self, problem: Problem, w: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState, Tensor]:
        return descend(self, problem, w, state)

    @property
    def rule(self) -> Rule | None:
        """The same steps for a compiled loop, see `core.compiled_solves`."""
        return Rule(
            self.lr, self.schedule, False, self.momentum, nesterov=bool(self.nesterov), decay=self.weight_decay or 0.0,
            clip=self.clip or 0.0,
        )  # fmt: skip

    def slower(self, factor: float) -> SGD:
        return replace(self, lr=self.lr * factor)

    def stepper(self, state: OptimizerState, plan: Plan) -> SGDStepper:
        return SGDStepper(self, state, plan)


class SGDStepper:
    """The steps of `SGD` over a stack of clients."""

    def __init__(self, sgd: SGD, state: OptimizerState, plan: Plan) -> None:
        self.momentum, self.nesterov = sgd.momentum, bool(sgd.nesterov)
        self.decay, self.clip = sgd.weight_decay or 0.0, sgd.clip
        velocity = state.get("velocity")
        self.velocity = [velocity[:a] for a in plan.active] if velocity is not None else None
        rate = rates(sgd.lr, sgd.schedule, plan)
        self.rate = rate if not isinstance(rate, Tensor) else 0.0
        self.rates = by_step(rate, plan) if isinstance(rate, Tensor) else None

    def step(self, number: int, w: Tensor, parts: GradientParts) -> None:
        gradient = parts.total(w, self.clip)
        if self.decay:
            gradient.add_(w, alpha=self.decay)
        if self.velocity is not None:
            velocity = self.velocity[number % len(self.velocity)].mul_(self.momentum).add_(gradient)
            gradient = gradient.add_(velocity, alpha=self.momentum) if self.nesterov else velocity
        if self.rates is None:
            w.sub_(gradient, alpha=self.rate)
        else:
            w.addcmul_(gradient, self.rates[number], value=-1)
