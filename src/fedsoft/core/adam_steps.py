"""The steps of Adam over a stack of clients, with weight decay in the gradient or apart from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.batch_iterator import FEW
from fedsoft.core.batches import GradientParts, Plan, Problem
from fedsoft.core.compiled_solves import Rule
from fedsoft.core.local_solve import OptimizerState, descend
from fedsoft.core.model import Layout, OuterProduct
from fedsoft.core.schedules import RateSchedule, by_step, rates
from fedsoft.settings import settings

Share = Annotated[float, Field(ge=0, lt=1)]


@settings
class AdamSettings:
    """What `solvers.Adam` and `solvers.AdamW` share."""

    decoupled: ClassVar[bool] = False

    lr: Annotated[float, Field(gt=0)] = 5e-3
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Annotated[float, Field(gt=0)] = 1e-8
    epochs: Annotated[int, Field(ge=1)] = 10
    batch: Annotated[int, Field(ge=1)] = 10
    shuffle: bool = True
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    clip: Annotated[float, Field(gt=0)] | None = None
    schedule: RateSchedule | None = None

    def init_state(self, w: Tensor, layout: Layout | None = None) -> OptimizerState:
        steps = torch.zeros(len(w), dtype=torch.int64, device=w.device)
        return {"first": torch.zeros_like(w), "second": torch.zeros_like(w), "steps": steps}

    def solve(self, problem: Problem, w: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState, Tensor]:
        return descend(self, problem, w, state)

    @property
    def rule(self) -> Rule | None:
        """The same steps for a compiled loop, see `compiled_solves`."""
        decay = self.weight_decay or 0.0
        coupled, apart = (0.0, decay) if self.decoupled else (decay, 0.0)
        return Rule(
            self.lr, self.schedule, True, self.beta1, self.beta2, self.eps, False, coupled, apart, self.clip or 0.0
        )

    def slower(self, factor: float) -> Self:
        return replace(self, lr=self.lr * factor)

    def stepper(self, state: OptimizerState, plan: Plan) -> AdamStepper:
        return AdamStepper(self, state, plan)


class AdamStepper:
    """The steps over a stack of clients.

    Written as w -= first / (scale sqrt(second) + eps), with the learning rate and each client's bias corrections in
    scale and eps, a step needs no pass over the parameters for them.
    """

    def __init__(self, adam: AdamSettings, state: OptimizerState, plan: Plan) -> None:
        self.fresh1, self.fresh2 = 1 - adam.beta1, 1 - adam.beta2
        first, second, steps = state["first"], state["second"], state["steps"]
        self.keep2 = first.new_tensor(adam.beta2)  # a number would be made a tensor in every step
        epochs = len(plan.done)
        step = (steps[plan.owners] + plan.done + 1).double()
        lr = rates(adam.lr, adam.schedule, plan)
        slow = (1 - adam.beta1**step) / lr
        scale = (slow / (1 - adam.beta2**step).sqrt()).to(first.dtype).view(-1, 1).split(plan.active * epochs)
        eps = (adam.eps * slow).to(first.dtype).view(-1, 1).split(plan.active * epochs)
        buffer = torch.empty_like(first)
        memory = [(first[:a], second[:a], buffer[:a]) for a in plan.active] * epochs
        self.steps = list(zip(memory, scale, eps, strict=True))
        steps += plan.batches * epochs
        # Clients along the last axis are left to torch, whose operations are as fast there; so is CUDA.
        self.in_one_pass = first.device.type == "cpu" and first.is_contiguous() and first.shape[1] > FEW
        self.keep = first.new_tensor([adam.beta1, adam.beta2])
        self.clip, self.decay = adam.clip, adam.weight_decay or 0.0
        self.shrink: Sequence[Tensor | float] | None = None
        if adam.decoupled and self.decay:
            shrink, self.decay = 1 - lr * self.decay, 0.0
            self.shrink = by_step(shrink, plan) if isinstance(shrink, Tensor) else [shrink] * len(self.steps)

    def step(self, number: int, w: Tensor, parts: GradientParts) -> None:
        (first, second, buffer), scale, eps = self.steps[number]
        if self.clip is not None or self.decay or self.shrink is not None:
            parts = self._decayed(number, w, parts)
        if self.in_one_pass:
            self._in_one_pass(w, parts, first, second, scale, eps)
            return
        gradient = parts.total(w)
        first.lerp_(gradient, self.fresh1)
        second.mul_(self.keep2).addcmul_(gradient, gradient, value=self.fresh2)
        torch.sqrt(second, out=buffer)
        torch.addcmul(eps, buffer, scale, out=buffer)
        w.addcdiv_(first, buffer, value=-1)

    def _decayed(self, number: int, w: Tensor, parts: GradientParts) -> GradientParts:
        """Return the whole gradient, clipped, and let weights decay by it or of themselves."""
        gradient = parts.total(w, self.clip)
        if self.decay:
            gradient.add_(w, alpha=self.decay)
        if self.shrink is not None:
            w.mul_(self.shrink[number])
        return GradientParts(gradient)

    def _in_one_pass(
        self, w: Tensor, parts: GradientParts, first: Tensor, second: Tensor, scale: Tensor, eps: Tensor
    ) -> None:
        """Take the same step, including the proximal pull and gradients that are still products."""
        from fedsoft.core import kernels

        if parts.pull is not None and parts.pull[0].shape[1:] != (1,):  # the compiled loops know one strength a client
            parts = GradientParts(parts.total(w))
        strength, target = (scale, w) if parts.pull is None else parts.pull  # without a pull they are not used
        rate = (self.keep.numpy(), scale[:, 0].numpy(), eps[:, 0].numpy())
        pulled, strengths = parts.pull is not None, strength[:, 0].numpy()
        rows = [t.numpy() for t in (w, parts.gradient, first, second, target)]
        for begin, end, product in _spans(parts, w.shape[1]):
            w_, g_, first_, second_, target_ = (a[:, begin:end] for a in rows)
            if product is None:
                kernels.adam_rows(w_, g_, (first_, second_), (pulled, strengths, target_), rate)
            else:
                left, right = product.left.numpy(), product.right.numpy()
                shape = (left.shape[1], right.shape[1])
                w_, first_, second_, target_ = (a.reshape(shape) for a in (w_, first_, second_, target_))
                kernels.adam_outer(w_, left, right, (first_, second_), (pulled, strengths, target_), rate)


def _spans(parts: GradientParts, size: int) -> Iterator[tuple[int, int, OuterProduct | None]]:
    """Yield begin and end of spans of parameters, as few as the gradients that are products allow."""
    products = {product.name: product for product in parts.products}
    begin = 0
    for name, place, _ in parts.layout.slices() if products and parts.layout else ():
        if name in products:
            if begin < place.start:
                yield begin, place.start, None
            yield place.start, place.stop, products[name]
            begin = place.stop
    if begin < size:
        yield begin, size, None
