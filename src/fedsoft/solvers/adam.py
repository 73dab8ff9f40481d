"""Adam."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.batches import Plan, Problem
from fedsoft.checks import settings
from fedsoft.local import Moments, descend

__all__ = ["Adam"]

Share = Annotated[float, Field(ge=0, lt=1)]


@settings
class Adam:
    """Adam (Kingma & Ba, 2015), the paper's local solver. Every client counts its own steps.

    Arguments:
        lr: learning rate.
        beta1, beta2: decay of the first and the second moment.
        eps: added to the root of the second moment.
        epochs: passes over the client's points per round.
        batch: points in a batch; the last one of an epoch may be smaller.
        shuffle: draw the order of points anew for every epoch.
    """

    lr: Annotated[float, Field(gt=0)] = 5e-3
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Annotated[float, Field(gt=0)] = 1e-8
    epochs: Annotated[int, Field(ge=1)] = 10
    batch: Annotated[int, Field(ge=1)] = 10
    shuffle: bool = True

    def moments(self, w: Tensor) -> Moments:
        """First and second moment, and the number of steps taken."""
        steps = torch.zeros(len(w), dtype=torch.int64, device=w.device)
        return {"first": torch.zeros_like(w), "second": torch.zeros_like(w), "steps": steps}

    def solve(self, problem: Problem, w: Tensor, moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        """See `Solver`."""
        return descend(self, problem, w, moments)

    def rule(self, moments: Moments, plan: Plan) -> _Step:
        """See `FirstOrder`."""
        return _Step(self, moments, plan)


class _Step:
    """Written as w -= first / (scale sqrt(second) + eps), with the learning rate and each client's bias corrections in
    scale and eps, a step needs no pass over the parameters for them."""

    def __init__(self, adam: Adam, moments: Moments, plan: Plan) -> None:
        self.fresh1, self.fresh2 = 1 - adam.beta1, 1 - adam.beta2
        first, second, steps = moments["first"], moments["second"], moments["steps"]
        self.keep2 = first.new_tensor(adam.beta2)  # a number would be made a tensor in every step
        epochs = len(plan.taken)
        step = (steps[plan.owners] + plan.taken + 1).double()
        slow = (1 - adam.beta1**step) / adam.lr
        scale = (slow / (1 - adam.beta2**step).sqrt()).to(first.dtype).view(-1, 1).split(plan.active * epochs)
        eps = (adam.eps * slow).to(first.dtype).view(-1, 1).split(plan.active * epochs)
        buffer = torch.empty_like(first)
        memory = [(first[:a], second[:a], buffer[:a]) for a in plan.active] * epochs
        self.turns = list(zip(memory, scale, eps, strict=True))
        steps += plan.batches * epochs

    def step(self, turn: int, w: Tensor, gradient: Tensor) -> None:
        (first, second, buffer), scale, eps = self.turns[turn]
        first.lerp_(gradient, self.fresh1)
        second.mul_(self.keep2).addcmul_(gradient, gradient, value=self.fresh2)
        torch.sqrt(second, out=buffer)
        torch.addcmul(eps, buffer, scale, out=buffer)
        w.addcdiv_(first, buffer, value=-1)
