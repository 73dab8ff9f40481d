"""A model as the engine sees it: one parameter vector per client, and functions over a stack of them.

The paper writes w_k and c_s as vectors, and so do we. A stack of m models is a matrix `w[m, P]`, so averages, distances
and proximal terms are plain linear algebra for every architecture; a `Layout` gives the named tensors back as views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedsoft.core.client_data import DataShape
from fedsoft.core.metrics import ACCURACY, LABEL_ACCURACY, MSE, Metric
from fedsoft.errors import InputError
from fedsoft.seeds import generator

Params = dict[str, Tensor]
"""The named tensors of one model, or of a stack of models with a leading axis."""


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in the parameter vector."""

    shapes: Mapping[str, tuple[int, ...]]

    @cached_property
    def size(self) -> int:
        """P, the length of the parameter vector."""
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
        """Return the parameter vector of named tensors (without a leading axis)."""
        return torch.cat([params[name].reshape(-1) for name in self.shapes])


@dataclass(frozen=True)
class OuterProduct:
    """The gradient of the weight `name[out, in]` of one model as a product `left[B, out]^T right[B, in]`."""

    name: str
    left: Tensor
    right: Tensor

    def write(self, layout: Layout, gradient: Tensor) -> None:
        """Multiply it out into its place in `gradient[P]`."""
        torch.mm(self.left.t(), self.right, out=layout.unflatten(gradient)[self.name])


@dataclass(frozen=True)
class Step:
    """A step of m clients' training, for networks that train otherwise than they predict (dropout, batch statistics).

    Arguments:
        keys: names each client's draws in this step, `[m]` (see `draws`).
        points: how many points of each client's batch are its own, `[m]`; those after them are padding.
    """

    keys: Tensor
    points: Tensor


class Backend(Protocol):
    """How the outputs and gradients of a stack of models are computed (see `backends`, `models.linear`)."""

    @property
    def name(self) -> str:
        """What users choose it by: `stacked`, `loop` or `chain`."""
        ...

    @property
    def one_client_at_a_time(self) -> bool:
        """Whether stacks of several clients bring no speed."""
        ...

    def forward(self, params: Params, x: Tensor, /) -> Tensor:
        """Return the outputs `[m, B, ...]` of named tensors `[m, ...]` on inputs `[m, B, ...]`."""
        ...

    def gradient_into(
        self, out: Tensor, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, step: Step | None = None
    ) -> Sequence[OuterProduct]:
        """Write the gradient of each model's `sum_i weight_i loss_i` into `out[m, P]`.

        Products of thin matrices may be left to do, for a single model only. With a `step`, the network trains: it
        draws, and the places of statistics in `out` get their new values. Without, it is the gradient of what is
        predicted.
        """
        ...


