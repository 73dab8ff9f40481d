"""Runs as tables in the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsoft.centers.collapse import standing
from fedsoft.centers.drift import changes
from fedsoft.errors import FedsoftError
from fedsoft.runs.apart import apart, in_short
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec
from fedsoft.trust.guards import exclusions, silence, unheard
from fedsoft.trust.privacy import below, statements, why_withheld

Scores = dict[str, Any]
BUDGET = "finished (budget)"  # of work or bytes, before the last round


def number(value: float | None, metric: str = "mse") -> str:
    """A score the way people write it: accuracies in percent, errors with three digits or so."""
    if value is None or math.isnan(value):
        return "-"
    if metric == "accuracy":
        return f"{100 * value:.1f} %"
    if abs(value) >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def centers_table(scores: Scores, starred: bool) -> Table:
    """Sources in rows and centers in columns as in the paper, the best center of each source underlined.

    It is `starred` instead where text cannot be underlined.
    """
    metric, sources = scores["metric"], scores["sources"]
    how = "*: best" if starred else "best underlined"
    table = Table(title=f"Cluster models: test {metric_name(metric)} ({how})", title_justify="left")
    table.add_column("source")
    for s in range(len(scores["centers"])):
        table.add_column(f"c{s}", justify="right")
    if scores["oracle"]:
        table.add_column("oracle", justify="right", style="dim")
    if scores["noise_floor"] is not None:
        table.add_column("noise floor", justify="right", style="dim")
    for j, source in enumerate(sources):
        row: list[RenderableType] = [Text(source)]
        for s, values in enumerate(scores["centers"]):
            best = s == scores["best"][j]
            text = number(values[j], metric)
            row.append(Text(f"*{text}" if best and starred else text, style="bold underline" if best else ""))
        row += [number(scores["oracle"][j], metric)] if scores["oracle"] else []
        row += [number(scores["noise_floor"], metric)] if scores["noise_floor"] is not None else []
        table.add_row(*row)
    return table


def served_table(scores: Scores, held_out: bool) -> Table:
    """What clients make of each center, where nobody knows the sources."""
    metric = scores["metric"]
    points = "held-out" if held_out else "training"
    table = Table(title=f"Cluster models: {metric_name(metric)} on the clients' {points} points", title_justify="left")
    for column in ("center", "share of data", "main center of", "on their points", "on all points"):
        table.add_column(column, justify="left" if column == "center" else "right")
    for s, use in enumerate(scores["served"]):
        clients = f"{use['clients']} client{'s' * (use['clients'] != 1)}"
        own, every = number(use["on_own"], metric), number(use["on_all"], metric)
        table.add_row(f"c{s}", f"{100 * use['share']:.0f} %", clients, own, every)
    return table


def best_centers(scores: Scores) -> list[float] | None:
    """For each source the score of the center that serves it best; None without centers."""
    if not scores["centers"]:
        return None
    return [scores["centers"][s][j] for j, s in enumerate(scores["best"])]


def personal_table(scores: Scores) -> Table:
    """Personal models on the clients' own points."""
    metric = scores["metric"]
    table = Table(title=f"Personal models: {metric_name(metric)} on the client's own points", title_justify="left")
    for column in ("points", "mean", "median", "worst decile", "clients"):
        table.add_column(column, justify="left" if column == "points" else "right")
    for key, label in (("personal_train", "training"), ("personal_held_out", "held out")):
        if spread := scores[key]:
            values = (number(spread[part], metric) for part in ("mean", "median", "worst_decile"))
            table.add_row(label, *values, str(spread["clients"]))
    return table


def mixture_text(scores: Scores) -> Text | None:
    """How well the true mixtures were found."""
    if scores["recovery"] is None:
        return None
    pairs = ", ".join(f"c{s} = {scores['sources'][j]}" for s, j in enumerate(scores["alignment"]))
    guess = f", equal shares would give {known:.3f}" if (known := scores.get("recovery_uniform")) is not None else ""
    return Text(f"Mixtures: mean |u - true share| = {scores['recovery']:.3f}{guess} ({pairs})")


