"""Numbers as cells of a table: the same digits down a column, means and deviations over seeds, the best marked."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from fedsoft.reports.page import Cell, RunRef

Values = Sequence[float | None]  # over seeds


def known(values: Values) -> list[float]:
    """Those that are there."""
    return [value for value in values if value is not None and math.isfinite(value)]


def mean_of(values: Values) -> float | None:
    """The mean of those that are there."""
    return statistics.mean(found) if (found := known(values)) else None


def places(values: Sequence[float]) -> int:
    """Digits behind the point that suit all of these: two, and more where numbers are small.

    >>> places([99.88, 1.0]), places([0.034]), places([45000.0, 123.4])
    (2, 3, 1)
    """
    least = min((abs(v) for v in values if v), default=1.0)
    if least >= 100:
        return 1
    return 2 if least >= 0.1 else min(8, 1 - math.floor(math.log10(least)))


def column(
    rows: Sequence[Values], runs: Sequence[tuple[RunRef, ...]], metric: str = "", higher_is_better: bool | None = None,
    peers: int | None = None,
) -> list[Cell]:  # fmt: skip
    """One cell for each row, mean ± deviation where there are several values.

    Arguments:
        rows: for each row its values over seeds.
        runs: for each row where they come from.
        metric: accuracies are shown in percent.
        higher_is_better: which is best; none is marked unless told.
        peers: how many of the rows compete for the best; all unless told.
    """
    factor = 100.0 if metric == "accuracy" else 1.0
    means = [mean_of(values) for values in rows]
    digits = 1 if metric == "accuracy" else places([m for m in means if m is not None])
    best: float | None = None
    if higher_is_better is not None:
        competing = [m for m in means[:peers] if m is not None]
        if len(competing) > 1:
            best = max(competing) if higher_is_better else min(competing)
    cells = []
    for i, (values, mean, origin) in enumerate(zip(rows, means, runs, strict=True)):
        if mean is None:
            cells.append(Cell("-"))
            continue
        found = known(values)
        deviation = statistics.stdev(found) if len(found) > 1 else None
        text = f"{factor * mean:,.{digits}f}"
        text += f" ± {factor * deviation:,.{digits}f}" if deviation is not None else ""
        marked = best is not None and mean == best and i < (len(rows) if peers is None else peers)
        cells.append(Cell(text, mean, deviation, origin, best=marked))
    return cells


def measured(rows: Sequence[Values], runs: Sequence[tuple[RunRef, ...]], text: Callable[[float], str]) -> list[Cell]:
    """One cell for each row: the mean, in the words of `text`."""
    cells = []
    for values, origin in zip(rows, runs, strict=True):
        mean = mean_of(values)
        deviation = statistics.stdev(found) if len(found := known(values)) > 1 else None
        cells.append(Cell("-") if mean is None else Cell(text(mean), mean, deviation, origin))
    return cells


def count(value: float) -> str:
    """A number of things: 7.04 M, 41.2 k, 30."""
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit * 9.9995 or (value >= unit and unit > 1e3):
            return f"{value / unit:,.2f}{suffix}" if unit > 1e3 else f"{value / unit:,.1f}{suffix}"
    return f"{value:,.0f}"
