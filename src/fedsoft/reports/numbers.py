"""Write numbers the way people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import filesize


def metric_name(metric: str) -> str:
    return {"mse": "MSE"}.get(metric, metric)


def unit(metric: str) -> str:
    """Return the metric with its unit, as on an axis."""
    return metric_name(metric) + (", %" if metric == "accuracy" else "")


def factor(metric: str) -> float:
    """Return what values are multiplied with to be shown: accuracies are shown in percent."""
    return 100.0 if metric == "accuracy" else 1.0


def number(value: float | None, metric: str = "mse") -> str:
    """Write a score: accuracies in percent, errors with about three digits."""
    if value is None or math.isnan(value):
        return "-"
    if metric == "accuracy":
        return f"{100 * value:.1f} %"
    if abs(value) >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def places(values: Sequence[float]) -> int:
    """Return the number of decimals that suits all of these: two, and more where numbers are small.

    >>> places([99.88, 1.0]), places([0.034]), places([45000.0, 123.4])
    (2, 3, 1)
    """
    least = min((abs(v) for v in values if v), default=1.0)
    if least >= 100:
        return 1
    return 2 if least >= 0.1 else min(8, 1 - math.floor(math.log10(least)))


def count(value: float) -> str:
    """Write a number of things.

    >>> count(7.04e6), count(41200), count(7610), count(30)
    ('7.04 M', '41.2 k', '7,610', '30')
    """
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit * 9.9995 or (value >= unit and unit > 1e3):
            return f"{value / unit:,.2f}{suffix}" if unit > 1e3 else f"{value / unit:,.1f}{suffix}"
    return f"{value:,.0f}"


def size(count: float) -> str:
    """Write a number of bytes."""
    return filesize.decimal(round(count))


def several(count: int, thing: str) -> str:
    """Write how many there are.

    >>> several(1, "seed"), several(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """Write a time.

    >>> duration(7.2), duration(400), duration(9000)
    ('7 s', '7 min', '2.5 h')
    """
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
