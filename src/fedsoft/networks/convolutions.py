"""What the convolutional networks of `models` share: stacks of convolutions and pools, and what images fit them.

Everything is a plain `nn.Sequential`, layer after layer, so that `chain` can convert it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import nn

from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Builder, Model
from fedsoft.errors import InputError
from fedsoft.networks.module import from_module

Width = Annotated[int, Field(ge=1)]

Layers = list[nn.Module]


def network(name: str, halvings: int, layers: Callable[[DataShape], Layers]) -> Builder:
    """Make a model of these layers, for images that can be halved this many times."""

    def build(shape: DataShape) -> Model:
        check_images(name, shape, halvings)
        return from_module(lambda: nn.Sequential(*layers(shape)), init="xavier")(shape)

    return build


def check_images(name: str, shape: DataShape, halvings: int) -> None:
    """Raise InputError for points that are not images, or too small to be halved this many times."""
    if len(shape.input) != 3:
        raise InputError(
            f"{name} needs images: a point has shape {list(shape.input)}, should be [channels, height, width]"
        )
    if min(shape.input[1:]) < 2**halvings:
        height, width = shape.input[1:]
        raise InputError(
            f"{name} needs images of at least {2**halvings} x {2**halvings} pixels, these have {height} x {width}"
        )


def halved(shape: DataShape, times: int) -> int:
    """Return the pixels left of an image when its sides are halved this many times."""
    height, width = shape.input[1:]
    return (height >> times) * (width >> times)


def pooled(shape: DataShape, channels: Sequence[int], kernel: int, *, relu: bool = True, pool_after: int = 1) -> Layers:
    """Return convolutions, with a max-pool after every `pool_after` that halves the sides; flat at the end."""
    layers: Layers = []
    for number, (before, after) in enumerate(pairwise([shape.input[0], *channels]), start=1):
        layers += [nn.Conv2d(before, after, kernel, padding=kernel // 2), *([nn.ReLU()] if relu else [])]
        layers += [] if number % pool_after else [nn.MaxPool2d(2)]
    return [*layers, nn.Flatten()]


def fully_connected(widths: Sequence[int]) -> Layers:
    """Return fully connected layers with ReLU between them, none after the last."""
    layers: Layers = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]
