"""Norm clipping around the median of the models."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.safety.robust import median
from fedsoft.settings import settings

__all__ = ["Clip"]


@settings
class Clip:
    """A center is the mean of models clipped to a radius around their coordinate-wise median.

    The radius is the weighted median of the distances from there, times a factor: no client counts for more than a
    typical one, however far away it is.

    Arguments:
        factor: the radius, as a multiple of the median distance.

    Reference: Karimireddy, He, Jaggi. Learning from history for Byzantine robust optimization. ICML 2021 (centered
        clipping; around the last center there, here around the median, which malicious clients cannot move far either).
    """

    factor: Annotated[float, Field(gt=0)] = 1.0

    def __call__(self, rows: Tensor, weights: Tensor) -> Tensor:
        middle = median(rows, weights)
        beyond = rows - middle
        distance = beyond.norm(dim=1)
        radius = self.factor * median(distance[:, None], weights)
        scale = (radius / distance.clamp(min=torch.finfo(rows.dtype).tiny)).clamp(max=1)
        return middle + (weights * scale) @ beyond
