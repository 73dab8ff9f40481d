"""The coordinate-wise trimmed mean (Yin et al., ICML 2018)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedsoft.safety.robust import trimmed_mean
from fedsoft.settings import settings

__all__ = ["Trimmed"]


@settings
class Trimmed:
    """Every coordinate of a center is the mean without the largest and the smallest values.

    Arguments:
        share: how much of the weight is left out at either end; at least the share of malicious clients.

    Reference: Yin, Chen, Ramchandran, Bartlett. Byzantine-robust distributed learning: towards optimal statistical
        rates. ICML 2018.
    """

    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.25

    def __call__(self, rows: Tensor, weights: Tensor) -> Tensor:
        return trimmed_mean(rows, weights, self.share)
