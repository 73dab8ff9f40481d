"""Convolutional networks that are a plain chain of layers, with their backward pass written by hand.

On a CPU one client at a time is the fastest way to train a CNN: stacks of clients become grouped convolutions, which
are slow, and the state of a stack does not fit the cache. What is left to gain lies in the steps between the products:
no graph is recorded, memory is used again, pooling and the first convolution have loops of their own, and the gradient
of a large fully connected layer stays a product of two thin matrices until the optimizer uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsoft.core.model import Layout, OuterProduct, Params
from fedsoft.machine.threads import PerThread
from fedsoft.networks import few_products, layers
from fedsoft.networks.layers import Layer

EVALUATED_AT_ONCE = 32  # images; more do not fit the cache
KERNEL = 5  # side of those that few products are known for (`core.winograd`)
FEW_TAPS = 32  # inputs to one output of a first convolution up to which patches are written out as columns


@dataclass(frozen=True)
class Link:
    """A layer of the chain: how to make it, and the names of its parameters."""

    make: Callable[[], Layer]
    names: dict[str, str]


class Chain:
    """A `backends.Network` of links, for use in any thread."""

    def __init__(self, layout: Layout, links: Sequence[Link]) -> None:
        self.layout, self.links = layout, links
        self.here = PerThread()

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        models = [self._by_layer({name: part[k] for name, part in params.items()}) for k in range(len(x))]
        if len(models) > 1 and x.stride(0) == 0:  # all see the same images: their patches are taken once
            parts = x[0].split(EVALUATED_AT_ONCE)
            found = [torch.stack([self._forward(own, part, k > 0) for k, own in enumerate(models)]) for part in parts]
            return torch.cat(found, 1)
        rows = []
        for own, inputs in zip(models, x, strict=True):
            rows.append(torch.cat([self._forward(own, part) for part in inputs.split(EVALUATED_AT_ONCE)]))
        return torch.stack(rows)

    def gradient(
        self, w: Tensor, x: Tensor, loss_gradient: Callable[[Tensor], Tensor], out: Tensor, key: Tensor | None = None
    ) -> list[OuterProduct]:
        given, wanted = self._views("given", w), self._views("wanted", out)
        for layer, own in zip(self._layers(), given, strict=True):
            x = layer.forward(x, own)
        grad: Tensor | None = loss_gradient(x)
        products: list[OuterProduct] = []
        for number, layer in reversed(list(enumerate(self._layers()))):
            assert grad is not None
            grad, found = layer.backward(grad, given[number], wanted[number], number == 0)
            products += found
        return products

    def _forward(self, parts: Sequence[Params], x: Tensor, again: bool = False) -> Tensor:
        """Return the outputs for images, which are the same as in the last call where it is done `again`."""
        for number, (layer, own) in enumerate(zip(self._layers(), parts, strict=True)):
            if again and number == 0 and isinstance(layer, layers.FirstConvolution):
                x = layer.products(own)
            else:
                x = layer.forward(x, own)
        return x.clone()

    def _by_layer(self, params: Params) -> list[Params]:
        return [{key: params[name] for key, name in link.names.items()} for link in self.links]

    def _views(self, kept: str, w: Tensor) -> list[Params]:
        """Return the parts of `w[P]` by layer: those of the last call where they are in the same memory.

        It cannot be that of another tensor meanwhile, because views keep it.
        """
        place, views = getattr(self.here, kept, (None, []))
        if place != (w.data_ptr(), w.dtype, w.shape):
            views = self._by_layer(self.layout.unflatten(w))
            setattr(self.here, kept, ((w.data_ptr(), w.dtype, w.shape), views))
        return views

    def _layers(self) -> list[Layer]:
        """Return the layers of this thread: each has its own, and with them its own memory."""
        if not hasattr(self.here, "layers"):
            self.here.layers = [link.make() for link in self.links]
        return self.here.layers


def as_chain(net: nn.Module, layout: Layout, inputs: Sequence[int]) -> Chain | None:
    """Return a network for images as a chain; None if it is not one, or does not begin with a convolution."""
    parts = _leaves(net, "")
    if len(inputs) != 3 or not parts or type(parts[0][1]) is not nn.Conv2d:
        return None
    links: list[Link] = []
    flat = False
    for name, part in parts:
        if flat != isinstance(part, nn.Linear | nn.Softmax) and not isinstance(part, nn.ReLU | nn.Identity):
            return None  # images into a layer for rows, or rows into one for images
        flat = flat or isinstance(part, nn.Flatten)
        names = {key: f"{name}.{key}" for key, value in part.named_parameters() if value is not None}
        if set(names.values()) - layout.shapes.keys():
            return None  # a frozen layer
        make = _maker(part, names, first=not links)
        if make is not None:
            links.append(Link(make, names))
        elif type(part) is not nn.Identity:
            return None
    return Chain(layout, links)


def _leaves(net: nn.Module, prefix: str) -> list[tuple[str, nn.Module]] | None:
    """Return the layers of nested `nn.Sequential`s in order, with their names."""
    if type(net) is not nn.Sequential:
        return None
    found = []
    for name, part in net.named_children():
        inner = _leaves(part, f"{prefix}{name}.") if isinstance(part, nn.Sequential) else [(f"{prefix}{name}", part)]
        if inner is None:
            return None
        found += inner
    return found


def _maker(part: nn.Module, names: dict[str, str], first: bool) -> Callable[[], Layer] | None:
    """Return how to make the layer; None for kinds and settings that a chain does not support."""
    if type(part) is nn.Conv2d:
        if part.groups != 1 or part.dilation != (1, 1) or part.padding_mode != "zeros" or isinstance(part.padding, str):
            return None
        stride, padding, kernel = part.stride, part.padding, part.kernel_size
        square = kernel[0] == kernel[1] and padding[0] == padding[1] and stride == (1, 1)
        if first and square and part.in_channels * kernel[0] ** 2 <= FEW_TAPS:
            return lambda: layers.FirstConvolution(kernel[0], int(padding[0]))
        few = kernel[0] == KERNEL and square and 0 <= int(padding[0]) < KERNEL
        if few and not few_products.WIDE and min(part.in_channels, part.out_channels) >= few_products.LEAST:
            return lambda: few_products.FewProducts(int(padding[0]))
        return lambda: layers.Convolution(stride, [int(side) for side in padding])
    if type(part) is nn.MaxPool2d:
        plain = (_side(part.kernel_size), _side(part.stride), _side(part.padding), _side(part.dilation)) == (2, 2, 0, 1)
        return layers.MaxPool if plain and not part.ceil_mode and not part.return_indices else None
    if type(part) is nn.Linear:
        return lambda: layers.Linear(names["weight"])
    if type(part) is nn.ReLU:
        return layers.ReLU
    if type(part) is nn.Softmax:
        return layers.Softmax if part.dim in (1, -1) else None
    if type(part) is nn.Flatten:
        return layers.Flatten if (part.start_dim, part.end_dim) == (1, -1) else None
    return None


def _side(value: Any) -> int | None:
    """Return the side of a square, given as one number or as two equal ones."""
    sides = {value} if isinstance(value, int) else set(value)
    return sides.pop() if len(sides) == 1 else None
