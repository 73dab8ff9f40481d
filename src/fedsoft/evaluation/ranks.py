"""Ranks of many methods over many seeds: Friedman's test and Nemenyi's critical difference.

As in Demsar, Statistical comparisons of classifiers over multiple data sets, Journal of Machine Learning Research 2006.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

ALPHA = 0.05


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods, the best first; rank 1 is best.

    Arguments:
        mean: by method, ascending.
        seeds: that all methods have.
        statistic, p: of Friedman's test that all methods are alike, corrected for ties (chi-squared).
        critical: Nemenyi's critical difference: mean ranks that are less apart do not differ at 5 %.
    """

    mean: Mapping[str, float]
    seeds: int
    statistic: float
    p: float
    critical: float

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Return the largest groups of methods that do not differ from each other."""
        names, values = [*self.mean], [*self.mean.values()]
        found: list[tuple[int, int]] = []
        for i in range(len(names)):
            j = max(j for j in range(i, len(names)) if values[j] - values[i] < self.critical)
            if j > i and not (found and found[-1][1] >= j):
                found.append((i, j))
        return [tuple(names[i : j + 1]) for i, j in found]


def ranks_of(values: Mapping[str, Mapping[int, float]], *, higher_is_better: bool) -> Ranks | None:
    """Rank methods seed by seed; None where fewer than two methods share two seeds.

    Arguments:
        values: for each method a value for each seed; NaN ranks last, for runs that failed.
        higher_is_better: which way values are better.
    """
    from scipy.special import chdtrc
    from scipy.stats import rankdata

    names = [*values]
    shared = sorted(set.intersection(*(set(one) for one in values.values()))) if values else []
    k, n = len(names), len(shared)
    if k < 2 or n < 2:
        return None
    table = np.array([[values[name][seed] for name in names] for seed in shared])
    table = np.where(np.isfinite(table), -table if higher_is_better else table, np.inf)
    ranks = np.apply_along_axis(rankdata, 1, table)
    mean = ranks.mean(0)
    ties = sum(float((counts**3 - counts).sum()) for counts in (np.unique(row, return_counts=True)[1] for row in table))
    spread = 1 - ties / (n * (k**3 - k))
    raw = 12 * n / (k * (k + 1)) * (float((mean**2).sum()) - k * (k + 1) ** 2 / 4)
    statistic = raw / spread if spread > 0 else 0.0
    order = sorted(range(k), key=lambda i: mean[i])
    return Ranks({names[i]: float(mean[i]) for i in order}, n, statistic, float(chdtrc(k - 1, statistic)),
                 critical_difference(k, n))  # fmt: skip


def critical_difference(methods: int, seeds: int, alpha: float = ALPHA) -> float:
    """Return Nemenyi's critical difference of mean ranks.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * seeds))
