"""The cluster models of a run, for its page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedsoft.reports import parts
from fedsoft.reports.cells import column, mean_of
from fedsoft.reports.material import Group
from fedsoft.reports.page import (
    Block,
    Cell,
    Table,
    Text,
)
from fedsoft.reports.served import served
from fedsoft.reports.tables import best_centers

UNKNOWN = "The sources of this data are not known, so the centers are not scored against them."


def cluster_models(group: Group) -> list[Block]:
    """Every center on every source, beside oracle and noise floor; over seeds as far as centers correspond."""
    scores = group.first.scores
    if not scores["centers"]:
        unknown: list[Block] = [*served(group), Text(UNKNOWN)]
        return unknown if not scores["sources"] else [Text("This method has no centers.")]
    if len(group.runs) == 1:
        return [_center_table(group)]
    blocks: list[Block] = [_best_table(group)]
    return [_aligned_table(group), *blocks] if group.one_to_one else blocks


def _reference(group: Group) -> list[tuple[str, list[list[float | None]]]]:
    """Oracle and noise floor, as columns by source."""
    sources = range(len(group.first.scores["sources"]))
    found: list[tuple[str, list[list[float | None]]]] = []
    if group.first.scores["oracle"]:
        found.append(("oracle", [[s["oracle"][j] for s in group.scores] for j in sources]))
    if group.first.scores.get("noise_floor") is not None:
        floors: list[float | None] = [s.get("noise_floor") for s in group.scores]
        found.append(
            ("noise floor", [floors[:1] for _ in sources] if len(set(floors)) == 1 else [floors for _ in sources])
        )
    return found


def _by_source(
    group: Group, values: list[list[list[float | None]]], heads: Sequence[str], best: bool
) -> list[tuple[Cell, ...]]:
    """Rows by source: `values[j][i]` over seeds in column i, the best of each row marked, then what to compare with."""
    scores, metric = group.first.scores, group.first.scores["metric"]
    extra = _reference(group)
    rows = []
    for j, source in enumerate(scores["sources"]):
        entries = values[j] + [per_source[j] for _, per_source in extra]
        cells = column(entries, [group.refs] * len(entries), metric, scores["higher_is_better"] if best else None,
                       peers=len(heads))  # fmt: skip
        rows.append((Cell(source), *cells))
    return rows


def _center_table(group: Group) -> Table:
    scores = group.first.scores
    heads = [f"c{s}" for s in range(len(scores["centers"]))]
    values = [[[center[j]] for center in scores["centers"]] for j in range(len(scores["sources"]))]
    pairs = ", ".join(f"c{s} for {scores['sources'][j]}" for s, j in enumerate(scores["alignment"] or []))
    notes = ("Best center of each source marked.", f"Centers stand for sources one to one where they can: {pairs}.")
    return Table("centers-table", f"Test {_metric(group)} of every center on every source",
                 parts.heads("source", [*heads, *(name for name, _ in _reference(group))]),
                 tuple(_by_source(group, values, heads, True)), notes)  # fmt: skip


def _aligned_table(group: Group) -> Table:
    sources = group.first.scores["sources"]
    values: list[list[list[float | None]]] = [[[] for _ in sources] for _ in sources]
    for scores in group.scores:
        for s, stands_for in enumerate(scores["alignment"]):
            for j in range(len(sources)):
                values[j][stands_for].append(scores["centers"][s][j])
    heads = [f"center of {name}" for name in sources]
    return Table("centers-table", f"Test {_metric(group)} of every center on every source",
                 parts.heads("source", [*heads, *(name for name, _ in _reference(group))]),
                 tuple(_by_source(group, values, heads, True)),
                 ("Best center of each source marked. Centers are numbered by chance, so over seeds they are "
                  "matched by the source that they stand for.",))  # fmt: skip


def _best_table(group: Group) -> Table:
    """Run by run: the best center of each source, and which it is."""
    sources, metric = group.first.scores["sources"], group.first.scores["metric"]
    per_source = []
    for j in range(len(sources)):
        cells = column(
            [[(best_centers(run.scores) or [])[j]] for run in group.runs], [(run.ref,) for run in group.runs], metric
        )
        named = [f"{cell.text} (c{run.scores['best'][j]})" for cell, run in zip(cells, group.runs, strict=True)]
        per_source.append([Cell(text, cell.value, runs=cell.runs) for text, cell in zip(named, cells, strict=True)])
    heads, columns = [f"best on {name}" for name in sources], per_source
    if all(run.scores.get("distance") for run in group.runs) and metric == "mse":
        ratio = [[mean_of(best_centers(run.scores) or []) or math.nan] for run in group.runs]
        scaled = [[r[0] / run.scores["distance"]] for r, run in zip(ratio, group.runs, strict=True)]
        columns = [*columns, column(scaled, [(run.ref,) for run in group.runs])]
        heads.append("mean / |θ - θ'|²")
    rows = tuple(
        (Cell(f"seed {run.spec.seed}", run.spec.seed), *(c[i] for c in columns)) for i, run in enumerate(group.runs)
    )
    return Table(
        "best-table",
        f"Best center of each source, seed by seed: test {_metric(group)}",
        parts.heads("run", heads),
        rows,
    )


def _metric(group: Group) -> str:
    return parts.unit(group.first.scores["metric"])
