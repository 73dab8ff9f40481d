"""A recommendation as tables and as a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsoft.evaluation.paired import Difference, mean_of, paired
from fedsoft.reports.numbers import count, duration, factor, metric_name, number, several, size, unit
from fedsoft.reports.page import (
    Axis,
    Cell,
    Column,
    Figure,
    Page,
    Panel,
    Section,
    Series,
    Table,
    Text,
    Verdict,
)
from fedsoft.studies.recommend.outcome import Recommendation, Row
from fedsoft.studies.recommend.split import FOLDS

RULE = "the simplest candidate that the best one does not clearly beat on points that were tuned on"


def titled(row: Row) -> str:
    """Return a candidate as in a sentence, with its number of centers."""
    chosen = sorted({settings["S"] for settings in row.settings if "S" in settings})
    fixed = row.candidate.settings.get("S")
    text = f"{chosen[0]}" if len(chosen) == 1 else f"{chosen[0]} to {chosen[-1]}" if chosen else f"{fixed or ''}"
    return f"{row.candidate.label} (S = {text})" if text else row.candidate.label


def named(row: Row) -> str:
    """Return a candidate as in a table."""
    name = row.candidate.algorithm or row.key
    chosen = sorted({settings["S"] for settings in row.settings if "S" in settings})
    fixed = row.candidate.settings.get("S")
    many = f" S={chosen[0]}" if len(chosen) == 1 else f" S={chosen[0]}-{chosen[-1]}" if chosen else ""
    return f"{name}{many or (f' S={fixed}' if fixed else '')}{'' if row.settled else ' ~'}"


def tables_of(found: Recommendation) -> list[Table]:
    """Return how candidates fare, what newcomers get, and what each of them takes."""
    tables = [_scores(found), *([_newcomers(found)] if found.counts else []), _costs(found)]
    return [table for table in tables if table.rows]


def _scores(found: Recommendation) -> Table:
    heads = [metric_name(name).replace("_", "-") for name in found.beside]
    heads = ["tuning", "test", "worst decile", *heads, "behind by"]
    first = {
        name: _best([found.score(row, name) for row in found.rows], found.higher(name))
        for name in (found.metric, *found.beside)
    }
    rows = []
    for i, row in enumerate(found.rows):
        cells = [
            _cell(mean_of(row.tuned.ravel()), found.metric),
            _cell(found.score(row), found.metric, best=i == first[found.metric]),
            _cell(found.worst_decile(row), found.metric),
            *(_cell(found.score(row, name), name, best=i == first[name]) for name in found.beside),
        ]  # fmt: skip
        rows.append((Cell(_marked(found, row)), *cells, _behind(found, row)))
    marks = "*: best" if all(row.settled for row in found.rows) else "*: best, ~: not converged"
    seeds = f", {several(len(found.seeds), 'seed')}" if len(found.seeds) > 1 else ""
    return Table(
        "scores", f"{found.label}: {unit(found.metric)} of {found.clients} clients' models{seeds} ({marks})",
        (Column("", numeric=False), *map(Column, heads)), tuple(rows),
        notes=(f"Tuning: points that settings were chosen on ({several(found.folds, 'fold')} of {FOLDS}). Test: points "
               "that nothing was chosen on. Behind by: how far a candidate is behind what is recommended on test "
               "points, client by client, with its 95 % interval."
               + ("".join(f" All were tuned by {metric_name(found.metric)}: --metric {name} tunes by that."
                         for name in [*found.beside][:1])),),
    )  # fmt: skip


def _marked(found: Recommendation, row: Row) -> str:
    return f"> {named(row)}" if row.key == found.decision.recommended else named(row)


def _behind(found: Recommendation, row: Row) -> Cell:
    if row.key == found.decision.recommended:
        return Cell("recommended")
    gain = found.gain(found.recommended, row)
    if gain is None:
        return Cell("-")
    return Cell(_with_interval(gain, found.metric), factor(found.metric) * gain.mean)


def _with_interval(gain: Difference, metric: str) -> str:
    mean, low, high = (factor(metric) * value for value in (gain.mean, gain.low, gain.high))
    form = ".1f" if metric == "accuracy" else ".3g"
    return f"{mean:{form}} ({low:{form}} to {high:{form}})"


def _newcomers(found: Recommendation) -> Table:
    columns = {n: [found.newcomer_score(row, n) for row in found.rows] for n in found.counts}
    best = {n: _best(values, found.higher_is_better) for n, values in columns.items()}
    rows = [
        (Cell(_marked(found, row)), *(_cell(columns[n][i], found.metric, best=best[n] == i) for n in found.counts))
        for i, row in enumerate(found.rows) if row.newcomers
    ]  # fmt: skip
    having = sorted(int(np.isfinite(found.recommended.newcomers[n][found.metric]).sum()) for n in found.counts
              if n in found.recommended.newcomers)  # fmt: skip
    who = "" if not having else f"{having[0]}" if len(set(having)) == 1 else f"{having[0]} to {having[-1]}"
    return Table(
        "newcomers", f"{unit(found.metric)} of newcomers, who took no part in training, by their points",
        (Column("", numeric=False), *(Column(f"{n} points") for n in found.counts)), tuple(rows),
        notes=(f"{who} newcomers have enough points, and are scored on the rest of them.",),
    )  # fmt: skip


def _costs(found: Recommendation) -> Table:
    rows = []
    for row in found.rows:
        cost, rounds = row.cost, f"{max(row.rounds)}" if row.candidate.algorithm else "-"
        spent = ["-"] * 3 if cost is None else [count(cost.gradients), size(cost.bytes_down), size(cost.bytes_up)]
        values = [None] * 3 if cost is None else [cost.gradients, cost.bytes_down, cost.bytes_up]
        cells = [Cell(text, value) for text, value in zip(spent, values, strict=True)]
        settings = _settings(row.settings[0]) + (" ..." if len(row.settings) > 1 else "")
        rows.append(
            (Cell(_marked(found, row)), Cell(settings), Cell(str(row.trials), row.trials), Cell(rounds), *cells)
        )
    heads = (Column("", numeric=False), Column("found by tuning", numeric=False))
    more = tuple(map(Column, ("settings tried", "rounds", "gradients", "down", "up")))
    return Table("costs", "What each takes, per client", (*heads, *more), tuple(rows))


def _settings(settings: Mapping[str, Any]) -> str:
    if "own" in settings:
        return "each client's own" if settings["own"] else "one for all"
    return ", ".join(
        value if isinstance(value, str) else f"{key.rpartition('.')[2]} {value:g}" for key, value in settings.items()
    )


def _cell(value: float | None, metric: str, *, best: bool = False) -> Cell:
    if value is None or not math.isfinite(value):
        return Cell("-")
    text = number(value, metric).removesuffix(" %") if metric == "accuracy" else f"{value:.3g}"
    return Cell(text, factor(metric) * value, best=best)


def _best(values: Sequence[float], higher: bool) -> int | None:
    known = [(value if higher else -value, -i) for i, value in enumerate(values) if math.isfinite(value)]
    return -max(known)[1] if known else None


# --- the page ---------------------------------------------------------------------------------------------------------


def page_of(found: Recommendation, answers: Sequence[str], notes: Sequence[str], made_by: str) -> Page:
    """Return everything as a page."""
    scores, *others = tables_of(found)
    drawn = figures(found)
    spent = f"{several(sum(row.trials for row in found.rows), 'setting')} tried in {duration(found.seconds)}"
    lead = f"{found.clients} clients that took part, {several(found.newcomers, 'newcomer')}; {spent}."
    sections = [
        Section("in-short", "In short", (Verdict(answers[0], RULE, None), *map(Text, answers[1:]))),
        Section("candidates", "What could be shipped", (drawn[0], scores)),
    ]
    newcomers = [table for table in others if table.id == "newcomers"]
    if newcomers:
        sections.append(Section("joining", "Clients that come later", (*drawn[1:], *newcomers)))
    sections.append(Section("cost", "Cost", tuple(table for table in others if table.id == "costs")))
    if notes:
        sections.append(Section("reservations", "What to know beside it", tuple(map(Text, notes))))
    return Page(f"What to ship: {found.label}", lead, tuple(sections), made_by=made_by)


def figures(found: Recommendation) -> list[Figure]:
    """Return scores and differences with their intervals, and what newcomers get."""
    rows = [row for row in found.rows if found.metric in row.test]
    return [_bars(found, rows), *([_lines(found)] if found.counts else [])]


def _bars(found: Recommendation, rows: Sequence[Row]) -> Figure:
    scale, own = factor(found.metric), found.recommended
    means = [paired(row.test[found.metric], np.zeros_like(row.test[found.metric])) for row in rows]
    behind = [found.gain(own, row) for row in rows]
    names = tuple(named(row) for row in rows)
    panels = []
    for title, label, values in (
        ("", f"{unit(found.metric)} on test points", means),
        (f"Behind {named(own)}", f"{unit(found.metric)}, client by client", behind),
    ):
        known = [(i, one) for i, one in enumerate(values) if one is not None]
        series = Series(
            "mean and 95 % interval", [scale * one.mean for _, one in known], [i for i, _ in known], "bar",
            low=[scale * one.low for _, one in known], high=[scale * one.high for _, one in known], colour=0,
        )  # fmt: skip
        panels.append(Panel(title, Axis(label), Axis("", names=names), (series,)))
    return Figure(
        "bars", "Candidates on test points, and how far each is behind what is recommended",
        "A bar for each candidate with its 95 % interval over clients; beside it how far it is behind.", tuple(panels),
        ("Whiskers: 95 % interval, resampled over clients. Differences are paired by client: two bars whose whiskers "
         "overlap may still differ clearly.",),
    )  # fmt: skip


def _lines(found: Recommendation) -> Figure:
    scale, series = factor(found.metric), []
    for row in found.rows:
        points = [n for n in found.counts if math.isfinite(found.newcomer_score(row, n))]
        if points:
            y = [scale * found.newcomer_score(row, n) for n in points]
            series.append(Series(named(row), points, y, dashed=row.candidate.algorithm is None))
    panel = Panel("", Axis("points of a newcomer"), Axis(unit(found.metric)), tuple(series))
    return Figure(
        "joining-lines", "Newcomers by how many points they have", "A line for each candidate, over the points of a "
        "newcomer.", (panel,),
    )  # fmt: skip