def cost_text(records: list[dict[str, Any]]) -> Text:
    """What the run took."""
    total = {key: sum(r.get(key, 0) for r in records) for key in ("seconds", "gradients", "bytes_down", "bytes_up")}
    return Text(
        f"Cost: {len(records)} rounds in {total['seconds']:.1f} s, {total['gradients'] / 1e6:.2f} M gradients, "
        f"{size(total['bytes_down'])} down, {size(total['bytes_up'])} up"
    )


def run_view(folder: RunFolder, starred: bool = False) -> RenderableType:
    """Everything there is to say about one run."""
    scores, records = folder.scores(), folder.records()
    spec = folder.spec()
    head = Text(spec.title, style="bold")
    if scores is None:
        where = f"after round {len(records)} of {spec.rounds}"
        if (problem := folder.diverged) is not None:
            left = Text(f"diverged {where}: {problem}", style="yellow")
        else:
            left = Text(f"stopped {where}: go on with  fedsoft resume {folder.name}")
        told = [Text(f"Warning: {text}", style="yellow") for text in silence(records)]
        told += [Text(f"Excluded: {text}", style="yellow") for text in exclusions(records)]
        return Group(head, left, *told, cost_text(records), *_kept(folder))
    hidden = withheld_centers(spec, records)
    scores = without_centers(scores, [*hidden])
    parts: list[RenderableType] = [head]
    if about := folder.info.get("about"):
        parts.append(Text(f"Data: {about}"))
    parts.append(Text())
    if scores["centers"]:
        parts += [centers_table(scores, starred), Text()]
    elif scores.get("served"):
        parts += [served_table(scores, held_out=scores["personal_held_out"] is not None), Text()]
    parts += [personal_table(scores), Text()]
    if (mixture := mixture_text(scores)) is not None:
        parts.append(mixture)
    parts += [Text(f"Warning: {text}", style="yellow") for text in [*silence(records), *standing(records)]]
    parts += [Text(f"Withheld: {text}", style="yellow") for text in hidden.values()]
    parts += [Text(f"Privacy: {text}") for text in statements(records[-1].get("privacy", {}) if records else {})]
    parts += [Text(f"Excluded: {text}", style="yellow") for text in exclusions(records)]
    parts += [Text(f"Drift: {text}", style="yellow") for text in changes(records)]
    if state_of(folder) == BUDGET:
        parts.append(Text(f"Ended by its budget, after {len(records)} of at most {spec.rounds} rounds"))
    parts += [cost_text(records), *_kept(folder), Text(f"Saved: {folder.path}")]
    if (folder.path / "figure.png").exists():
        parts.append(Text(f"Figure: {folder.path / 'figure.png'}"))
    return Group(*parts)


def _kept(folder: RunFolder) -> list[Text]:
    """The rounds whose states are kept, the first and last few of many."""
    rounds = [str(number) for number in folder.kept]
    shown = rounds if len(rounds) <= 12 else [*rounds[:3], "...", *rounds[-3:]]
    return [Text(f"Kept: the state of rounds {', '.join(shown)} (fedsoft.load(path, round=N))")] if rounds else []


def withheld_centers(spec: RunSpec, records: Sequence[dict[str, Any]]) -> dict[int, str]:
    """The centers that are not published, and why."""
    floor, used = (spec.privacy or {}).get("floor", 0.0), records[-1].get("effective", []) if records else []
    return {s: why_withheld(s, count, floor) for s, count in below(floor, used).items()}


def without_centers(scores: Scores, hidden: Sequence[int]) -> Scores:
    """The same scores, with nothing about these centers."""
    if not hidden:
        return scores
    centers = [[math.nan] * len(row) if s in hidden else row for s, row in enumerate(scores["centers"] or [])]
    nothing = {"on_own": None, "on_all": None}
    served = [use | (nothing if s in hidden else {}) for s, use in enumerate(scores.get("served") or [])]
    return scores | {"centers": centers or scores["centers"], "served": served or scores.get("served")}


