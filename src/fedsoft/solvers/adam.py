"""Adam."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.batches import FEW, Plan, Problem, Slope
from fedsoft.checks import settings
from fedsoft.local import Moments, descend
from fedsoft.model import Outer

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
        # Rows that lie side by side in memory keep to torch: there its operations are as fast, and it takes CUDA too.
        self.in_one_pass = first.device.type == "cpu" and first.is_contiguous() and first.shape[1] > FEW
        self.keep = first.new_tensor([adam.beta1, adam.beta2])

    def step(self, turn: int, w: Tensor, slope: Slope) -> None:
        (first, second, buffer), scale, eps = self.turns[turn]
        if self.in_one_pass:
            self._in_one_pass(w, slope, first, second, scale, eps)
            return
        gradient = slope.total(w)
        first.lerp_(gradient, self.fresh1)
        second.mul_(self.keep2).addcmul_(gradient, gradient, value=self.fresh2)
        torch.sqrt(second, out=buffer)
        torch.addcmul(eps, buffer, scale, out=buffer)
        w.addcdiv_(first, buffer, value=-1)

    def _in_one_pass(self, w: Tensor, slope: Slope, first: Tensor, second: Tensor, scale: Tensor, eps: Tensor) -> None:
        """The same step, the proximal pull and gradients that are still products included."""
        from fedsoft import kernels

        strength, target = (scale, w) if slope.pull is None else slope.pull  # without a pull they are not looked at
        common = (self.keep.numpy(), scale[:, 0].numpy(), eps[:, 0].numpy())
        pulled, strengths = slope.pull is not None, strength[:, 0].numpy()
        rows = [t.numpy() for t in (w, slope.gradient, first, second, target)]
        left_out = {outer.name: outer for outer in slope.outer}
        for begin, end, outer in _spans(slope, left_out, w.shape[1]):
            w_, g_, first_, second_, target_ = (a[:, begin:end] for a in rows)
            if outer is None:
                kernels.adam_rows(w_, g_, first_, second_, pulled, strengths, target_, *common)
            else:
                shape = (outer.left.shape[1], outer.right.shape[1])
                w_, first_, second_, target_ = (a.reshape(shape) for a in (w_, first_, second_, target_))
                kernels.adam_outer(
                    w_, outer.left.numpy(), outer.right.numpy(), first_, second_, pulled, strengths, target_, *common
                )


def _spans(slope: Slope, products: dict[str, Outer], size: int) -> Iterator[tuple[int, int, Outer | None]]:
    """The parameters from begin to end, in as few stretches as the gradients that are products leave."""
    begin = 0
    for name, place, _ in slope.layout.slices() if products and slope.layout else ():
        if name in products:
            if begin < place.start:
                yield begin, place.start, None
            yield place.start, place.stop, products[name]
            begin = place.stop
    if begin < size:
        yield begin, size, None
