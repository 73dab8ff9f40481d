"""The backends that serve any model: a whole stack of clients by torch's autograd, or one client after the other.

The closed form of a linear model is in `models.linear`, the backward pass of a chain of layers in `networks.chain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from fedsoft.core.compiled_solves import Form
from fedsoft.core.metrics import cross_entropy
from fedsoft.core.model import Backend, Layout, OuterProduct, Params, Step

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Stacked:
    """All clients at once, by autograd.

    Arguments:
        layout: of the parameters.
        forward: (named tensors `[m, ...]`, inputs `[m, B, ...]`) to outputs `[m, B, ...]`.
        loss: (outputs, targets `[m, B]`) to the loss of each point `[m, B]`.
        training: the same as `forward` in a step of training, where that differs; also returns the new statistics
            `[m, Q]`, which are the last Q parameters.
        form: how the model is linear in its inputs, for the compiled loop (`compiled_solves`).
    """

    layout: Layout
    forward: Callable[[Params, Tensor], Tensor]
    loss: Loss
    name: str = "stacked"
    one_client_at_a_time: bool = False
    training: Callable[[Params, Tensor, Step], tuple[Tensor, Tensor]] | None = None
    form: Form | None = None

    def gradient_into(
        self, out: Tensor, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, step: Step | None = None
    ) -> Sequence[OuterProduct]:
        statistics: Tensor | None = None
        with torch.enable_grad():
            # Leaves of their own, not views of one: the gradient of a view would be a zero-filled P-vector for each.
            leaves = {name: part.detach().requires_grad_() for name, part in self.layout.unflatten(w).items()}
            if step is None or self.training is None:
                output = self.forward(leaves, x)
            else:
                output, statistics = self.training(leaves, x, step)
            total = (self.loss(output, y) * weight).sum()
        parts = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        torch.cat([part.reshape(len(w), -1) for part in parts], dim=1, out=out)
        if statistics is not None and statistics.shape[1]:
            out[:, -statistics.shape[1] :] = statistics
        return ()


@dataclass(frozen=True)
class ByCount:
    """Stacks of at least `least` clients by one backend, smaller ones by another, whose steps begin sooner."""

    many: Backend
    few: Backend
    least: int
    one_client_at_a_time: bool = False

    @property
    def name(self) -> str:
        """What most steps are computed by."""
        return self.many.name

    def forward(self, params: Params, x: Tensor) -> Tensor:
        return (self.many if len(x) >= self.least else self.few).forward(params, x)

    def gradient_into(
        self, out: Tensor, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, step: Step | None = None
    ) -> Sequence[OuterProduct]:
        backend = self.many if len(w) >= self.least else self.few
        return backend.gradient_into(out, w, x, y, weight, step)


class Network(Protocol):
    """A network that holds the parameters of one client at a time."""

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """Return the outputs of a stack of models, each on its own inputs, `x[m, B, ...]`; without a gradient."""
        ...

    def gradient(
        self, w: Tensor, x: Tensor, loss_gradient: Callable[[Tensor], Tensor], out: Tensor, key: Tensor | None = None
    ) -> list[OuterProduct]:
        """Write the gradient at `w[P]` on a batch into `out[P]`, except for the products that are returned.

        With a `key` the network trains, see `Backend`.
        `loss_gradient` gives the gradient of the loss at the outputs. The products hold memory that the next call uses
        again.
        """
        ...


@dataclass(frozen=True)
class OneByOne:
    """One client after the other through a network: `chain` (backward pass by hand) or `loop` (by autograd)."""

    layout: Layout
    network: Network
    loss: Loss
    name: str
    one_client_at_a_time: bool = True

    def forward(self, params: Params, x: Tensor) -> Tensor:
        return self.network.outputs(params, x)

    def gradient_into(
        self, out: Tensor, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, step: Step | None = None
    ) -> Sequence[OuterProduct]:
        products: list[OuterProduct] = []
        for k in range(len(w)):
            for product in products:  # its memory is used again for the next model
                product.write(self.layout, out[k - 1])
            n = y.shape[1] if step is None else int(step.points[k])  # padding would be part of a batch's statistics
            loss_gradient = partial(self._loss_gradient, y=y[k, :n], weight=weight[k, :n])
            key = None if step is None else step.keys[k]
            products = self.network.gradient(w[k], x[k, :n], loss_gradient, out[k], key)
        if len(w) == 1:
            return products
        for product in products:
            product.write(self.layout, out[-1])
        return ()

    def _loss_gradient(self, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of `sum_i weight_i loss_i` at the outputs `[B, ...]` of one model."""
        if self.loss is cross_entropy:
            gradient = output.softmax(1)
            gradient.scatter_add_(1, y[:, None], gradient.new_full((len(y), 1), -1))
            return gradient.mul_(weight[:, None])
        with torch.enable_grad():
            output = output.detach().requires_grad_()
            total = (self.loss(output[None], y[None]) * weight).sum()
        return torch.autograd.grad(total, output)[0]
