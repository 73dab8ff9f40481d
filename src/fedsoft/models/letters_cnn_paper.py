"""The paper's network for letters, with the head of its authors' code."""

from __future__ import annotations

from torch import nn

from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Builder, Model
from fedsoft.errors import InputError
from fedsoft.networks.convolutions import Layers, Width, halved, network, pooled
from fedsoft.settings import checked

__all__ = ["letters_cnn_paper"]


@checked
def letters_cnn_paper(channels: tuple[Width, Width] = (32, 64), hidden: Width = 512) -> Builder:
    """As `letters_cnn`, but with ReLU and softmax after the last layer instead of ReLU after the hidden one.

    That is what the authors' code computes: cross-entropy takes the softmax for logits, a softmax of a softmax. Its
    gradients are small (probabilities differ by 1 at most, so the loss of 26 classes cannot fall below 2.3) and vanish
    for classes that ReLU cut off. It is here to repeat their figures; use `letters_cnn` for anything else.

    Arguments:
        channels: of the two convolutions.
        hidden: units of the hidden layer.
    """

    def layers(shape: DataShape) -> Layers:
        inputs = channels[-1] * halved(shape, 2)
        head: Layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, shape.outputs), nn.ReLU(), nn.Softmax(-1)]
        return pooled(shape, channels, 5, relu=False) + head

    def build(shape: DataShape) -> Model:
        if shape.task != "classification":
            raise InputError(f"letters_cnn_paper ends in a softmax: it is for classification, not for {shape.task}")
        return network("letters_cnn_paper", 2, layers)(shape)

    return build
