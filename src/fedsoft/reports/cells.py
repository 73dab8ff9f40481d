"""Write values over seeds as cells of a table: mean ± standard deviation, the best marked."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedsoft.reports.numbers import factor, places
from fedsoft.reports.page import Cell, RunRef

Values = Sequence[float | None]  # over seeds


def known(values: Values) -> list[float]:
    """Return the values that are there."""
    return [value for value in values if value is not None and math.isfinite(value)]


def mean_of(values: Values) -> float | None:
    """Return the mean of the values that are there."""
    return statistics.mean(found) if (found := known(values)) else None


@dataclass(frozen=True)
class Over:
    """One value for each seed, and the runs they come from."""

    values: tuple[float, ...]
    runs: tuple[RunRef, ...] = ()

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """Return the standard deviation over seeds; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def cell(self, text: Callable[[float], str], *, best: bool = False, spread: bool = True) -> Cell:
        """Return mean ± standard deviation as `text` writes them, or the mean alone without `spread`."""
        if not self.values:
            return Cell("-")
        shown = [self.mean] if self.std is None or not spread else [self.mean, self.std]
        return Cell(" ± ".join(map(text, shown)), self.mean, self.std, self.runs, best)


def column(
    rows: Sequence[Values], runs: Sequence[tuple[RunRef, ...]], metric: str = "", higher_is_better: bool | None = None,
    peers: int | None = None,
) -> list[Cell]:  # fmt: skip
    """Return one cell for each row, all with the same number of decimals.

    Arguments:
        rows: for each row its values over seeds.
        runs: for each row the runs they come from.
        metric: accuracies are shown in percent.
        higher_is_better: which is best (default: none is marked).
        peers: how many of the rows compete for the best (default: all).
    """
    overs = [Over(tuple(known(values)), refs) for values, refs in zip(rows, runs, strict=True)]
    means = [over.mean for over in overs if over.values]
    digits = {"accuracy": 1, "share": 3}.get(metric) or places(means)
    competing = [over.mean for over in overs[:peers] if over.values]
    best: float | None = None
    if higher_is_better is not None and len(competing) > 1:
        best = max(competing) if higher_is_better else min(competing)

    def cell(i: int, over: Over) -> Cell:
        wins = bool(over.values) and over.mean == best and (peers is None or i < peers)
        return over.cell(lambda value: f"{factor(metric) * value:,.{digits}f}", best=wins)

    return [cell(i, over) for i, over in enumerate(overs)]


def measured(rows: Sequence[Values], runs: Sequence[tuple[RunRef, ...]], text: Callable[[float], str]) -> list[Cell]:
    """Return one cell for each row: the mean, as `text` writes it."""
    return [Over(tuple(known(row)), refs).cell(text, spread=False) for row, refs in zip(rows, runs, strict=True)]
