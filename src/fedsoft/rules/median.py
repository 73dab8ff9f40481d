"""The coordinate-wise median (Yin et al., ICML 2018)."""

from __future__ import annotations

from torch import Tensor

from fedsoft.checks import settings
from fedsoft.trust import robust

__all__ = ["Median"]


@settings
class Median:
    """Every coordinate of a center is the weighted median of the clients' models.

    Liars that hold less than half of a center's weight cannot move it beyond what honest clients sent.

    Reference: Yin, Chen, Ramchandran, Bartlett. Byzantine-robust distributed learning: towards optimal statistical
        rates. ICML 2018.
    """

    def __call__(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The median."""
        return robust.median(rows, weights)