def as_numbers(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return inputs as numbers: images are kept as bytes, a quarter of the memory, and scaled to 0 to 1."""
    return x.to(dtype).div_(255) if x.dtype == torch.uint8 else x.to(dtype)


@dataclass(frozen=True)
class Model:
    """Functions over a stack of m models with parameters `w[m, P]`.

    Arguments:
        layout: names and shapes of the parameters.
        draw: initial weights `[P]` from a generator.
        backend: how outputs and gradients are computed.
        loss: (outputs, targets `[m, B]`) to the loss of each point `[m, B]`.
        predict: outputs to values or probabilities.
        metric: how predictions are scored.
        features: for models that are linear in their parameters with squared loss: inputs to `[..., P]`, so that the
            output is their product with w. The exact solver needs it.
        is_linear: whether outputs are linear in the parameters, but for a constant. Their derivatives are then those
            of any parameters, and the curvature needs no differentiation.
        module: the named tensors of one model to a plain network of the same outputs, for export.
        backends: further backends that a user may choose, by name.
        apart: moves the weights of further centers, for models all of whose draws are the same (see `networks.starts`).
        needs_step: whether training needs a `Step`, because it differs from prediction.
        statistics: how many parameters, the last ones, are statistics of batches: they are averaged, sent and saved as
            all others, but updated by every batch instead of by the solver.
        local_statistics: whether they stay with each client, in place of being averaged.
        inputs: inputs as they are kept to inputs as the backend takes them, beside parameters of a type.
        latent: named tensors and inputs, as for the backend, to what the last layer is given, `[m, B, d]`.
    """

    layout: Layout
    draw: Callable[[np.random.Generator], Tensor]
    backend: Backend
    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Tensor]
    metric: Metric
    features: Callable[[Tensor], Tensor] | None = None
    is_linear: bool = False
    module: Callable[[Params], nn.Module] | None = None
    backends: Mapping[str, Backend] = field(default_factory=dict)
    apart: Callable[[Tensor, np.random.Generator], Tensor] | None = None
    needs_step: bool = False
    statistics: int = 0
    local_statistics: bool = False
    inputs: Callable[[Tensor, torch.dtype], Tensor] = as_numbers
    latent: Callable[[Params, Tensor], Tensor] | None = None

    def by(self, backend: str) -> Model:
        """Return the same model with another backend."""
        choices = {self.backend.name: self.backend, **self.backends}
        if backend == "auto":
            return self
        if backend not in choices:
            allowed = ", ".join(sorted({"auto", *choices}))
            raise InputError(f"backend = '{backend}' is not allowed for this model: should be one of {allowed}")
        return replace(self, backend=choices[backend])

    @property
    def size(self) -> int:
        """The number of parameters P."""
        return self.layout.size

    def with_statistics(self, w: Tensor, statistics: Tensor | None) -> Tensor:
        """Return models `w[..., P]` with these statistics `[..., Q]` in place of their own; None leaves them."""
        if statistics is None:
            return w
        return torch.cat([w[..., : -self.statistics], statistics.expand(*w.shape[:-1], -1).to(w)], -1)

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of each model on its own inputs, `w[m, P]`, `x[m, B, ...]`."""
        return self.backend.forward(self.layout.unflatten(w), self.inputs(x, w.dtype))

    def latents(self, w: Tensor, x: Tensor) -> Tensor:
        """Return what the last layer of each model is given for its own inputs, `[m, B, d]`."""
        if self.latent is None:
            raise InputError("this model has no layers whose values could be compared: use a network, or linear")
        return self.latent(self.layout.unflatten(w), self.inputs(x, w.dtype))

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient `[m, P]` of each model's `sum_i weight_i loss_i` over its batch, `weight[m, B]`."""
        out = torch.empty_like(w)
        for product in self.gradient_into(out, w, x, y, weight):
            product.write(self.layout, out[0])
        return out

    def gradient_into(
        self, out: Tensor, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, step: Step | None = None
    ) -> Sequence[OuterProduct]:
        """Write that gradient into `out[m, P]`, except for products that are returned, see `Backend`."""
        return self.backend.gradient_into(out, w, self.inputs(x, w.dtype), y, weight, step)


Builder = Callable[[DataShape], Model]
"""Makes the model that fits the data: what `fedsoft.models.linear()` and the others return. One that has an argument
`points` is given a few of a client's inputs there, to try itself on."""


def xavier_normal(layout: Layout, keep: Tensor | None = None) -> Callable[[np.random.Generator], Tensor]:
    """Draw Xavier-normal initial weights, as in the paper: biases are 0, other vectors keep their value."""

    def draw(rng: np.random.Generator) -> Tensor:
        w = torch.zeros(layout.size) if keep is None else keep.clone()
        for name, place, shape in layout.slices():
            if len(shape) >= 2:
                field = math.prod(shape[2:])
                std = math.sqrt(2 / ((shape[0] + shape[1]) * field))
                w[place] = torch.from_numpy(rng.standard_normal(place.stop - place.start) * std).to(w.dtype)
            elif name.rpartition(".")[2].startswith("bias"):  # also an LSTM's bias_ih_l0
                w[place] = 0
        return w

    return draw


def check_outputs(model: Model, shape: DataShape, x: Tensor, y: Tensor) -> None:
    """Try the model on a few points; raise InputError if its output does not fit the targets."""
    w = model.draw(generator(0, "try"))[None]
    output = model.outputs(w, x[None])[0]
    points = len(y)
    wanted = [points, shape.outputs] if shape.task == "classification" else list(y.shape)
    if model.metric in (MSE, ACCURACY, LABEL_ACCURACY) and list(output.shape) != wanted:
        raise InputError(
            f"the model's output for {points} points has shape {list(output.shape)}, {shape.task} needs {wanted}"
        )
    loss = model.loss(output[None], y[None])
    if list(loss.shape) != [1, points]:
        raise InputError(
            f"the loss has shape {list(loss.shape[1:])} for {points} points, should be one number per point "
            "(reduction='none')"
        )
