"""A small network for small images."""

from __future__ import annotations

from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Builder
from fedsoft.networks.convolutions import Layers, Width, fully_connected, halved, network, pooled
from fedsoft.settings import checked

__all__ = ["digits_cnn"]


@checked
def digits_cnn(channels: tuple[Width, Width] = (16, 32), hidden: Width = 64) -> Builder:
    """Two 3x3 convolutions with ReLU, each halved by a max-pool, then a hidden layer with ReLU and logits.

    Made for the 8x8 digits of scikit-learn (13,706 parameters); also for images of 14x14 and so on.

    Arguments:
        channels: of the two convolutions.
        hidden: units of the hidden layer.
    """

    def layers(shape: DataShape) -> Layers:
        head = fully_connected([channels[-1] * halved(shape, 2), hidden, shape.outputs])
        return pooled(shape, channels, 3) + head

    return network("digits_cnn", 2, layers)
