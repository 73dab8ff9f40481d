"""Two sources mixed a:b, half the clients each way."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsoft.core.partition import Partition
from fedsoft.errors import InputError
from fedsoft.settings import checked

__all__ = ["ratio"]


@checked
def ratio(a: Annotated[float, Field(ge=0)], b: Annotated[float, Field(ge=0)]) -> Partition:
    """The paper's 10:90 and 30:70, written `a:b`: the first half of the clients has a share a of source 0 and b of
    source 1, the second half the other way round.

    Arguments:
        a, b: the two shares, in any unit.
    """
    if a + b == 0:
        raise InputError("partition '0:0' is not allowed: one of the shares should be positive")

    def mixture(clients: int, sources: int, rng: np.random.Generator) -> np.ndarray:
        if sources != 2:
            raise InputError(f"partition '{a:g}:{b:g}' needs S = 2 sources, not {sources}: use 'random' or 'dirichlet'")
        one = np.array([a, b]) / (a + b)
        first = np.arange(clients)[:, None] < (clients + 1) // 2
        return np.where(first, one, one[::-1])

    return mixture
