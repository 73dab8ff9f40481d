"""How often a method fails: a mean over seeds hides that it works in some of them and not in others.

A run has failed where

- training diverged; or
- its personal models are worse on held-out points than the best constant guess; or
- with several centers, or one where the method has several under other seeds, these are no better than one model for
  all under the same seed; or
- its centers are far worse than those that the method usually reaches. What counts is the excess over the oracle, as a
  share of that of one model for all: 0 is the oracle, 1 is one model. More than twice the method's lower quartile and
  5 % beyond that is far.

So a method that is poor under all seeds alike does not fail; one that ends in another state under some of them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TIMES = 2.0
BEYOND = 0.05


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How one run ended, as errors: smaller is better.

    Arguments:
        diverged: whether there are no numbers.
        centers: error of the best centers, mean over sources.
        several: whether there are several sources, and the method has several centers, under this seed or another one.
        personal: error of personal models on held-out points.
        oracle: error of models trained on separated sources, or the noise floor.
        one_model: error of the centers of one model for all, with the same seed.
        constant: error of the best constant guess on the same points.
    """

    diverged: bool = False
    centers: float | None = None
    several: bool = False
    personal: float | None = None
    oracle: float = 0.0
    one_model: float | None = None
    constant: float | None = None

    @property
    def excess(self) -> float | None:
        """Return what the centers are worse than the oracle, as a share of one model's."""
        if self.centers is None or self.one_model is None or not self.several or self.one_model <= self.oracle:
            return None
        return (self.centers - self.oracle) / (self.one_model - self.oracle)


def failed(ends: Sequence[RunEnd]) -> list[bool]:
    """Return which runs of one method have failed.

    >>> usual = [RunEnd(centers=x, several=True, oracle=1.0, one_model=57.0) for x in (2.6, 2.7, 2.8, 14.9)]
    >>> failed(usual)
    [False, False, False, True]
    """
    known = [end.excess for end in ends if end.excess is not None and not end.diverged]
    usual = float(np.quantile(known, 0.25)) if known else 0.0
    return [_failed(end, TIMES * max(usual, 0.0) + BEYOND) for end in ends]


def _failed(end: RunEnd, most: float) -> bool:
    if end.diverged:
        return True
    if end.personal is not None and end.constant is not None and end.personal > end.constant:
        return True
    return end.excess is not None and (end.excess >= 1 or end.excess > most)
