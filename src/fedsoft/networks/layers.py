"""Layers of a convolutional network in one thread: forward, and backward by hand (see `chain`).

Images have the shape `[B, C, H, W]` of torch and lie in memory with their channels last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsoft.core.model import OuterProduct, Params

THIN = 16  # points in a batch up to which loops of our own use a large weight faster
LARGE = 2**16  # elements of a weight from which that pays

_convolution_backward: Callable[..., Any] = torch.ops.aten.convolution_backward
_threshold_backward: Callable[..., Any] = torch.ops.aten.threshold_backward.grad_input

Passed = tuple[Tensor | None, list[OuterProduct]]
"""The gradient of a layer's input, and those of its parameters that are still products."""


class Layer(Protocol):
    """A layer, for use in one thread. What it keeps from a forward pass serves the backward pass that follows."""

    def forward(self, x: Tensor, own: Params) -> Tensor:
        """Return the output; may reuse the memory of `x`."""
        ...

    def backward(self, grad: Tensor, own: Params, gradient: Params, first: bool) -> Passed:
        """Return the gradient of the input (not needed of the `first` layer), given that of the output.

        Fills in the layer's own `gradient`, or leaves a weight's as a product of thin matrices. May reuse the memory
        of `grad`.
        """
        ...


class Kept:
    """Memory for batches of up to the largest size seen."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None

    def take(self, shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or like.dtype
        kept = self.memory
        if kept is not None and kept.shape == tuple(shape) and kept.dtype == dtype:
            return kept
        if kept is None or kept.shape[0] < shape[0] or kept.shape[1:] != tuple(shape[1:]) or kept.dtype != dtype:
            self.memory = kept = like.new_empty(tuple(shape), dtype=dtype)
        return kept[: shape[0]]


def channels_last(x: Tensor) -> Tensor:
    """Return images `[B, C, H, W]` as `[B, H, W, C]`, copied where they do not lie so."""
    return x.permute(0, 2, 3, 1).contiguous()


def channels_second(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


class Convolution:
    """A convolution by the library. Its `input` is kept by the layer before, or is the batch."""

    def __init__(self, stride: Sequence[int], padding: Sequence[int]) -> None:
        self.stride, self.padding = list(stride), list(padding)

    def forward(self, x: Tensor, own: Params) -> Tensor:
        self.input = x = x.contiguous(memory_format=torch.channels_last)
        return torch.conv2d(x, own["weight"], own.get("bias"), self.stride, self.padding)

    def backward(self, grad: Tensor, own: Params, gradient: Params, first: bool) -> Passed:
        grad = grad.contiguous(memory_format=torch.channels_last)
        before, weight, _ = _convolution_backward(
            grad, self.input, own["weight"], None, self.stride, self.padding, [1, 1], False, [0, 0], 1,
            [not first, True, False],
        )  # fmt: skip
        gradient["weight"].copy_(weight)
        if "bias" in gradient:
            torch.sum(grad, (0, 2, 3), out=gradient["bias"])
        return before, []


class FirstConvolution:
    """A convolution of few inputs that nothing comes before: patches become columns once for both passes."""

    def __init__(self, kernel: int, padding: int) -> None:
        self.kernel, self.padding = kernel, padding
        self.columns, self.output = Kept(), Kept()

    def forward(self, x: Tensor, own: Params) -> Tensor:
        from fedsoft.core import kernels

        self.sides = [side + 2 * self.padding - self.kernel + 1 for side in x.shape[2:]]
        cols = self.columns.take([len(x), x.shape[1] * self.kernel**2, *self.sides], x)
        kernels.columns(x.contiguous().numpy(), cols.numpy(), self.kernel, self.padding)
        self.cols = cols.flatten(2)
        return self.products(own)

    def products(self, own: Params) -> Tensor:
        """Return the output for the patches that are there."""
        weight = own["weight"].flatten(1)
        out = self.output.take([len(self.cols), math.prod(self.sides), len(weight)], self.cols)
        stacked = weight.t().expand(len(self.cols), -1, -1)
        if "bias" in own:
            torch.baddbmm(own["bias"], self.cols.mT, stacked, out=out)
        else:
            torch.bmm(self.cols.mT, stacked, out=out)
        return channels_second(out.unflatten(1, self.sides))

    def backward(self, grad: Tensor, own: Params, gradient: Params, first: bool) -> Passed:
        flat = channels_last(grad).flatten(1, 2)
        gradient["weight"].flatten(1).copy_(torch.bmm(self.cols, flat).sum(0).t())
        if "bias" in gradient:
            torch.sum(flat, (0, 1), out=gradient["bias"])
        return None, []


class MaxPool:
    """The largest of every 2 x 2 square."""

    def __init__(self) -> None:
        self.output, self.where, self.gradient = Kept(), Kept(), Kept()

    def forward(self, x: Tensor, own: Params) -> Tensor:
        from fedsoft.core import kernels

        x = channels_last(x)
        self.shape = x.shape
        shape = [len(x), x.shape[1] // 2, x.shape[2] // 2, x.shape[3]]
        out, self.place = self.output.take(shape, x), self.where.take(shape, x, torch.uint8)
        kernels.pool(x.numpy(), out.numpy(), self.place.numpy())
        return channels_second(out)

    def backward(self, grad: Tensor, own: Params, gradient: Params, first: bool) -> Passed:
        from fedsoft.core import kernels

        out = self.gradient.take(self.shape, grad)
        kernels.unpool(channels_last(grad).numpy(), self.place.numpy(), out.numpy())
        return channels_second(out), []


class ReLU:
    """max(x, 0), in the memory of x."""

    def forward(self, x: Tensor, own: Params) -> Tensor:
        self.output = x.relu_()
        return self.output

    def backward(self, grad: Tensor, own: Params, gradient: Params, first: bool) -> Passed:
        return _threshold_backward(grad, self.output, 0, grad_input=grad), []


class Softmax:
    """Shares that sum to 1, over the last axis of `[B, classes]`."""

    def forward(self, x: Tensor, own: Params) -> Tensor:
        self.output = x.softmax(1)
        return self.output

    def backward(self, grad: Tensor, own: Params, gradient: Params, first: bool) -> Passed:
        inner = (grad * self.output).sum(1, keepdim=True)
        return (grad - inner) * self.output, []


class Flatten:
    """Every image as one row."""

    def forward(self, x: Tensor, own: Params) -> Tensor:
        self.shape = x.shape
        return x.flatten(1)

    def backward(self, grad: Tensor, own: Params, gradient: Params, first: bool) -> Passed:
        return grad.reshape(self.shape), []


class Linear:
    """A fully connected layer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.output, self.before = Kept(), Kept()

    def forward(self, x: Tensor, own: Params) -> Tensor:
        self.input, weight = x, own["weight"]
        out = self.output.take([len(x), len(weight)], x)
        if "bias" not in own:
            return torch.mm(x, weight.t(), out=out)
        if _is_thin(x, weight):
            from fedsoft.core import kernels

            kernels.thin_outputs(x.contiguous().numpy(), weight.numpy(), own["bias"].numpy(), out.numpy())
            return out
        return torch.addmm(own["bias"], x, weight.t(), out=out)

    def backward(self, grad: Tensor, own: Params, gradient: Params, first: bool) -> Passed:
        weight, thin = own["weight"], _is_thin(grad, own["weight"])
        if "bias" in gradient:
            torch.sum(grad, 0, out=gradient["bias"])
        before = None if first else self.before.take(self.input.shape, grad)
        if before is not None and thin:
            from fedsoft.core import kernels

            kernels.thin_input_gradients(grad.contiguous().numpy(), weight.numpy(), before.numpy())
        elif before is not None:
            torch.mm(grad, weight, out=before)
        if thin:
            return before, [OuterProduct(self.name, grad, self.input)]
        torch.mm(grad.t(), self.input, out=gradient["weight"])
        return before, []


def _is_thin(rows: Tensor, weight: Tensor) -> bool:
    """Return whether loops of our own are faster than a general product: they read a large weight once, as it lies."""
    return len(rows) <= THIN and weight.numel() >= LARGE
