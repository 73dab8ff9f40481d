"""Figures of several methods: error against what it took, and personal models side by side."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

from fedsoft.reports.cells import mean_of
from fedsoft.reports.common_sections import (
    band,
    thin,
)  # fmt: skip
from fedsoft.reports.method_table import metric_of
from fedsoft.reports.numbers import factor, unit
from fedsoft.reports.page import (
    Axis,
    Figure,
    Level,
    Panel,
    Series,
)  # fmt: skip
from fedsoft.reports.run_loader import Group
from fedsoft.training.records import RoundRecord


def courses(groups: Sequence[Group]) -> list[Figure]:
    """Return the error of the best centers against client work and against traffic; nothing without scored centers."""
    metric = metric_of(groups)
    axes: dict[str, tuple[str, Callable[[RoundRecord], int]]] = {
        "Against client work": ("gradients per client", lambda record: record.gradients),
        "Against traffic": ("bytes per client, both ways", lambda record: record.bytes),
    }
    oracle = mean_of([statistics.mean(s.oracle) for s in groups[0].scores if s.oracle])
    levels = () if oracle is None else (Level("oracle", factor(metric) * oracle),)
    panels = []
    for title, (label, cost) in axes.items():
        found = [_course(group, cost, metric, i, len(groups)) for i, group in enumerate(groups)]
        series = tuple(one for one in found if one is not None)
        if not series:
            return []
        axis = Axis(f"test {unit(metric)} of the best centers", log=metric == "mse")
        panels.append(Panel(title, Axis(label), axis, series, levels))
    bands = any(len(s.low) for panel in panels for s in panel.series)
    return [Figure("courses", "Error of the best centers against what it took",
                   "For every method the error of the best center, mean over sources, from round to round: across, "
                   "what had been spent by then.", tuple(panels),
                   ("Band: one standard deviation over seeds.",) if bands else (),
                   tuple(ref for group in groups for ref in group.refs))]  # fmt: skip


def _course(group: Group, cost: Callable[[RoundRecord], int], metric: str, colour: int, lines: int) -> Series | None:
    length = min(len(run.scored) for run in group.runs)
    chosen, spent, errors = thin(length), [], []
    for run in group.runs:
        sums = list(itertools.accumulate(map(cost, run.records)))
        records = [run.scored[i] for i in chosen]
        spent.append([sums[record.round - 1] / run.clients for record in records])
        errors.append([statistics.mean(record.best) for record in records])
    if not length:
        return None
    mean, low, high = band(errors, metric, lines)
    x = [statistics.mean(values) for values in zip(*spent, strict=True)]
    return Series(group.label, x, mean, low=low, high=high, colour=colour)


def personal_bars(groups: Sequence[Group]) -> list[Figure]:
    """Return personal models on held-out points, a bar for each method; nothing where no points are held out."""
    metric = metric_of(groups)
    spreads = [[s.personal_held_out.mean for s in group.scores if s.personal_held_out] for group in groups]
    rows = [(group, values) for group, values in zip(groups, spreads, strict=True) if values]
    if not rows:
        return []
    scale = factor(metric)
    means = [scale * statistics.mean(values) for _, values in rows]
    gaps = [scale * statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in rows]
    low = [m - g for m, g in zip(means, gaps, strict=True)] if any(gaps) else []
    high = [m + g for m, g in zip(means, gaps, strict=True)] if any(gaps) else []
    series = Series("held out", means, list(range(len(rows))), "bar", low=low, high=high)
    names = tuple(group.label for group, _ in rows)
    panel = Panel("", Axis(f"{unit(metric)} on held-out points"), Axis("", names=names), (series,))
    return [Figure("personal-bars", "Personal models on the clients' held-out points, mean over clients",
                   "A bar for each method, with one standard deviation over seeds.", (panel,),
                   ("Whiskers: one standard deviation over seeds.",) if any(gaps) else (),
                   tuple(ref for group, _ in rows for ref in group.refs))]  # fmt: skip
