"""Krum and multi-Krum (Blanchard et al., NeurIPS 2017)."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedsoft.safety.robust import squared_distances
from fedsoft.settings import settings

__all__ = ["Krum"]


@settings
class Krum:
    """A center is the mean of the models with the closest neighbours.

    Of m models, f = share m may be malicious. A model's score is the sum of its squared distances to the m - f - 2
    nearest others. The models with the smallest scores are averaged by their weights.

    Arguments:
        share: the expected share of malicious clients.
        multi: average the m - f best models (multi-Krum), or take the best alone (Krum).

    Reference: Blanchard, El Mhamdi, Guerraoui, Stainer. Machine learning with adversaries: Byzantine tolerant gradient
        descent. NeurIPS 2017.
    """

    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.25
    multi: bool = True

    def __call__(self, rows: Tensor, weights: Tensor) -> Tensor:
        m = len(rows)
        malicious = math.ceil(self.share * m)
        neighbours = max(1, m - malicious - 2)
        score = (
            squared_distances(rows).sort(dim=1).values[:, 1 : neighbours + 1].sum(1)
        )  # the first is the model itself
        best = score.argsort(stable=True)[: max(1, m - malicious) if self.multi else 1]
        return weights[best] @ rows[best] / weights[best].sum()
