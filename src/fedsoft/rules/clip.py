"""Norm clipping, around the middle of the models."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.checks import settings
from fedsoft.trust.robust import median

__all__ = ["Clip"]


@settings
class Clip:
    """A center is the mean of models that were pulled in to no more than a radius from their coordinate-wise median.

    The radius is the weighted median of the distances from there, times a factor: nobody counts for more than a usual
    client, however far away it is.

    Arguments:
        factor: the radius, in usual distances.

    Reference: Karimireddy, He, Jaggi. Learning from history for Byzantine robust optimization. ICML 2021 (centered
        clipping; around the last center there, here around the median, which liars cannot move far either).
    """

    factor: Annotated[float, Field(gt=0)] = 1.0

    def __call__(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The mean of what was clipped."""
        middle = median(rows, weights)
        beyond = rows - middle
        distance = beyond.norm(dim=1)
        radius = self.factor * median(distance[:, None], weights)
        scale = (radius / distance.clamp(min=torch.finfo(rows.dtype).tiny)).clamp(max=1)
        return middle + (weights * scale) @ beyond
