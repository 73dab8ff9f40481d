"""Differences between two methods, client by client, with an interval: a paired bootstrap.

Clients are drawn with replacement, and seeds too where there are several: a client's values under all seeds stay
together, because they are not independent. The interval is the expanded percentile interval (Hesterberg, What teachers
should know about the bootstrap, The American Statistician 2015): percentiles of the resampled means at the levels that
make it as wide as Student's interval where differences are normal. Plain percentiles are too narrow for few clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedsoft.seeds import generator

LEVEL = 0.95
DRAWS = 4000
AT_ONCE = 2**22  # numbers that are drawn together


@dataclass(frozen=True)
class Difference:
    """A mean difference over clients, and its interval.

    Arguments:
        mean: of the first less the second, where higher is better; else of the second less the first: above 0 the
            first is better.
        low, high: of the interval; infinite where a single client says nothing about others.
        clients: that have a value under both.
        level: of the interval.
    """

    mean: float
    low: float
    high: float
    clients: int
    level: float = LEVEL

    @property
    def is_clear(self) -> bool:
        """Whether the first is better, by more than chance."""
        return self.low > 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which has no infinity."""
        return {key: value if math.isfinite(value) else None for key, value in asdict(self).items()}


def paired(
    first: ArrayLike, second: ArrayLike, *, higher_is_better: bool = True, level: float = LEVEL, draws: int = DRAWS
) -> Difference | None:
    """Compare two methods on the same clients; None where no client has a value under both.

    Arguments:
        first, second: a value for each client, `[clients]`, or for each seed and client, `[seeds, clients]`; NaN where
            there is none.
        higher_is_better: which way values are better.
    """
    gains = np.atleast_2d(np.asarray(first, np.float64) - np.asarray(second, np.float64))
    gains = gains if higher_is_better else -gains
    known = np.isfinite(gains)
    gains, known = gains[:, known.any(0)], known[:, known.any(0)]
    gains, known = gains[known.any(1)], known[known.any(1)]
    clients = gains.shape[1]
    if not clients:
        return None
    sums, counts = np.where(known, gains, 0.0), known.astype(np.float64)
    mean = float(sums.sum() / counts.sum())
    if clients == 1:
        return Difference(mean, -math.inf, math.inf, 1, level)
    means = _resampled(sums, counts, draws)
    tail = _expanded((1 - level) / 2, clients)
    low, high = (float(value) for value in np.quantile(means, [tail, 1 - tail]))
    return Difference(mean, low, high, clients, level)


def _resampled(sums: np.ndarray, counts: np.ndarray, draws: int) -> np.ndarray:
    """Return means over clients, and seeds, drawn with replacement. The draws depend on the numbers of both alone."""
    seeds, clients = sums.shape
    rng = generator(0, "paired", seeds, clients)
    found = []
    for part in _parts(draws, max(1, AT_ONCE // clients)):
        who = rng.integers(0, clients, (part, clients))
        when = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=part).astype(np.float64)
        total = sum((when[:, s] * sums[s][who].sum(1) for s in range(seeds)), np.zeros(part))
        count = sum((when[:, s] * counts[s][who].sum(1) for s in range(seeds)), np.zeros(part))
        found.append((total / np.where(count > 0, count, 1.0))[count > 0])
    return np.concatenate(found)


def _parts(draws: int, most: int) -> list[int]:
    return [min(most, draws - begin) for begin in range(0, draws, most)]


def _expanded(tail: float, clients: int) -> float:
    """Return the level of the percentile in place of `tail`: that of Student's interval for this number of clients."""
    from scipy.special import ndtr, stdtrit  # takes half a second to import

    wide = -stdtrit(clients - 1, tail) * math.sqrt(clients / (clients - 1))
    return float(ndtr(-wide))


def mean_of(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean over clients that have a value; NaN where none has."""
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else math.nan
