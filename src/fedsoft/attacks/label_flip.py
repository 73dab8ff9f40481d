"""Labels turned around."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedsoft.checks import settings
from fedsoft.federation import DataShape
from fedsoft.trust.attack import Honest

__all__ = ["LabelFlip"]


@settings
class LabelFlip(Honest):
    """A liar learns from false targets, honestly: the last class for the first and so on, or -y for a number y.

    Arguments:
        share: the share of clients that lie.
    """

    share: Annotated[float, Field(ge=0, lt=1)] = 0.2

    def points(self, y: Tensor, shape: DataShape) -> Tensor:
        """The false targets."""
        return -y if shape.task == "regression" else shape.outputs - 1 - y
