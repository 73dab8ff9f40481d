"""How a run converged, for its page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedsoft.reports import parts
from fedsoft.reports.cells import mean_of
from fedsoft.reports.material import Finished, Group
from fedsoft.reports.page import (
    Axis,
    Block,
    Figure,
    Level,
    Panel,
    Series,
    Text,
)
from fedsoft.reports.served import served_course
from fedsoft.reports.tables import withheld_centers


def convergence(group: Group) -> list[Block]:
    """The error of centers and the mean weights over rounds, a panel for each source."""
    """The paper's Fig. 1: the error of all centers on each source, and below it the mean importance weights."""
    runs = group.runs
    length = min(len(run.records) for run in runs)
    if not length or not all(run.records[0].get("centers") for run in runs):
        return served_course(group.first)
    if any(withheld_centers(run.spec, run.records) for run in runs):
        return [Text("Courses are left out: a center is not published (privacy.floor).")]
    averaged = len(runs) > 1 and group.one_to_one
    shown = [*runs] if averaged else [group.first]
    sources = group.first.scores["sources"]
    errors = [_error_panel(shown, j, length, averaged) for j in range(len(sources))]
    weights = [_weight_panel(shown, j, length, averaged) for j in range(len(sources)) if _has_weights(shown)]
    bands = any(len(series.low) for panel in errors for series in panel.series)
    notes = ["Band: one deviation over seeds."] if bands else [f"Mean over {len(runs)} seeds."] if averaged else []
    if not averaged and len(runs) > 1:
        notes.append("One seed, the first: the centers of different seeds cannot be matched one to one.")
    origin = tuple(run.ref for run in shown)
    alt = "Test error of every center over the rounds, one panel for each source"
    if len(sources) <= 2 and weights:
        alt += "; below, the mean importance weights u of the clients that have most of that source"
        return [Figure("convergence-figure", "Centers and importance weights over the rounds, as in the paper's Fig. 1",
                       f"{alt}.", (*errors, *weights), tuple(notes), origin)]  # fmt: skip
    blocks: list[Block] = [
        Figure("convergence-figure", "Centers over the rounds", f"{alt}.", tuple(errors), tuple(notes), origin)
    ]
    if weights:
        blocks.append(Figure("weights-figure", "Importance weights over the rounds",
                             "Mean importance weights u over the rounds, one panel for the clients that have most of "
                             "each source.", tuple(weights), tuple(notes), origin))  # fmt: skip
    return blocks


def _has_weights(runs: Sequence[Finished]) -> bool:
    return all("weights" in run.records[0] for run in runs)


def _names(run: Finished, averaged: bool) -> list[tuple[str, int]]:
    """Every center with its colour: named by its source where seeds are averaged, by its number otherwise."""
    if averaged:
        return [(f"center of {name}", j) for j, name in enumerate(run.scores["sources"])]
    return [(f"c{s}", s) for s in range(max(len(record["centers"]) for record in run.records))]


def _center(run: Finished, i: int, averaged: bool) -> int:
    """The number of the i-th center that is drawn."""
    return run.scores["alignment"].index(i) if averaged else i


def _error_panel(runs: Sequence[Finished], j: int, length: int, averaged: bool) -> Panel:
    scores = runs[0].scores
    metric = scores["metric"]
    chosen = parts.thin(length)
    names, series = _names(runs[0], averaged), []
    for i, (name, colour) in enumerate(names):
        courses = [[_at(run.records[t]["centers"], _center(run, i, averaged), j) for t in chosen] for run in runs]
        mean, low, high = parts.band(courses, metric, len(names))
        series.append(Series(name, [t + 1 for t in chosen], mean, low=low, high=high, colour=colour))
    levels = []
    if scores["oracle"]:
        level = mean_of([run.scores["oracle"][j] for run in runs])
        levels.append(Level("oracle", parts.factor(metric) * (level or math.nan)))
    axis = Axis(f"test {parts.unit(metric)}", log=metric == "mse")
    return Panel(f"Source {scores['sources'][j]}", Axis("round"), axis, tuple(series), tuple(levels))


def _weight_panel(runs: Sequence[Finished], j: int, length: int, averaged: bool) -> Panel:
    scores = runs[0].scores
    chosen = parts.thin(length)
    names = _names(runs[0], averaged)
    series = []
    for i, (name, colour) in enumerate(names):
        courses = [[_at(run.records[t]["weights"], j, _center(run, i, averaged)) for t in chosen] for run in runs]
        mean, low, high = parts.band(courses, "share", len(names))
        series.append(Series(name, [t + 1 for t in chosen], mean, low=low, high=high, colour=colour))
    levels = []
    for source in range(len(scores["sources"])):
        share = mean_of([_at(run.scores.get("shares") or [], j, source) for run in runs])
        colour = source if averaged else next((s for s, of in enumerate(scores["alignment"]) if of == source), None)
        if share is not None:
            levels.append(Level("true share", share, colour))
    axis = Axis("mean u", low=-0.02, high=1.02)
    return Panel(f"Clients with mostly {scores['sources'][j]}", Axis("round"), axis, tuple(series), tuple(levels))


def _at(table: list[list[float]], i: int, j: int) -> float:
    """An entry of a table that may have grown over the rounds; NaN where it was not there yet."""
    return table[i][j] if i < len(table) and j < len(table[i]) else math.nan
