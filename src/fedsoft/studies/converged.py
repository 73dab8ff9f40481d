"""When a method has converged: twice the rounds bring nothing more."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

DOUBLINGS = 4  # of the rounds that a comparison begins with, at most
GAIN = 0.01  # of an error, by which twice the rounds must improve it


@dataclass(frozen=True)
class Reached:
    """What a run has reached: its best centers, mean over sources, and personal models on held-out points."""

    centers: float | None
    personal: float | None


def improved(before: Sequence[Reached], after: Sequence[Reached], higher_is_better: bool) -> bool:
    """Whether centers or personal models have gained more than 1 % of their error, on average over seeds.

    >>> improved([Reached(10.0, 5.0)], [Reached(9.95, 5.1)], higher_is_better=False)
    False
    """
    pairs = [*zip(before, after, strict=True)]
    return any(
        _gained([(a, b) for a, b in one if a is not None and b is not None], higher_is_better)
        for one in ([(a.centers, b.centers) for a, b in pairs], [(a.personal, b.personal) for a, b in pairs])
    )


def _gained(pairs: Sequence[tuple[float, float]], higher_is_better: bool) -> bool:
    if not pairs:
        return False
    first, second = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    gain, error = (second - first, 1 - first) if higher_is_better else (first - second, first)
    return gain > GAIN * error
