"""What every method of a comparison reaches, partition by partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fedsoft.machine.threads import one_thread
from fedsoft.paper.cells import in_print, obtained, refs
from fedsoft.paper.item_kinds import METHODS, ORACLE, SOURCES, ComparisonItem
from fedsoft.paper.library import Library
from fedsoft.paper.verdicts import Key
from fedsoft.reports.cells import Over
from fedsoft.reports.page import Cell, Column, Table
from fedsoft.reports.run_loader import Finished
from fedsoft.runs.load import load
from fedsoft.runs.spec import RunSpec

LOCAL, HELD_OUT = "local", "held out"
MIXED, SEPARATED = "FedEM, mixture prediction", "Oracle (separated data)"


@dataclass(frozen=True)
class Row:
    """A method under one partition: every value over seeds, None where there is none."""

    centers: tuple[Over | None, ...]
    local: Over | None
    held_out: Over | None

    def value(self, key: int | str) -> Over | None:
        """By the number of a source, or `local`, or `held out`."""
        return self.centers[key] if isinstance(key, int) else self.local if key == LOCAL else self.held_out


Rows = dict[str, dict[str, Row]]  # by partition, by method


def rows_of(item: ComparisonItem, library: Library, specs: Callable[[str, str], list[RunSpec]]) -> Rows:
    """Every method under every partition; one that failed is left out."""
    rows: Rows = {}
    for partition in item.presets:
        rows[partition] = {}
        for name, label in METHODS.items():
            runs = got(library, specs(partition, label))
            if runs:
                rows[partition][name] = row_of(runs)
                if name == "FedEM":
                    mixed = Over(tuple(_mixed(library, run) for run in runs), refs(runs))
                    rows[partition][MIXED] = Row(rows[partition][name].centers, mixed, None)
        apart = [got(library, specs(partition, ORACLE.format(s))) for s in range(SOURCES)]
        if all(apart):
            own = [Over(tuple(percent(run, (run.scores.centers or [])[0][s]) for run in runs), refs(runs))
                   for s, runs in enumerate(apart)]  # fmt: skip
            rows[partition][SEPARATED] = Row(tuple(own), None, None)
    return rows


def got(library: Library, specs: Sequence[RunSpec]) -> list[Finished]:
    return [run for spec in specs if (run := library.get(spec)) is not None]


def percent(run: Finished, value: float) -> float:
    return in_print(value, run.scores.metric)


def row_of(runs: Sequence[Finished]) -> Row:
    origin = refs(runs)
    centers: list[Over | None] = [None] * SOURCES
    if runs[0].scores.centers:
        for j in range(SOURCES):
            best = [(run.scores.of_best or [])[j] for run in runs]
            centers[j] = Over(tuple(percent(run, v) for run, v in zip(runs, best, strict=True)), origin)
    held = [run.scores.personal_held_out for run in runs]
    return Row(
        tuple(centers),
        Over(tuple(percent(run, run.local) for run in runs), origin),
        Over(tuple(percent(r, h.mean) for r, h in zip(runs, held, strict=True) if h), origin) if all(held) else None,
    )


def _mixed(library: Library, run: Finished) -> float:
    """FedEM as its own authors predict: with the client's mixture of all centers, on its training points."""

    def make() -> float:
        loaded = load(run.folder.path, predict_with="mixture", data=True)
        with torch.no_grad(), one_thread():
            scores = loaded.engine.personal_scores(loaded.state, loaded.federation.train)
        return float(scores.double().mean())

    return percent(run, float(library.note("mixture", run.folder.name, make)))


def method_columns(partitions: Sequence[str], sources: Sequence[str], held_out: bool) -> tuple[Column, ...]:
    kinds = [*(f"best center, {source}" for source in sources), "local (training)", *["local (held out)"] * held_out]
    return (Column("method", numeric=False), *(Column(f"{p}: {kind}") for p in partitions for kind in kinds))


def methods_table(name: str, caption: str, rows: Rows, sources: Sequence[str], metric: str, higher: bool) -> Table:
    """Methods in rows; the best of the methods is marked, oracles and variants do not compete."""
    keys: list[int | str] = [*range(len(sources)), LOCAL, HELD_OUT]
    names = list(dict.fromkeys(method for block in rows.values() for method in block))
    best: dict[Key, float] = {}
    for partition, block in rows.items():
        for key in keys:
            means = [over.mean for method in METHODS if method in block and (over := block[method].value(key))]
            if means:
                best[partition, key] = max(means) if higher else min(means)
    body = []
    for method in names:
        cells = [Cell(method)]
        for partition, block in rows.items():
            for key in keys:
                over = block[method].value(key) if method in block else None
                marked = method in METHODS and over is not None and over.mean == best.get((partition, key))
                cells.append(obtained(over, metric, marked))
        body.append(tuple(cells))
    foot = sum(method not in METHODS for method in names)
    ordered = [*(r for r in body if r[0].text in METHODS), *(r for r in body if r[0].text not in METHODS)]
    notes = (
        "The local model of IFCA and FedEM is the center of the largest weight, as in the paper; FedEM's own mixture "
        "prediction stands beside it. The oracle is FedAvg on clients that keep only their points of one source.",
    )
    return Table(name, caption, method_columns(list(rows), sources, held_out=True), tuple(ordered), notes, foot)
