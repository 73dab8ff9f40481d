"""How sources are mixed at clients, and whole numbers of points from a mixture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsoft.errors import InputError

Partition = Callable[[int, int, np.random.Generator], np.ndarray]
"""(clients N, sources S, generator) to the true mixture `[N, S]`, rows summing to 1."""


def apportion(mixture: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return numbers of points `[N, S]` with row sums `sizes[N]`, as close to the mixture as possible.

    The largest remainders are rounded up, so each entry is within 1 of its exact share.
    """
    if mixture.ndim != 2 or len(mixture) != len(sizes) or not np.isfinite(mixture).all() or (mixture < 0).any():
        raise InputError(
            f"the partition gave a mixture of shape {mixture.shape}, should be [{len(sizes)}, S] and not negative"
        )
    if not np.allclose(mixture.sum(axis=1), 1, atol=1e-6):
        raise InputError(f"the partition gave a client shares that sum to {mixture.sum(axis=1).max():g}, should be 1")
    exact = mixture * sizes[:, None]
    counts = np.floor(exact).astype(np.int64)
    missing = sizes - counts.sum(axis=1)
    rank = np.argsort(np.argsort(-(exact - counts), axis=1, kind="stable"), axis=1)
    return counts + (rank < missing[:, None])
