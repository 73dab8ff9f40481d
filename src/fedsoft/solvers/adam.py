"""Adam."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.checks import settings
from fedsoft.local import Moments, Problem, descend

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
        return descend(problem, w, moments, lambda m: _Step(self, m),
                       batch=self.batch, epochs=self.epochs, shuffle=self.shuffle)  # fmt: skip


class _Step:
    def __init__(self, adam: Adam, moments: Moments) -> None:
        self.adam = adam
        self.first, self.second, self.steps = moments["first"], moments["second"], moments["steps"]
        self.buffer = torch.empty_like(self.first)
        self.rate: list[Tensor] = []
        self.eps: list[Tensor] = []

    def epoch(self, batches: Tensor) -> None:
        """Bias corrections of all steps of the epoch. Written as w -= rate first / (sqrt(second) + eps), with both
        numbers corrected for each client, a step needs no pass over the parameters for them."""
        along = torch.arange(1, int(batches.max()) + 1, device=batches.device)
        step = (self.steps.unsqueeze(0) + along.unsqueeze(1)).double().unsqueeze(2)
        root = (1 - self.adam.beta2**step).sqrt()
        self.rate = list((self.adam.lr * root / (1 - self.adam.beta1**step)).to(self.first.dtype))
        self.eps = list((self.adam.eps * root).to(self.first.dtype))
        self.steps += batches

    def step(self, w: Tensor, gradient: Tensor, b: int) -> None:
        a = len(w)
        first, second, buffer = self.first[:a], self.second[:a], self.buffer[:a]
        first.lerp_(gradient, 1 - self.adam.beta1)
        second.mul_(self.adam.beta2).addcmul_(gradient, gradient, value=1 - self.adam.beta2)
        torch.sqrt(second, out=buffer)
        buffer.add_(self.eps[b][:a])
        torch.div(first, buffer, out=buffer)
        w.addcmul_(buffer, self.rate[b][:a], value=-1)
