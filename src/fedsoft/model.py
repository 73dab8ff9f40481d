"""A model as the engine sees it: one parameter vector per client, and functions over a stack of them.

The paper writes w_k and c_s as vectors, and so do we. A stack of m models is a matrix `w[m, P]`, so averages, distances
and proximal terms are plain linear algebra for every architecture; a `Layout` gives the named tensors back as views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsoft.errors import InputError
from fedsoft.federation import DataShape, Task
from fedsoft.seeds import generator

Params = dict[str, Tensor]
"""The named tensors of one model, or of a stack of models with a leading axis."""


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in the parameter vector."""

    shapes: Mapping[str, tuple[int, ...]]

    @cached_property
    def size(self) -> int:
        """The length P of the parameter vector."""
        return sum(self.sizes)

    @cached_property
    def sizes(self) -> list[int]:
        """The number of elements of every tensor."""
        return [math.prod(shape) for shape in self.shapes.values()]

    def slices(self) -> Iterator[tuple[str, slice, tuple[int, ...]]]:
        """Name, place and shape of every tensor."""
        begin = 0
        for name, shape in self.shapes.items():
            end = begin + math.prod(shape)
            yield name, slice(begin, end), shape
            begin = end

    def unflatten(self, w: Tensor) -> Params:
        """Views of `w[..., P]` as named tensors `[..., *shape]`."""
        parts = w.split(self.sizes, -1)
        return {name: p.view(w.shape[:-1] + shape) for (name, shape), p in zip(self.shapes.items(), parts, strict=True)}

    def flatten(self, params: Params) -> Tensor:
        """The parameter vector of named tensors (without a leading axis)."""
        return torch.cat([params[name].reshape(-1) for name in self.shapes])


@dataclass(frozen=True)
class Metric:
    """How well a prediction fits: a number per point, its name, and which way is better."""

    name: str
    higher_is_better: bool
    per_point: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Outer:
    """The gradient of the weight `name[out, in]` of one model as a product `left[B, out]^T right[B, in]`."""

    name: str
    left: Tensor
    right: Tensor


class OneAtATime(Protocol):
    """A model's forward and backward pass, for one client at a time (see `chain`, `network`)."""

    def gradient(self, w: Tensor, x: Tensor, slope_at: Callable[[Tensor], Tensor], out: Tensor) -> list[Outer]:
        """Write the gradient at `w[P]` on a batch into `out[P]`, but for the products that are returned."""
        ...


