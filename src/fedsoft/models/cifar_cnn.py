"""The paper's network for photographs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Builder
from fedsoft.errors import SettingError
from fedsoft.networks.convolutions import Layers, Width, fully_connected, halved, network, pooled
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
        head = fully_connected([channels[-1] * halved(shape, pools), *hidden, shape.outputs])
        return pooled(shape, channels, 3, pool_after=2) + head

    return network("cifar_cnn", pools, layers)
