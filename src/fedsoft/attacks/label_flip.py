"""Flipped labels."""

from __future__ import annotations

from torch import Tensor

from fedsoft.core.client_data import DataShape
from fedsoft.safety.malicious import Attack
from fedsoft.settings import settings

__all__ = ["LabelFlip"]


@settings
class LabelFlip(Attack):
    """A malicious client trains on false targets: the last class for the first and so on, or -y for a number y.

    Arguments:
        share: the share of clients that are malicious.
    """

    def points(self, y: Tensor, shape: DataShape) -> Tensor:
        return -y if shape.task == "regression" else shape.outputs - 1 - y
