"""Show the cluster models of a run on its page."""

from __future__ import annotations

import math

from fedsoft.reports.cells import Values, column, mean_of
from fedsoft.reports.center_usage import served
from fedsoft.reports.numbers import unit
from fedsoft.reports.page import Block, Cell, Table, Text, heads
from fedsoft.reports.run_loader import Group

UNKNOWN = "The sources of this data are not known, so the centers are not scored against them."
NUMBERED = "Centers stand for sources one to one where they can: "
MATCHED = "Centers are numbered at random, so over seeds they are matched by the source that they stand for."


def cluster_models(group: Group) -> list[Block]:
    """Show every center on every source, with oracle and noise floor; over seeds as far as centers correspond."""
    scores = group.first.scores
    if not scores.centers:
        return [Text("This method has no centers.")] if scores.sources else [*served(group), Text(UNKNOWN)]
    if len(group.runs) == 1:
        names = [f"c{s}" for s in range(len(scores.centers))]
        pairs = ", ".join(f"c{s} for {scores.sources[j]}" for s, j in enumerate(scores.alignment or []))
        values = [[[center[j]] for center in scores.centers] for j in range(len(scores.sources))]
        return [_centers_table(group, names, values, f"{NUMBERED}{pairs}.")]
    if not group.one_to_one:
        return [_best_table(group)]
    values = [[[] for _ in scores.sources] for _ in scores.sources]
    for one in group.scores:
        for center, stands_for in zip(one.centers or [], one.alignment or [], strict=True):
            for j, value in enumerate(center):
                values[j][stands_for].append(value)
    return [
        _centers_table(group, [f"center of {name}" for name in scores.sources], values, MATCHED),
        _best_table(group),
    ]


def _centers_table(group: Group, names: list[str], values: list[list[list[float]]], note: str) -> Table:
    """Show sources in rows: `values[j][i]` over seeds in column i, then what to compare with; mark the best center."""
    scores, titles, rows = group.first.scores, list(names), []
    floors = [s.noise_floor for s in group.scores]
    floors = floors[:1] if len(set(floors)) == 1 else floors  # then it has no standard deviation
    titles += ["oracle"] * bool(scores.oracle) + ["noise floor"] * (scores.noise_floor is not None)
    for j, source in enumerate(scores.sources):
        known: dict[str, Values] = {"oracle": [s.oracle[j] for s in group.scores if s.oracle], "noise floor": floors}
        entries = [*values[j], *(known[title] for title in titles[len(names) :])]
        cells = column(entries, [group.refs] * len(entries), scores.metric, scores.higher_is_better, peers=len(names))
        rows.append((Cell(source), *cells))
    return Table("centers-table", f"Test {unit(scores.metric)} of every center on every source",
                 heads("source", titles), tuple(rows), ("Best center of each source marked.", note))  # fmt: skip


def _best_table(group: Group) -> Table:
    """Show run by run the best center of each source, and its number."""
    sources, metric = group.first.scores.sources, group.first.scores.metric
    refs, columns = [(run.ref,) for run in group.runs], []
    for j in range(len(sources)):
        cells = column([[(scores.of_best or [])[j]] for scores in group.scores], refs, metric)
        columns.append([Cell(f"{cell.text} (c{(scores.best or [])[j]})", cell.value, runs=cell.runs)
                        for cell, scores in zip(cells, group.scores, strict=True)])  # fmt: skip
    titles = [f"best on {name}" for name in sources]
    if all(scores.distance for scores in group.scores) and metric == "mse":
        scaled = [[(mean_of(s.of_best or []) or math.nan) / (s.distance or math.nan)] for s in group.scores]
        columns.append(column(scaled, refs))
        titles.append("mean / |θ - θ'|²")
    rows = tuple((Cell(f"seed {seed}", seed), *(c[i] for c in columns)) for i, seed in enumerate(group.seeds))
    caption = f"Best center of each source, seed by seed: test {unit(metric)}"
    return Table("best-table", caption, heads("run", titles), rows)
