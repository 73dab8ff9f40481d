"""Two sources, the share of the first growing evenly over the clients."""

from __future__ import annotations

import numpy as np

from fedsoft.core.partition import Partition
from fedsoft.errors import InputError

__all__ = ["linear"]


def linear() -> Partition:
    """The paper's linear partition: client k of N has a share (k + 0.5)/N of source 0, the rest of source 1."""

    def mixture(clients: int, sources: int, rng: np.random.Generator) -> np.ndarray:
        if sources != 2:
            raise InputError(f"partition 'linear' needs S = 2 sources, not {sources}: use 'random' or 'dirichlet'")
        share = (np.arange(clients) + 0.5) / clients
        return np.stack([share, 1 - share], axis=1)

    return mixture
