"""Uniform cut points."""

from __future__ import annotations

import numpy as np

from fedsoft.core.partition import Partition

__all__ = ["random"]


def random() -> Partition:
    """The paper's random partition: [0, 1] is cut into S segments by S - 1 uniform points, anew for every client."""

    def mixture(clients: int, sources: int, rng: np.random.Generator) -> np.ndarray:
        cuts = np.sort(rng.random((clients, sources - 1)), axis=1)
        return np.diff(cuts, axis=1, prepend=0.0, append=1.0)

    return mixture
