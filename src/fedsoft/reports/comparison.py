"""A comparison as a table, as plain values, and as a picture."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsoft.reports.behind import behind
from fedsoft.reports.figures import COLOURS, png
from fedsoft.reports.tables import best_centers, metric_name, size, spread
from fedsoft.runs.folder import RunFolder
from fedsoft.studies.compare import Comparison

MOST_SOURCES = 4  # more than that, and the table shows their mean
MOST_BANDS = 6  # more than that, and bands hide the lines


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per algorithm; every measured value as a list over seeds."""
    lost = comparison.diverged
    return [
        {"algorithm": label, **_measured(folders), **({"diverged": lost[label]} if label in lost else {})}
        for label, folders in comparison.folders.items()
    ]


def failed(comparison: Comparison) -> dict[str, dict[int, str]]:
    """The algorithms of which no run came to its end."""
    return {label: seeds for label, seeds in comparison.diverged.items() if label not in comparison.folders}


def divergences(comparison: Comparison) -> list[str]:
    """What is to say of runs that diverged, a sentence for each algorithm."""
    found = []
    for label, seeds in comparison.diverged.items():
        seed, why = next(iter(seeds.items()))
        count = len(seeds) + len(comparison.folders.get(label, []))
        found.append(f"{label} diverged with {len(seeds)} of {count} seeds; seed {seed}: {why.partition(': ')[2]}")
    return found


def _measured(folders: list[RunFolder]) -> dict[str, Any]:
    scores = [folder.scores() or {} for folder in folders]
    records = [folder.records() for folder in folders]
    clients = [s["personal_train"]["clients"] for s in scores]
    best = [best_centers(s) for s in scores]

    def sums(*keys: str) -> list[float]:
        return [sum(record[key] for record in log for key in keys) / n for log, n in zip(records, clients, strict=True)]

    return {
        "runs": [folder.name for folder in folders],
        "seeds": [folder.spec().seed for folder in folders],
        "best_center": best if all(b is not None for b in best) else None,
        "recovery": [s["recovery"] for s in scores],
        "personal_train": [s["personal_train"]["mean"] for s in scores],
        "personal_held_out": [s["personal_held_out"]["mean"] if s["personal_held_out"] else None for s in scores],
        "worst_decile": [s["personal_held_out"]["worst_decile"] if s["personal_held_out"] else None for s in scores],
        "rounds": [len(log) for log in records],
        "gradients_per_client": sums("gradients"),
        "evaluations_per_client": sums("evaluations"),
        "bytes_down_per_client": sums("bytes_down"),
        "bytes_up_per_client": sums("bytes_up"),
        "seconds": [sum(record["seconds"] for record in log) for log in records],
    }


def worse_than_first(comparison: Comparison) -> list[str]:
    """What falls behind the first method, in words."""
    scores = next(iter(comparison.folders.values()))[0].scores() or {}
    return behind(rows(comparison), scores["sources"], scores["higher_is_better"])


def tables(comparison: Comparison, width: int) -> list[Table]:
    """Mean ± deviation over seeds, with the cost beside every result, and oracle and noise floor below.

    One table, or several one below the other where it would not fit into `width` columns.
    """
    lost = comparison.diverged
    names = [
        f"{label} ({len(lost[label])} diverged)" if label in lost else label for label in comparison.folders
    ]  # fmt: skip
    seeds = max(len(folders) + len(lost.get(label, {})) for label, folders in comparison.folders.items())
    cut = {"rounds": "same rounds", "work": "same client work", "bytes": "same bytes"}[comparison.budget]
    scores = next(iter(comparison.folders.values()))[0].scores() or {}
    title = f"{comparison.base.label}: {metric_name(scores['metric'])}, {seeds} seed{'s' * (seeds > 1)}, {cut}"
    made: list[Table] = []
    part: dict[str, list[str]] = {}
    for head, cells in {**_quality(comparison), **_cost(comparison)}.items():
        wider = _table(title, names, part | {head: cells})
        if part and Console(width=1000).measure(wider).maximum > width:
            made.append(_table(title, names, part))
            part, title = {}, ""
        part[head] = cells
    made = [*made, _table(title, names, part)]
    for table in made:
        for label in failed(comparison):
            table.add_row(Text(label), Text("diverged", style="red"))
    return made


def _table(title: str, names: list[str], columns: dict[str, list[str]]) -> Table:
    view = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    view.add_column("algorithm", no_wrap=True)
    for head in columns:
        view.add_column(head, justify="right", no_wrap=True)
    for i, name in enumerate([*names, "oracle", "noise floor"]):
        cells = [column[i] if i < len(column) else "" for column in columns.values()]
        if any(cells):
            view.add_row(Text(name), *cells, style="" if i < len(names) else "dim")
    return view


def _quality(comparison: Comparison) -> dict[str, list[str]]:
    """Column by column: a cell for each algorithm, then oracle and noise floor."""
    all_scores = [folder.scores() or {} for folder in next(iter(comparison.folders.values()))]
    metric, sources = all_scores[0]["metric"], all_scores[0]["sources"]
    found, columns = rows(comparison), {}
    heads = [f"best center\n{name}" for name in sources] if len(sources) <= MOST_SOURCES else ["best center\nmean"]
    cells = [[spread(v, metric) for v in _by_source(row["best_center"], len(sources))] for row in found]
    for key in ("oracle", "noise_floor"):
        known = [s[key] if isinstance(s[key], list) else [s[key]] * len(sources) for s in all_scores]
        there = all_scores[0][key] is not None
        cells.append([spread(v, metric) for v in _by_source(known, len(sources))] if there else [""] * len(heads))
    for j, head in enumerate(heads):
        columns[head] = [row[j] for row in cells]
    columns["u error"] = [spread(row["recovery"], "share") for row in found]
    for head, key in (
        ("personal\ntraining", "personal_train"),
        ("personal\nheld out", "personal_held_out"),
        ("worst\ndecile", "worst_decile"),
    ):
        columns[head] = [spread(row[key], metric) for row in found]
    return columns


