"""Parts that the page of a run and the page of a comparison share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fedsoft import plugins
from fedsoft.errors import FedsoftError
from fedsoft.reports.cells import column, known, measured
from fedsoft.reports.cells import count as number_of
from fedsoft.reports.clients import Clients, clients_of
from fedsoft.reports.material import Finished, Group
from fedsoft.reports.page import Axis, Cell, Code, Column, Figure, Panel, RunRef, Section, Series, Table, Text
from fedsoft.reports.tables import metric_name, size

MOST_POINTS = 200  # of one line; more cannot be told apart
MOST_BANDS = 5  # in one panel; more hide the lines


def factor(metric: str) -> float:
    """Accuracies are drawn in percent."""
    return 100.0 if metric == "accuracy" else 1.0


def unit(metric: str) -> str:
    """The metric with its unit, as on an axis."""
    return metric_name(metric) + (", %" if metric == "accuracy" else "")


def heads(first: str, others: Sequence[str]) -> tuple[Column, ...]:
    """The heads of a table: what its rows are, then columns of numbers."""
    return (Column(first, numeric=False), *map(Column, others))


def thin(length: int, most: int = MOST_POINTS) -> list[int]:
    """Which of so many points are drawn: all, or evenly spread ones with the first and the last.

    >>> thin(5), thin(9, most=3)
    ([0, 1, 2, 3, 4], [0, 4, 8])
    """
    if length <= most:
        return list(range(length))
    return sorted({round(i * (length - 1) / (most - 1)) for i in range(most)})


def band(courses: Sequence[Sequence[float]], metric: str, lines: int) -> tuple[list[float], list[float], list[float]]:
    """Mean, low and high over seeds, point by point; no interval for a single course, or among too many lines.

    On a logarithmic axis a deviation as large as the mean would reach down for ever: it ends at a tenth of the mean.
    """
    scale, means, lows, highs = factor(metric), [], [], []
    for values in zip(*courses, strict=True):
        found = known(values)
        mean = statistics.mean(found) if found else math.nan
        deviation = statistics.stdev(found) if len(found) > 1 else 0.0
        means.append(scale * mean)
        lows.append(scale * (mean - deviation if metric == "accuracy" else max(mean - deviation, mean / 10)))
        highs.append(scale * (mean + deviation))
    return (means, lows, highs) if len(courses) > 1 and lines <= MOST_BANDS else (means, [], [])


def look_at_clients(run: Finished) -> tuple[Clients | None, str]:
    """Every client of a run, or a sentence about why they cannot be looked at."""
    try:
        return clients_of(run), ""
    except FedsoftError as error:
        return None, f"Nothing is shown for single clients: {error}."


def algorithm_name(run: Finished) -> str:
    """As the paper writes it."""
    return plugins.find("algorithms", run.spec.algorithm.name).__name__


def settings_words(values: dict[str, Any]) -> str:
    """Settings as people write them, in one line."""
    return ", ".join(f"{key} = {_word(value)}" for key, value in values.items())


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def data_words(run: Finished) -> str:
    """The data in a few words."""
    return run.spec.title.partition(" on ")[2].rpartition(", seed")[0]


def facts(groups: Sequence[Group]) -> Table:
    """What was run, part by part; what differs between the groups is told for each."""
    rows: list[tuple[str, str]] = []
    for group in groups:
        thing = plugins.find("algorithms", group.first.spec.algorithm.name)
        about = " ".join((thing.__doc__ or "").strip().split("\n\n")[0].split())
        head = "algorithm" if len(groups) == 1 else group.label
        rows.append((head, f"{thing.__name__}: {about} {settings_words(group.first.spec.algorithm.settings)}".strip()))
    for key in ("dataset", "partition", "model", "local"):
        rows += _fact({"local": "local solver"}.get(key, key), groups, lambda group, key=key: _part_words(group, key))
    rows += _fact("clients", groups, lambda group: f"{group.first.clients:,}")
    rows += _fact("rounds", groups, _rounds)
    rows += _fact("seeds", groups, lambda group: ", ".join(str(run.spec.seed) for run in group.runs))
    rows += _fact("precision", groups, lambda group: group.first.spec.dtype)
    rows += _fact("dropout", groups, lambda group: f"{group.first.spec.dropout:g}" if group.first.spec.dropout else "")
    rows += _fact("budget", groups, _budget)
    cells = tuple((Cell(head), Cell(text)) for head, text in rows)
    return Table(
        "facts", "Settings in words", (Column("part", numeric=False), Column("what", numeric=False, wrap=True)), cells
    )


def _fact(head: str, groups: Sequence[Group], text: Callable[[Group], str]) -> list[tuple[str, str]]:
    """One row where all groups agree; otherwise one for each different text, and whose it is."""
    texts: dict[str, list[str]] = {}
    for group in groups:
        texts.setdefault(text(group), []).append(group.label)
    if len(texts) == 1:
        return [(head, told) for told in texts if told]
    return [(head, f"{told} ({', '.join(labels)})") for told, labels in texts.items() if told]


def _part_words(group: Group, key: str) -> str:
    part = getattr(group.first.spec, key)
    return "" if part is None else f"{part.name}: {settings_words(part.settings)}" if part.settings else part.name


def _rounds(group: Group) -> str:
    played = sorted({len(run.records) for run in group.runs})
    return f"{played[0]}" if len(played) == 1 else f"{played[0]} to {played[-1]}"


def _budget(group: Group) -> str:
    for kind, name in (("work", "gradients"), ("bytes", "bytes")):
        amounts = sorted(amount for run in group.runs if (amount := getattr(run.spec, kind)) is not None)
        if amounts:
            span = f"{amounts[0]:,}" if amounts[0] == amounts[-1] else f"{amounts[0]:,} to {amounts[-1]:,}"
            return f"stops before more than {span} {name}, what was allowed for its seed"
    return ""


def personal_figure(
    found: dict[str, Clients], metric: str, origin: tuple[RunRef, ...], *, both: bool, seeds: int
) -> Figure | None:
    """Clients from best served to worst, a line for each method; with `both`, training and held-out points."""
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
        return None
    points = "own points" if both else "held-out points"
    panel = Panel(
        "", Axis("% of clients", low=0, high=100), Axis(f"{unit(metric)} on the client's {points}"), tuple(series)
    )
    return Figure(
        "personal-distribution",
        "Personal models, clients from best served to worst",
        f"{metric_name(metric)} of every client's personal model on its own points, sorted: the value at 50 % is the "
        "median, the right end the worst client.",
        (panel,),
        notes=("One seed: the first.",) if seeds > 1 else (),
        origin=origin,
    )


def cost_table(groups: Sequence[Group], names: Sequence[str], head: str) -> Table:
    """What it took, row by row."""
    refs = [group.refs for group in groups]

    def over(*keys: str, each: bool = False) -> list[list[float | None]]:
        return [[run.total(*keys) / (run.clients if each else 1) for run in group.runs] for group in groups]

    columns = {
        "rounds": measured([[float(len(run.records)) for run in group.runs] for group in groups], refs, number_of),
        "gradients": measured(over("gradients"), refs, number_of),
        "gradients per client": measured(over("gradients", each=True), refs, number_of),
        "evaluations per client": measured(over("evaluations", each=True), refs, number_of),
        "down per client": measured(over("bytes_down", each=True), refs, size),
        "up per client": measured(over("bytes_up", each=True), refs, size),
        "seconds": column(over("seconds"), refs),
    }
    rows = tuple((Cell(name), *(cells[i] for cells in columns.values())) for i, name in enumerate(names))
    return Table(
        "cost-table", "What it took", (Column(head, numeric=False), *map(Column, columns)), rows,
        notes=("A gradient is one training point visited once; an evaluation is a point scored under all centers "
               "without training. Down and up are bytes sent to and by clients.",),
    )  # fmt: skip


def settings_section(groups: Sequence[Group]) -> Section:
    """The whole spec of the first run of each group, as it can be run again."""
    codes = [Code(f"{group.label}, seed {group.first.spec.seed}: TOML", group.first.spec.to_toml()) for group in groups]
    about = (
        "Everything that was set, defaults written out. Saved as a file, this is what 'fedsoft run FILE.toml' takes."
    )
    return Section("settings", "Settings", (Text(about), *codes))


def environment_section(groups: Sequence[Group]) -> Section:
    """Where the runs were made, each different place once."""
    found: dict[tuple[str, ...], list[Finished]] = {}
    packages = list(dict.fromkeys(name for g in groups for run in g.runs for name in run.info.get("packages", {})))
    for run in (run for group in groups for run in group.runs):
        parts = [run.info.get(key, "?") for key in ("platform", "processor", "python")]
        found.setdefault(
            (*map(str, parts), *(str(run.info.get("packages", {}).get(p, "?")) for p in packages)), []
        ).append(run)
    names = ["created", "platform", "processor", "Python", *packages]
    columns = []
    for place, runs in found.items():
        days = sorted(str(run.info.get("created", "?"))[:10] for run in runs)
        columns.append((days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}", *place))
    heads = [f"{len(runs)} run{'s' * (len(runs) > 1)}" for runs in found.values()]
    rows = tuple((Cell(name), *map(Cell, values)) for name, *values in zip(names, *columns, strict=True))
    table = Table("environment-table", "Where the runs were made",
                  tuple(Column(head, numeric=False) for head in ("what", *heads)), rows)  # fmt: skip
    return Section("environment", "Environment", (table,))