def seeds_table(all_scores: list[Scores]) -> Table:
    """Means and deviations over seeds, each source with its best center."""
    first = all_scores[0]
    metric = first["metric"]
    table = Table(title=f"{metric_name(metric)} over {len(all_scores)} seeds: mean ± deviation", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    for j, source in enumerate(first["sources"] if first["centers"] else []):
        best = [(best_centers(s) or [])[j] for s in all_scores]
        table.add_row(Text(f"best center on {source}"), spread(best, metric))
        if first["distance"]:
            scaled = [b / s["distance"] for b, s in zip(best, all_scores, strict=True)]
            table.add_row(Text("  divided by |θ - θ'|²", style="dim"), spread(scaled, "share"))
    if first["oracle"]:
        table.add_row("oracle", spread([sum(s["oracle"]) / len(s["oracle"]) for s in all_scores], metric), style="dim")
    for key, label in (("personal_train", "personal, training"), ("personal_held_out", "personal, held out")):
        if first[key]:
            table.add_row(label, spread([s[key]["mean"] for s in all_scores], metric))
    if first["recovery"] is not None:
        table.add_row("mean |u - true share|", spread([s["recovery"] for s in all_scores], "share"))
    return table


def runs_table(folders: list[RunFolder]) -> Table:
    """The runs of a folder, one line each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("run", "algorithm", "dataset", "settings", "rounds", "state")
    for column in columns:
        table.add_column(column, justify="right" if column == "rounds" else "left", no_wrap=column == "run")
    for row in runs_list(folders):
        table.add_row(*(Text(row["changed"] if column == "settings" else str(row[column])) for column in columns))
    return table


def runs_list(folders: list[RunFolder]) -> list[dict[str, Any]]:
    """The runs of a folder as plain values. A run that cannot be read is listed as such."""
    rows, specs = [], {}
    for number, folder in enumerate(folders):
        row: dict[str, Any] = {"run": folder.name, "path": str(folder.path), "settings": {}, "changed": ""}
        try:
            spec, info, done = folder.spec(), folder.info, len(folder.records())
            row |= {"algorithm": spec.algorithm.name, "dataset": spec.dataset.name, "seed": spec.seed,
                    "variant": spec.variant, "rounds": f"{done}/{spec.rounds}",
                    "state": state_of(folder), "created": info.get("created", "")}  # fmt: skip
            specs[number] = spec
        except FedsoftError as error:
            row |= {
                "algorithm": "",
                "dataset": "",
                "seed": "",
                "variant": None,
                "rounds": "",
                "state": f"damaged: {error}",
                "created": "",
            }
        rows.append(row)
    for (number, spec), settings in zip(specs.items(), apart(list(specs.values())), strict=True):
        rows[number] |= {"settings": settings, "changed": in_short(settings, spec)}
    return rows


def state_of(folder: RunFolder) -> str:
    """Whether a run is finished, with what is odd about its end; else diverged, or stopped."""
    if folder.scores() is None:
        return "stopped" if folder.diverged is None else "diverged"
    spec, records = folder.spec(), folder.records()
    if unheard(records) is not None:
        return "finished (nobody answered)"
    budget = spec.work is not None or spec.bytes is not None
    return BUDGET if budget and len(records) < spec.rounds else "finished"


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def metric_name(metric: str) -> str:
    """A metric the way people write it."""
    return {"mse": "MSE", "accuracy": "accuracy", "loss": "loss"}.get(metric, metric)


def spread(values: Sequence[float | None], metric: str) -> str:
    """Mean ± deviation over seeds; `metric` may also be `share`, for numbers below 1."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = statistics.mean(known)
    shown = f"{mean:.3f}" if metric == "share" else number(mean, metric)
    if len(known) == 1:
        return shown
    deviation = statistics.stdev(known)
    return f"{shown} ± {f'{deviation:.3f}' if metric == 'share' else number(deviation, metric)}"


def duration(seconds: float) -> str:
    """A time the way people say it.

    >>> duration(7.2), duration(400), duration(9000)
    ('7 s', '7 min', '2.5 h')
    """
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
