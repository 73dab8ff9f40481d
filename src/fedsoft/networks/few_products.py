"""A convolution of 5 x 5 by `core.winograd`, with its backward pass: the transposes of the same transforms."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.model import Params
from fedsoft.networks.layers import Convolution, Kept, Passed, channels_last, channels_second

MOST = 16  # images; the transforms of more do not stay near the cache
# Where the library has vectors of 512 bits, its convolutions are twice as fast as products of matrices can be here.
WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512"
LEAST = 16  # channels on both sides; with fewer, transforms take longer than what they save


@cache
def _transforms(dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """Return how inputs, their gradients, outputs and weights are transformed."""
    from fedsoft.core import winograd

    rows = [winograd.INPUT, np.ascontiguousarray(winograd.INPUT.T), winograd.OUTPUT]
    first, second, third = (torch.from_numpy(matrix).to(dtype).numpy() for matrix in rows)
    return first, second, third, torch.from_numpy(np.kron(winograd.WEIGHT, winograd.WEIGHT)).to(dtype)


class FewProducts:
    """The convolution; batches that are too large for it are left to the library."""

    def __init__(self, padding: int) -> None:
        self.padding, self.library = padding, Convolution([1, 1], [padding, padding])
        self.tiles, self.products, self.output, self.before, self.back = (Kept() for _ in range(5))

    def forward(self, x: Tensor, own: Params) -> Tensor:
        self.plain = len(x) > MOST
        if self.plain:
            return self.library.forward(x, own)
        from fedsoft.core import winograd

        weight, bias = own["weight"], own.get("bias")
        x = channels_last(x)
        self.shape = x.shape
        points, height, width, channels = x.shape
        sides = [side + 2 * self.padding - 4 for side in (height, width)]
        rows, across = (-(-side // 2) for side in sides)
        inner, _, outer, weights = _transforms(x.dtype)
        # Tiles lie first by their 36 places, so that a smaller batch needs memory of another shape.
        self.now = self.tiles.take([36, points * rows * across, channels], x)
        products = self.products.take([36, points * rows * across, len(weight)], x)
        winograd.tiles_of(
            x.flatten(2).numpy(), self.padding, inner, channels,
            self.now.view(6, 6, points * rows, across * channels).numpy(),
        )  # fmt: skip
        turned = weight.flatten(2).permute(2, 1, 0).reshape(25, -1)
        torch.bmm(self.now, torch.mm(weights, turned).view(36, channels, -1), out=products)
        out = self.output.take([points, *sides, len(weight)], x)
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        places = products.view(6, 6, points * rows, -1).numpy()
        winograd.outputs_of(places, outer, bias.numpy(), out.flatten(2).numpy())
        return channels_second(out)

    def backward(self, grad: Tensor, own: Params, gradient: Params, first: bool) -> Passed:
        if self.plain:
            return self.library.backward(grad, own, gradient, first)
        from fedsoft.core import winograd

        weight, channels = own["weight"], self.shape[3]
        grad = channels_last(grad)
        _, back, outer, weights = _transforms(grad.dtype)
        rows = len(grad) * -(-grad.shape[1] // 2)
        products = self.products.take([36, self.now.shape[1], len(weight)], grad)
        winograd.tiles_of_gradient(
            grad.flatten(2).numpy(), outer, len(weight), products.view(6, 6, rows, -1).numpy()
        )  # fmt: skip
        found = torch.bmm(products.mT, self.now).view(36, -1)
        torch.mm(found.t(), weights, out=gradient["weight"].view(-1, 25))
        if "bias" in gradient:
            torch.sum(grad, (0, 1, 2), out=gradient["bias"])
        if first:
            return None, []
        tiles = self.back.take(self.now.shape, grad)
        torch.bmm(products, torch.mm(weights, weight.view(-1, 25).t()).view(36, -1, channels), out=tiles)
        out = self.before.take(self.shape, grad)
        winograd.gradient_of(
            tiles.view(6, 6, rows, -1).numpy(), self.padding, back, channels, out.flatten(2).numpy()
        )  # fmt: skip
        return channels_second(out), []