def _cost(comparison: Comparison) -> dict[str, list[str]]:
    """What it took, per client: gradient evaluations (points x epochs) and bytes."""
    found = rows(comparison)

    def column(key: str, text: Callable[[float], str]) -> list[str]:
        return [text(statistics.mean(row[key])) for row in found]

    return {
        "rounds": column("rounds", lambda v: f"{v:.0f}"),
        "gradients\nper client": column("gradients_per_client", lambda v: f"{v / 1000:.1f} k"),
        "evaluations\nper client": column("evaluations_per_client", lambda v: f"{v / 1000:.1f} k"),
        "down\nper client": column("bytes_down_per_client", size),
        "up\nper client": column("bytes_up_per_client", size),
        "seconds": column("seconds", lambda v: f"{v:.1f}"),
    }


def to_csv(comparison: Comparison) -> str:
    """One line per run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = ["recovery", "personal_train", "personal_held_out", "worst_decile", "rounds", "gradients_per_client",
            "evaluations_per_client", "bytes_down_per_client", "bytes_up_per_client", "seconds"]  # fmt: skip
    found = rows(comparison)
    sources = max((len(b) for row in found for b in row["best_center"] or []), default=0)
    writer.writerow(["algorithm", "seed", "run", *(f"best_center_{j}" for j in range(sources)), *keys])
    for row in found:
        for i, seed in enumerate(row["seeds"]):
            best = row["best_center"][i] if row["best_center"] else [""] * sources
            writer.writerow([row["algorithm"], seed, row["runs"][i], *best, *(row[key][i] for key in keys)])
    return text.getvalue()


def figure(comparison: Comparison) -> bytes:
    """Error of the best centers against client work, and the personal models at the end, as PNG."""
    found = rows(comparison)
    scores = next(iter(comparison.folders.values()))[0].scores() or {}
    picture = Figure(figsize=(11, 4.8 + 0.1 * len(found)), layout="constrained")
    FigureCanvasAgg(picture)
    left, right = picture.subplots(1, 2, width_ratios=[1.5, 1])
    for i, (label, folders) in enumerate(comparison.folders.items()):
        _draw_course(left, label, folders, scores["higher_is_better"], _style(i), band=len(found) <= MOST_BANDS)
    name = metric_name(scores["metric"])
    if scores["oracle"]:
        left.axhline(statistics.mean(scores["oracle"]), color="#444444", ls="--", lw=1, label="oracle")
    left.set(xlabel="client work: gradient evaluations per client", ylabel=f"test {name}, best center, mean of sources")
    right.set(xlabel=f"personal {name} on held-out points")
    for i, row in enumerate(found):
        values = [v for v in row["personal_held_out"] if v is not None]
        if values:
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            right.errorbar(statistics.mean(values), i, xerr=deviation, fmt="o", capsize=3, color=_style(i)["color"])
    right.set_yticks(range(len(found)), [row["algorithm"] for row in found])
    right.invert_yaxis()
    if not scores["higher_is_better"]:
        left.set_yscale("log")
    handles, labels = left.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", frameon=False, fontsize=8, ncols=6)
    for axis in (left, right):
        axis.grid(alpha=0.25)
    picture.suptitle(f"{comparison.base.label}: {len(found[0]['seeds'])} seeds, mean and deviation", fontsize=11)
    return png(picture)


def _draw_course(
    axis: Any, label: str, folders: list[RunFolder], higher: bool, style: dict[str, Any], *, band: bool
) -> None:
    """A line per algorithm: the mean over seeds round by round, with a band of one deviation where there is room."""
    courses = []
    for folder in folders:
        spent, course = 0, []
        clients = ((folder.scores() or {}).get("personal_train") or {}).get("clients", 1)
        for record in folder.records():
            spent += record["gradients"]
            if record.get("centers"):
                columns = zip(*record["centers"], strict=True)
                course.append((spent / clients, statistics.mean(max(c) if higher else min(c) for c in columns)))
        courses.append(course)
    length = min(map(len, courses))
    if not length:
        return
    work = [statistics.mean(c[t][0] for c in courses) for t in range(length)]
    mean = [statistics.mean(c[t][1] for c in courses) for t in range(length)]
    axis.plot(work, mean, label=label, lw=1.7, **style)
    if len(courses) > 1 and band:
        deviation = [statistics.stdev(c[t][1] for c in courses) for t in range(length)]
        low = [max(m - d, m / 10) for m, d in zip(mean, deviation, strict=True)]
        high = [m + d for m, d in zip(mean, deviation, strict=True)]
        axis.fill_between(work, low, high, color=style["color"], alpha=0.12, lw=0)


def _style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "ls": ["-", "--", ":"][i // len(COLOURS) % 3]}


def _by_source(values: list[list[float]] | None, sources: int) -> list[list[float]]:
    """For each column of the table, its values over seeds."""
    if sources > MOST_SOURCES:
        return [[statistics.mean(v) for v in values or []]]
    return [[v[j] for v in values or []] for j in range(sources)]
