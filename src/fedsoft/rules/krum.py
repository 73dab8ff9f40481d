"""Krum and multi-Krum (Blanchard et al., NeurIPS 2017)."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedsoft.checks import settings
from fedsoft.trust.robust import squared_distances

__all__ = ["Krum"]


@settings
class Krum:
    """A center is the mean of those models that have the closest neighbours.

    Of m models, f = share m may be liars. A model's score is the sum of its squared distances to the m - f - 2 nearest
    others. The models with the smallest scores are averaged by their weights.

    Arguments:
        share: the share of liars that is expected.
        multi: whether the m - f best are averaged (multi-Krum), or the very best is taken alone (Krum).

    Reference: Blanchard, El Mhamdi, Guerraoui, Stainer. Machine learning with adversaries: Byzantine tolerant gradient
        descent. NeurIPS 2017.
    """

    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.25
    multi: bool = True

    def __call__(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The mean of the best."""
        m = len(rows)
        liars = math.ceil(self.share * m)
        near = max(1, m - liars - 2)
        score = squared_distances(rows).sort(dim=1).values[:, 1 : near + 1].sum(1)  # the first is the model itself
        best = score.argsort(stable=True)[: max(1, m - liars) if self.multi else 1]
        return weights[best] @ rows[best] / weights[best].sum()
