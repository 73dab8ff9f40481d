"""Differences between methods, seed by seed: intervals, tests, and Holm's correction for many of them.

A comparison has few seeds and many methods. So a difference counts only where its p-value, corrected by Holm's
procedure over all differences that are looked at together, is below 5 % (Holm, Scandinavian Journal of Statistics 1979;
Demsar, Journal of Machine Learning Research 2006). The test is Wilcoxon's signed-rank test. Its smallest p-value is
2 / 2^n; where that cannot reach the corrected level, it is Student's t test, which takes differences for normal. Fewer
than five seeds say nothing: with two, normal differences are a matter of faith.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

LEVEL = 0.95
FEWEST = 5  # seeds, below which nothing is called better or worse
Test = Literal["Wilcoxon", "Student", "none"]


@dataclass(frozen=True)
class SeedDifference:
    """The differences of two methods over seeds; above 0 the first is better.

    Arguments:
        mean: over seeds, in the metric or divided by each seed's scale.
        low, high: Student's interval of the mean; infinite for a single seed.
        seeds: that both have.
        wins: how often the first is better; a tie is half a win.
        student, wilcoxon: two-sided p-values.
        test: the one that decides.
        p: its p-value; corrected: by Holm's procedure over all that are looked at together.
    """

    mean: float
    low: float
    high: float
    seeds: int
    wins: float
    student: float
    wilcoxon: float
    test: Test = "none"
    p: float = 1.0
    corrected: float = 1.0

    @property
    def is_better(self) -> bool:
        """Whether the first is better by more than chance."""
        return self.test != "none" and self.corrected < 1 - LEVEL and self.mean > 0

    @property
    def is_worse(self) -> bool:
        """Whether the first is worse by more than chance."""
        return self.test != "none" and self.corrected < 1 - LEVEL and self.mean < 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which has no infinity."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


def difference(
    first: Mapping[int, float], second: Mapping[int, float], *, higher_is_better: bool,
    scale: Mapping[int, float] | None = None,
) -> SeedDifference | None:  # fmt: skip
    """Compare two methods on the seeds that both have; None where there is none.

    Arguments:
        first, second: a value for each seed.
        higher_is_better: which way values are better.
        scale: what differences are divided by, seed by seed: draws of data differ in how hard they are.
    """
    shared = [seed for seed in first if seed in second]
    sign = 1.0 if higher_is_better else -1.0
    gains = [sign * (first[seed] - second[seed]) / (1.0 if scale is None else scale[seed]) for seed in shared]
    gains = [gain for gain in gains if math.isfinite(gain)]
    if not gains:
        return None
    mean, n = statistics.fmean(gains), len(gains)
    low, high, student = _student(gains)
    wins = sum(1.0 if gain > 0 else 0.5 if gain == 0 else 0.0 for gain in gains)
    return SeedDifference(mean, low, high, n, wins, student, _wilcoxon(gains))


def _student(gains: Sequence[float]) -> tuple[float, float, float]:
    """Return Student's interval of the mean, and the two-sided p-value of 0."""
    from scipy.special import stdtr, stdtrit  # takes half a second to import

    n, mean = len(gains), statistics.fmean(gains)
    if n < 2:
        return -math.inf, math.inf, 1.0
    error = statistics.stdev(gains) / math.sqrt(n)
    wide = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    p = (1.0 if mean == 0 else 0.0) if error == 0 else 2 * float(stdtr(n - 1, -abs(mean) / error))
    return mean - wide, mean + wide, p


def _wilcoxon(gains: Sequence[float]) -> float:
    """Return the exact two-sided p-value of the signed-rank test; zeros are left out, ties have mean ranks.

    The distribution is that of sums of these very ranks under random signs, so it holds with ties, too. Beyond 50 seeds
    it is the normal one.
    """
    from scipy.special import ndtr
    from scipy.stats import rankdata

    kept = np.array([gain for gain in gains if gain != 0])
    n = len(kept)
    if n == 0:
        return 1.0
    ranks = np.rint(2 * rankdata(np.abs(kept))).astype(int)  # twice: mean ranks are halves
    plus, total = int(ranks[kept > 0].sum()), int(ranks.sum())
    least = min(plus, total - plus)
    if n > 50:
        return min(1.0, 2 * float(ndtr((least - total / 2) / math.sqrt(float((ranks**2).sum()) / 4))))
    ways = np.zeros(total + 1)
    ways[0] = 1.0
    for rank in ranks:
        ways[rank:] = ways[rank:] + ways[: total + 1 - rank]
    return min(1.0, 2 * float(ways[: least + 1].sum()) / 2.0**n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, running = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        running = max(running, min(1.0, (len(order) - place) * p_values[i]))
        found[i] = running
    return found


def corrected(found: Sequence[SeedDifference | None]) -> list[SeedDifference | None]:
    """Return differences with the test that decides and its p-value, corrected for all of them together."""
    known = [one for one in found if one is not None and one.seeds >= FEWEST]
    tested = {id(one): _tested(one, len(known)) for one in known}
    fixed = dict(zip(tested, holm([p for _, p in tested.values()]), strict=True))
    return [
        replace(one, test=tested[id(one)][0], p=tested[id(one)][1], corrected=fixed[id(one)])
        if one is not None and id(one) in tested
        else one
        for one in found
    ]


def _tested(one: SeedDifference, count: int) -> tuple[Test, float]:
    able = 2.0 / 2.0**one.seeds < (1 - LEVEL) / count
    return ("Wilcoxon", one.wilcoxon) if able else ("Student", one.student)
