"""What a page says of centers where nobody knows the sources: what clients make of each."""

from __future__ import annotations

import math

from fedsoft.reports import parts
from fedsoft.reports.cells import column
from fedsoft.reports.material import Finished, Group
from fedsoft.reports.page import Axis, Block, Cell, Column, Figure, Panel, Series, Table
from fedsoft.reports.tables import withheld_centers

HEADS = ("share of data", "main center of clients", "on their points", "on all points")


def served(group: Group) -> list[Block]:
    """Every center on the points of the clients, seed by seed: centers are numbered by chance."""
    metric = group.first.scores["metric"]
    rows: list[tuple[Cell, ...]] = []
    for run in group.runs:
        hidden = withheld_centers(run.spec, run.records)
        for s, use in enumerate(run.scores.get("served") or []):
            name = f"c{s}" if len(group.runs) == 1 else f"seed {run.spec.seed}, c{s}"
            values = [None, None] if s in hidden else [use["on_own"], use["on_all"]]
            cells = [column([[value]], [(run.ref,)], metric)[0] for value in values]
            rows.append((Cell(name), Cell(f"{100 * use['share']:.0f} %"), Cell(str(use["clients"])), *cells))
    if not rows:
        return []
    points = "held-out" if group.first.scores["personal_held_out"] else "training"
    title = f"{parts.unit(metric)} of every center on the clients' {points} points"
    heads = (Column("center", numeric=False), *map(Column, HEADS))
    return [Table("served-table", title[0].upper() + title[1:], heads, tuple(rows))]


def served_course(run: Finished) -> list[Block]:
    """Every center over the rounds, on the points of the clients whose main center it is."""
    told = [record for record in run.records if record.get("served")]
    if len(told) < 2:
        return []
    metric, hidden = run.scores["metric"], withheld_centers(run.spec, run.records)
    chosen, scale = [told[i] for i in parts.thin(len(told))], parts.factor(metric)
    rounds, series = [record["round"] + 1 for record in chosen], []
    for s in range(len(told[-1]["served"])):
        values = [record["served"][s]["on_own"] if s < len(record["served"]) else None for record in chosen]
        course = [math.nan if value is None else scale * value for value in values]
        if s not in hidden and not all(map(math.isnan, course)):
            series.append(Series(f"c{s}", rounds, course, colour=s))
    axis = Axis(parts.unit(metric), log=metric == "mse")
    panel = Panel("On the points of its clients", Axis("round"), axis, tuple(series), ())
    about = "Error of every center over the rounds, on the points of the clients whose main center it is."
    notes = ("A gap: nobody had it as main center.",)
    return [Figure("convergence-figure", "Centers over the rounds", about, (panel,), notes, (run.ref,))]