@dataclass(frozen=True)
class Model:
    """Functions over a stack of m models with parameters `w[m, P]`.

    Arguments:
        layout: names and shapes of the parameters.
        draw: first values `[P]` from a generator.
        forward: (named tensors `[m, ...]`, inputs `[m, B, ...]`) to outputs `[m, B, ...]`.
        loss: (outputs, targets `[m, B]`) to the loss of each point `[m, B]`.
        predict: outputs to values or probabilities.
        metric: how predictions are scored.
        features: for models that are linear in their parameters with squared loss: inputs to `[..., P]`, so that the
            output is their product with w. Gives them closed-form gradients and the exact solver.
        chain: for networks that have one: a backward pass written by hand.
        inside: for networks of other kinds that are worked on one client at a time: the backward pass by torch.
        alone: whether clients are best worked on one at a time.
        backends: other ways to compute the same, by name: what a user may choose instead.
        module: the named tensors of one model to a plain network of the same outputs, for export.
    """

    layout: Layout
    draw: Callable[[np.random.Generator], Tensor]
    forward: Callable[[Params, Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Tensor]
    metric: Metric
    features: Callable[[Tensor], Tensor] | None = None
    chain: OneAtATime | None = None
    inside: OneAtATime | None = None
    alone: bool = False
    backends: Mapping[str, Model] = field(default_factory=dict)
    module: Callable[[Params], nn.Module] | None = None

    def by(self, backend: str) -> Model:
        """The same model, computed in another way."""
        if backend == "auto" or (backend == "stacked" and not self.alone):
            return self
        if backend not in self.backends:
            allowed = ", ".join(sorted({"auto", *self.backends, *([] if self.alone else ["stacked"])}))
            raise InputError(f"backend = '{backend}' is not allowed for this model: should be one of {allowed}")
        return self.backends[backend]

    @property
    def size(self) -> int:
        """The number of parameters P."""
        return self.layout.size

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """The outputs of each model on its own inputs, `w[m, P]`, `x[m, B, ...]`."""
        return self.forward(self.layout.unflatten(w), as_numbers(x, w.dtype))

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The gradient `[m, P]` of each model's `sum_i weight_i loss_i` over its batch, `weight[m, B]`."""
        out = torch.empty_like(w)
        for outer in self.gradient_into(out, w, x, y, weight):
            write_out(outer, self.layout, out[0])
        return out

    def gradient_into(self, out: Tensor, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> list[Outer]:
        """Write that gradient into `out[m, P]`; of a single model, products of thin matrices may be left to do."""
        x = as_numbers(x, w.dtype)
        if self.features is not None:
            phi = self.features(x)
            slope = torch.baddbmm(y.unsqueeze(2), phi, w.unsqueeze(2), beta=-2, alpha=2).squeeze(2)  # 2 (<w, x> - y)
            torch.bmm(slope.mul_(weight).unsqueeze(1), phi, out=out.unsqueeze(1))
            return []
        single = self.chain or self.inside
        if single is not None:
            found: list[Outer] = []
            for k in range(len(w)):
                for outer in found:  # its memory is used again for the next model
                    write_out(outer, self.layout, out[k - 1])
                found = single.gradient(w[k], x[k], partial(self._slope_at, y=y[k], weight=weight[k]), out[k])
            if len(w) > 1:
                for outer in found:
                    write_out(outer, self.layout, out[-1])
            return found if len(w) == 1 else []
        with torch.enable_grad():
            # Leaves of their own, not views of one: the gradient of a view would be a zero-filled P-vector for each.
            leaves = {name: part.detach().requires_grad_() for name, part in self.layout.unflatten(w).items()}
            total = (self.loss(self.forward(leaves, x), y) * weight).sum()
        parts = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        torch.cat([part.reshape(len(w), -1) for part in parts], dim=1, out=out)
        return []

    def _slope_at(self, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The slope of `sum_i weight_i loss_i` at the outputs `[B, ...]` of one model."""
        if self.loss is cross_entropy:
            slope = output.softmax(1)
            slope.scatter_add_(1, y[:, None], slope.new_full((len(y), 1), -1))
            return slope.mul_(weight[:, None])
        with torch.enable_grad():
            output = output.detach().requires_grad_()
            total = (self.loss(output[None], y[None]) * weight).sum()
        return torch.autograd.grad(total, output)[0]


def write_out(outer: Outer, layout: Layout, gradient: Tensor) -> None:
    """Write a gradient that was left as a product into its place in `gradient[P]`."""
    torch.mm(outer.left.t(), outer.right, out=layout.unflatten(gradient)[outer.name])


def as_numbers(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs ready for a model: images are kept as bytes, a quarter of the memory, and become 0 to 1 in each batch."""
    return x.to(dtype).div_(255) if x.dtype == torch.uint8 else x


Builder = Callable[[DataShape], Model]
"""Makes the model that fits the data. What `fedsoft.models.linear()` and its like return."""


def squared_loss(output: Tensor, y: Tensor) -> Tensor:
    """The squared error of each point, `|output - y|^2`, summed over outputs where there are several."""
    error = (output - y).square()
    return error if error.ndim == 2 else error.flatten(2).sum(2)


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each point, from logits `[m, B, classes]`."""
    return F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def _hit(prediction: Tensor, y: Tensor) -> Tensor:
    return (prediction.argmax(-1) == y).double()


MSE = Metric("mse", higher_is_better=False, per_point=squared_loss)
ACCURACY = Metric("accuracy", higher_is_better=True, per_point=_hit)


@dataclass(frozen=True)
class Goal:
    """Loss, prediction and metric belong together: one goal for each task."""

    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Tensor]
    metric: Metric


def goal(task: Task) -> Goal:
    """The usual goal of a task: squared loss, or cross-entropy from logits."""
    if task == "regression":
        return Goal(squared_loss, lambda output: output, MSE)
    return Goal(cross_entropy, lambda output: output.softmax(-1), ACCURACY)


def xavier_normal(layout: Layout, keep: Tensor | None = None) -> Callable[[np.random.Generator], Tensor]:
    """Xavier-normal first values, as in the paper: matrices are drawn, biases are 0, other vectors keep their value."""

    def draw(rng: np.random.Generator) -> Tensor:
        w = torch.zeros(layout.size) if keep is None else keep.clone()
        for name, place, shape in layout.slices():
            if len(shape) >= 2:
                field = math.prod(shape[2:])
                deviation = math.sqrt(2 / ((shape[0] + shape[1]) * field))
                w[place] = torch.from_numpy(rng.standard_normal(place.stop - place.start) * deviation).to(w.dtype)
            elif name.rpartition(".")[2].startswith("bias"):  # also an LSTM's bias_ih_l0
                w[place] = 0
        return w

    return draw


def check_outputs(model: Model, shape: DataShape, x: Tensor, y: Tensor) -> None:
    """Try the model on a few points; complain in one sentence if its output does not fit the targets."""
    w = model.draw(generator(0, "try"))[None]
    output = model.outputs(w, x[None])[0]
    points = len(y)
    wanted = [points, shape.outputs] if shape.task == "classification" else list(y.shape)
    if model.metric in (MSE, ACCURACY) and list(output.shape) != wanted:
        raise InputError(
            f"the model's output for {points} points has shape {list(output.shape)}, {shape.task} needs {wanted}"
        )
    loss = model.loss(output[None], y[None])
    if list(loss.shape) != [1, points]:
        raise InputError(
            f"the loss has shape {list(loss.shape[1:])} for {points} points, should be one number per point "
            "(reduction='none')"
        )
