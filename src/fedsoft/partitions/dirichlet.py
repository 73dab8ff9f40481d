"""Mixtures from a Dirichlet distribution."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsoft.core.partition import Partition
from fedsoft.settings import checked

__all__ = ["dirichlet"]


@checked
def dirichlet(alpha: Annotated[float, Field(gt=0)] = 0.5) -> Partition:
    """Every client's mixture is a symmetric Dirichlet draw, written `dirichlet(alpha)`.

    Arguments:
        alpha: small for clients of one source each, 1 for uniform mixtures, large for equal ones.
    """

    def mixture(clients: int, sources: int, rng: np.random.Generator) -> np.ndarray:
        # Through gammas of shape alpha + 1: a plain Dirichlet draw of tiny alpha can be 0/0.
        log_gamma = np.log(rng.standard_gamma(alpha + 1, (clients, sources)))
        log_gamma += np.log1p(-rng.random((clients, sources))) / alpha
        share = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
        return share / share.sum(axis=1, keepdims=True)

    return mixture
