"""Make the sections that the page of a run and the page of a comparison share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fedsoft import plugins
from fedsoft.errors import FedsoftError
from fedsoft.evaluation.spread import Spread
from fedsoft.reports.cells import column, known, measured
from fedsoft.reports.clients import Clients, clients_of
from fedsoft.reports.numbers import count, factor, metric_name, several, size, unit
from fedsoft.reports.page import Axis, Cell, Code, Column, Figure, Panel, RunRef, Section, Series, Table, Text, heads
from fedsoft.reports.run_loader import Finished, Group
from fedsoft.training.records import Totals

MOST_POINTS = 200  # of one line; more cannot be told apart
MOST_BANDS = 5  # in one panel; more hide the lines


def thin(length: int, most: int = MOST_POINTS) -> list[int]:
    """Return which of `length` points are drawn: all, or evenly spread ones with the first and the last.

    >>> thin(5), thin(9, most=3)
    ([0, 1, 2, 3, 4], [0, 4, 8])
    """
    if length <= most:
        return list(range(length))
    return sorted({round(i * (length - 1) / (most - 1)) for i in range(most)})


def band(courses: Sequence[Sequence[float]], metric: str, lines: int) -> tuple[list[float], list[float], list[float]]:
    """Return mean, low and high over seeds, point by point; no interval for a single course, or among too many lines.

    On a logarithmic axis a standard deviation as large as the mean would have no end: it is cut at a tenth of the mean.
    """
    scale, means, lows, highs = factor(metric), [], [], []
    for values in zip(*courses, strict=True):
        found = known(values)
        mean = statistics.mean(found) if found else math.nan
        std = statistics.stdev(found) if len(found) > 1 else 0.0
        means.append(scale * mean)
        lows.append(scale * (mean - std if metric == "accuracy" else max(mean - std, mean / 10)))
        highs.append(scale * (mean + std))
    return (means, lows, highs) if len(courses) > 1 and lines <= MOST_BANDS else (means, [], [])


def look_at_clients(run: Finished) -> tuple[Clients | None, str]:
    """Return every client of a run, or None and a sentence that says why they cannot be shown."""
    try:
        return clients_of(run), ""
    except FedsoftError as error:
        return None, f"Nothing is shown for single clients: {error}."


# --- what was run -----------------------------------------------------------------------------------------------------


def facts(groups: Sequence[Group]) -> Table:
    """List what was run, part by part; what differs between groups is stated for each."""
    rows = [("algorithm" if len(groups) == 1 else group.label, _algorithm(group.first)) for group in groups]
    texts: dict[str, Callable[[Group], str]] = {
        "dataset": lambda group: _part(group, "dataset"),
        "partition": lambda group: _part(group, "partition"),
        "model": lambda group: _part(group, "model"),
        "local solver": lambda group: _part(group, "solver"),
        "clients": lambda group: f"{group.first.clients:,}",
        "rounds": lambda group: _span([len(run.records) for run in group.runs]),
        "seeds": lambda group: ", ".join(map(str, group.seeds)),
        "precision": lambda group: group.first.spec.dtype,
        "dropout": lambda group: f"{group.first.spec.dropout:g}" if group.first.spec.dropout else "",
        "budget": _budget,
    }
    for head, text in texts.items():
        rows += _fact(head, groups, text)
    columns = (Column("part", numeric=False), Column("what", numeric=False, wrap=True))
    return Table("facts", "Settings in words", columns, tuple((Cell(head), Cell(text)) for head, text in rows))


def _fact(head: str, groups: Sequence[Group], text: Callable[[Group], str]) -> list[tuple[str, str]]:
    """Return one row where all groups agree; otherwise one for each different text, with the labels it applies to."""
    texts: dict[str, list[str]] = {}
    for group in groups:
        texts.setdefault(text(group), []).append(group.label)
    agree = len(texts) == 1
    return [(head, text if agree else f"{text} ({', '.join(labels)})") for text, labels in texts.items() if text]


def _algorithm(run: Finished) -> str:
    """Describe the algorithm in a sentence, one that is foreign code and not allowed by its name alone."""
    spec = run.spec
    about = f"{plugins.title('algorithms', spec.algorithm.name)}:"
    if not plugins.is_code(spec.algorithm.name) or spec.algorithm.name in spec.allow:
        thing = plugins.find("algorithms", spec.algorithm.name, spec.allow)
        about = f"{thing.__name__}: {' '.join((thing.__doc__ or '').strip().partition(chr(10) * 2)[0].split())}"
    return f"{about} {_words(spec.algorithm.settings)}".strip()


def _part(group: Group, key: str) -> str:
    part = getattr(group.first.spec, key)
    return "" if part is None else f"{part.name}: {_words(part.settings)}" if part.settings else part.name


def _words(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {_word(value)}" for key, value in values.items())


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _budget(group: Group) -> str:
    for kind, name in (("work", "gradients"), ("bytes", "bytes")):
        amounts = [amount for run in group.runs if (amount := getattr(run.spec, kind)) is not None]
        if amounts:
            return f"stops before more than {_span(amounts)} {name}, what was allowed for its seed"
    return ""


# --- personal models and cost -----------------------------------------------------------------------------------------


def personal_table(group: Group) -> Table:
    """Show personal models on training and held-out points: mean, median and worst decile over clients."""
    metric = group.first.scores.metric
    both = {
        "training": [scores.personal_train for scores in group.scores],
        "held out": [scores.personal_held_out for scores in group.scores],
    }
    constants = [stick.name for stick in group.first.scores.yardsticks]
    for i, name in enumerate(constants):
        if all(len(scores.yardsticks) == len(constants) for scores in group.scores):
            both[f"held out, {name} alone"] = [scores.yardsticks[i].held_out for scores in group.scores]
    spreads = {label: [spread for spread in found if spread] for label, found in both.items() if all(found)}
    kinds: list[Callable[[Spread], float]] = [lambda s: s.mean, lambda s: s.median, lambda s: s.worst_decile]
    columns = [column([[kind(s) for s in found] for found in spreads.values()], [group.refs] * len(spreads), metric)
               for kind in kinds]  # fmt: skip
    rows = tuple(
        (Cell(label), *(c[i] for c in columns), Cell(str(found[0].clients), found[0].clients))
        for i, (label, found) in enumerate(spreads.items())
    )
    return Table("personal-table", f"Personal models: {unit(metric)} on the client's own points",
                 heads("points", ["mean", "median", "worst decile", "clients"]), rows,
                 ("Worst decile: mean over the worst tenth of clients. A constant alone is what anybody could predict "
                  "without looking at the inputs." if constants else
                  "Worst decile: mean over the worst tenth of clients.",))  # fmt: skip


def personal_figure(
    found: dict[str, Clients], metric: str, origin: tuple[RunRef, ...], *, both: bool, seeds: int
) -> list[Figure]:
    """Draw clients from best served to worst, a line for each method; with `both`, training and held-out points."""
    series = []
    for label, clients in found.items():
        parts = {"training": clients.train, "held out": clients.held_out} if both else {label: clients.held_out}
        for name, values in parts.items():
            ordered = sorted(known(values), reverse=metric == "accuracy")
            if ordered:
                chosen = thin(len(ordered))
                x = [100 * (i + 0.5) / len(ordered) for i in chosen]
                series.append(Series(name, x, [factor(metric) * ordered[i] for i in chosen]))
    if not series:
        return []
    y = Axis(f"{unit(metric)} on the client's {'own' if both else 'held-out'} points")
    panel = Panel("", Axis("% of clients", low=0, high=100), y, tuple(series))
    alt = (
        f"{metric_name(metric)} of every client's personal model on its own points, sorted: the value at 50 % is "
        "the median, the right end the worst client."
    )
    notes = ("One seed: the first.",) if seeds > 1 else ()
    caption = "Personal models, clients from best served to worst"
    return [Figure("personal-distribution", caption, alt, (panel,), notes, origin)]


def cost_table(groups: Sequence[Group], head: str) -> Table:
    """Show rounds, work, traffic and time, a row for each group."""
    refs = [group.refs for group in groups]

    def over(cost: Callable[[Totals], float], *, each: bool = False) -> list[list[float | None]]:
        return [[cost(run.totals) / (run.clients if each else 1) for run in group.runs] for group in groups]

    columns = {
        "rounds": measured(over(lambda t: t.rounds), refs, count),
        "gradients": measured(over(lambda t: t.gradients), refs, count),
        "gradients per client": measured(over(lambda t: t.gradients, each=True), refs, count),
        "evaluations per client": measured(over(lambda t: t.evaluations, each=True), refs, count),
        "down per client": measured(over(lambda t: t.bytes_down, each=True), refs, size),
        "up per client": measured(over(lambda t: t.bytes_up, each=True), refs, size),
        "seconds": column(over(lambda t: t.seconds), refs),
    }
    rows = tuple((Cell(group.label), *(cells[i] for cells in columns.values())) for i, group in enumerate(groups))
    notes = ("A gradient is one training point visited once; an evaluation is a point scored under all centers "
             "without training. Down and up are bytes sent to and by clients.",)  # fmt: skip
    return Table("cost-table", "Cost of training", heads(head, [*columns]), rows, notes)


# --- how to run it again ----------------------------------------------------------------------------------------------


def settings_section(groups: Sequence[Group]) -> Section:
    """Show the whole spec of the first run of each group, as it can be run again."""
    codes = [Code(f"{group.label}, seed {group.first.spec.seed}: TOML", group.first.spec.to_toml()) for group in groups]
    about = "All settings with their defaults. Saved as a file, this can be run with 'fedsoft run FILE.toml'."
    return Section("settings", "Settings", (Text(about), *codes))


def environment_section(groups: Sequence[Group]) -> Section:
    """Show where the runs were made, each different place once."""
    found: dict[tuple[str, ...], list[Finished]] = {}
    packages = list(dict.fromkeys(name for g in groups for run in g.runs for name in run.info.packages))
    for run in (run for group in groups for run in group.runs):
        versions = (run.info.packages.get(package, "?") for package in packages)
        place = (run.info.platform, run.info.processor, run.info.python, *versions)
        found.setdefault(place, []).append(run)
    names = ["created", "platform", "processor", "Python", *packages]
    columns = []
    for place, runs in found.items():
        days = sorted(run.info.created[:10] for run in runs)
        columns.append((days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}", *place))
    titles = ("what", *(several(len(runs), "run") for runs in found.values()))
    rows = tuple((Cell(name), *map(Cell, values)) for name, *values in zip(names, *columns, strict=True))
    table = Table("environment-table", "Where the runs were made",
                  tuple(Column(title, numeric=False) for title in titles), rows)  # fmt: skip
    return Section("environment", "Environment", (table,))
