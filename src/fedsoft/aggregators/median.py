"""The coordinate-wise median (Yin et al., ICML 2018)."""

from __future__ import annotations

from torch import Tensor

from fedsoft.safety import robust
from fedsoft.settings import settings

__all__ = ["Median"]


@settings
class Median:
    """Every coordinate of a center is the weighted median of the clients' models.

    Malicious clients with less than half of a center's weight cannot move it beyond what honest clients sent.

    Reference: Yin, Chen, Ramchandran, Bartlett. Byzantine-robust distributed learning: towards optimal statistical
        rates. ICML 2018.
    """

    def __call__(self, rows: Tensor, weights: Tensor) -> Tensor:
        return robust.median(rows, weights)
