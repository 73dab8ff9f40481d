"""The paper's network for photographs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Builder
from fedsoft.errors import SettingError
from fedsoft.networks.convolutions import Layers, Width, convolution, fully_connected, halved, network
from fedsoft.settings import checked

__all__ = ["cifar_cnn"]


@checked
def cifar_cnn(
    channels: Annotated[tuple[Width, ...], Field(min_length=2)] = (32, 64, 128, 128, 256, 256),
    hidden: tuple[Width, ...] = (1024, 512),
) -> Builder:
    """3x3 convolutions with ReLU, a max-pool after every two, then hidden layers with ReLU and logits.

    The paper gives channels and hidden layers; the 3x3 kernels, which it does not give, are the usual ones. 32x32
    images have 4x4 pixels left after its three pools.

    Arguments:
        channels: of the convolutions, an even number of them.
        hidden: units of each hidden layer.
    """
    if len(channels) % 2:
        raise SettingError("cifar_cnn", "channels", list(channels), "should be an even number of them")
    pools = len(channels) // 2

    def layers(shape: DataShape) -> Layers:
        made: Layers = []
        before = shape.input[0]
        for i, after in enumerate(channels):
            made += [convolution(before, after, 3), nn.ReLU(), *([nn.MaxPool2d(2)] if i % 2 else [])]
            before = after
        return [*made, nn.Flatten(), *fully_connected([before * halved(shape, pools), *hidden, shape.outputs])]

    return network("cifar_cnn", pools, layers)
