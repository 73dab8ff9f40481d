"""Show how clients use each center where the sources are not known."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedsoft.evaluation.values import CenterUsage
from fedsoft.reports.cells import column
from fedsoft.reports.common_sections import thin
from fedsoft.reports.numbers import factor, unit
from fedsoft.reports.page import Axis, Block, Cell, Figure, Panel, Series, Table, heads
from fedsoft.reports.run_loader import Finished, Group
from fedsoft.reports.withheld import withheld_centers

TITLES = ("share of data", "main center of clients", "on their points", "on all points")


def served(group: Group) -> list[Block]:
    """Show every center on the points of the clients, seed by seed: centers are numbered at random."""
    metric = group.first.scores.metric
    rows: list[tuple[Cell, ...]] = []
    for run in group.runs:
        hidden = withheld_centers(run.spec, run.records)
        for s, use in enumerate(run.scores.served or []):
            name = f"c{s}" if len(group.runs) == 1 else f"seed {run.spec.seed}, c{s}"
            values = [None, None] if s in hidden else [use.on_own, use.on_all]
            cells = [column([[value]], [(run.ref,)], metric)[0] for value in values]
            rows.append((Cell(name), Cell(f"{100 * use.share:.0f} %"), Cell(str(use.clients)), *cells))
    points = "held-out" if group.first.scores.personal_held_out else "training"
    title = f"Cluster models: {unit(metric)} on the clients' {points} points"
    return [Table("served-table", title, heads("center", TITLES), tuple(rows))] if rows else []


def served_course(run: Finished) -> list[Block]:
    """Draw every center over the rounds: on the points of its main clients, and its share of all data."""
    records = [record for record in run.records if record.served]
    if len(records) < 2:
        return []
    metric, hidden = run.scores.metric, withheld_centers(run.spec, run.records)
    chosen = [records[i] for i in thin(len(records))]
    shown = [s for s in range(len(records[-1].served)) if s not in hidden]

    def lines(value: Callable[[CenterUsage], float | None], scale: float = 1.0) -> tuple[Series, ...]:
        found = []
        for s in shown:
            course = [value(record.served[s]) if s < len(record.served) else None for record in chosen]
            if any(one is not None for one in course):
                y = [math.nan if one is None else scale * one for one in course]
                found.append(Series(f"c{s}", [record.round for record in chosen], y, colour=s))
        return tuple(found)

    panels = (
        Panel("On the points of its clients", Axis("round"), Axis(unit(metric), log=metric == "mse"),
              lines(lambda use: use.on_own, factor(metric))),
        Panel("Share of all data", Axis("round"), Axis("share", low=-0.02, high=1.02), lines(lambda use: use.share)),
    )  # fmt: skip
    about = "Every center over the rounds: its error on the points of the clients that use it most, its share of data."
    notes = ("A gap: it was nobody's main center.",)
    return [Figure("convergence-figure", "Centers over the rounds", about, panels, notes, (run.ref,))]
