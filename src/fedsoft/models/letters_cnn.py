"""The paper's network for letters, with a sound head."""

from __future__ import annotations

from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Builder
from fedsoft.networks.convolutions import Layers, Width, fully_connected, halved, network, pooled
from fedsoft.settings import checked

__all__ = ["letters_cnn"]


@checked
def letters_cnn(channels: tuple[Width, Width] = (32, 64), hidden: Width = 512) -> Builder:
    """Two 5x5 convolutions, each halved by a max-pool, then a hidden layer with ReLU and logits, as the paper writes.

    There is no activation between convolution and pool: neither the paper's text nor its authors' code has one, so that
    this network and `letters_cnn_paper` differ in the head alone. Pooling takes the place of the missing ReLU.

    Arguments:
        channels: of the two convolutions.
        hidden: units of the hidden layer.
    """

    def layers(shape: DataShape) -> Layers:
        head = fully_connected([channels[-1] * halved(shape, 2), hidden, shape.outputs])
        return pooled(shape, channels, 5, relu=False) + head

    return network("letters_cnn", 2, layers)
