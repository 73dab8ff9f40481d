"""Methods side by side: as published, with the paper's solver, and with every method's solver tuned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedsoft.paper.items import METHODS, ORACLE, SOURCES, ComparisonItem
from fedsoft.paper.library import Library, Over
from fedsoft.paper.rules import POINTS, Claim, Key, Pair, Ruling, Values, better, in_order, rule
from fedsoft.paper.shown import (
    Case,
    Told,
    claims_table,
    difference,
    in_print,
    incomplete,
    obtained,
    printed,
    refs,
    scale_words,
    section,
    unit,
    verdict,
)
from fedsoft.reports.material import Finished
from fedsoft.reports.page import Block, Cell, Column, RunRef, Table, Text
from fedsoft.runs.execution import load
from fedsoft.runs.spec import RunSpec
from fedsoft.threads import one_thread

LOCAL, HELD_OUT = "local", "held out"
MIXED, SEPARATED = "FedEM, mixture prediction", "Oracle (separated data)"
STARVED = (
    "The paper gives every method the solver that suits FedSoft, whose clients keep their own model and optimiser over "
    "rounds. A method whose clients start again from a center in every round is starved by it."
)


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


def tell(item: ComparisonItem, case: Case) -> Told:
    """The section of one comparison."""
    seeds, library = case.seeds(item), case.library
    wanted = item.wanted(case.scale, seeds, library)
    missing = [spec for spec in wanted if not library.ended(spec)]
    if missing or (item.tuned and item.tuning(case.scale, library) is None):
        return incomplete(item, case, max(1, len(missing)))

    def plain(partition: str, label: str) -> list[RunSpec]:
        return [item.plain(partition, label, case.scale).with_seed(seed) for seed in seeds]

    rows = _rows(item, library, plain)
    for name, make in item.variants.items():
        spec = make(case.scale)
        shown = f"{name} ({spec.dataset.settings['clients']} clients, {spec.rounds} rounds)"
        if runs := library.over(spec, seeds):
            rows[next(iter(item.presets))][shown] = _row(runs)
    run = library.get(plain(next(iter(item.presets)), "fedsoft")[0])
    assert run is not None
    sources, metric, higher = run.scores["sources"], run.scores["metric"], bool(run.scores["higher_is_better"])
    tolerance = POINTS if metric == "accuracy" else 0.0
    blocks: list[Block] = [Text(scale_words(item, case, run))]
    ruling = _ruling(item, case, rows, higher, tolerance)
    if ruling is not None and item.printed is not None:
        blocks += [
            verdict(ruling, tuple(ref for block in rows.values() for ref in _row_refs(block["FedSoft"]))),
            _published(item, sources, metric, higher),
        ]
    caption = f"Obtained with the paper's solver for all: {unit(metric)}, mean ± standard deviation over seeds"
    blocks.append(_table(f"{item.id}-ours", caption, rows, sources, metric, higher))
    if ruling is not None:
        shown = tolerance if item.as_published(case.scale) else math.inf  # other settings are expected to differ
        blocks += [_difference(item, rows, sources, metric, shown), claims_table(item.id, ruling.claims)]
    findings = []
    if item.tuned:
        findings = _tuned(item, case, rows, sources, metric, higher, blocks)
    return Told(section(item, blocks), ruling, tuple(findings))


# --- values -----------------------------------------------------------------------------------------------------------


def _rows(item: ComparisonItem, library: Library, specs: Callable[[str, str], list[RunSpec]]) -> Rows:
    """Every method under every partition; one that failed is left out."""
    rows: Rows = {}
    for partition in item.presets:
        rows[partition] = {}
        for name, label in METHODS.items():
            runs = _got(library, specs(partition, label))
            if runs:
                rows[partition][name] = _row(runs)
                if name == "FedEM":
                    mixed = Over(tuple(_mixed(library, run) for run in runs), refs(runs))
                    rows[partition][MIXED] = Row(rows[partition][name].centers, mixed, None)
        apart = [_got(library, specs(partition, ORACLE.format(s))) for s in range(SOURCES)]
        if all(apart):
            own = [Over(tuple(_percent(run, run.scores["centers"][0][s]) for run in runs), refs(runs))
                   for s, runs in enumerate(apart)]  # fmt: skip
            rows[partition][SEPARATED] = Row(tuple(own), None, None)
    return rows


def _got(library: Library, specs: Sequence[RunSpec]) -> list[Finished]:
    return [run for spec in specs if (run := library.get(spec)) is not None]


def _percent(run: Finished, value: float) -> float:
    return in_print(value, run.scores["metric"])


def _row(runs: Sequence[Finished]) -> Row:
    origin = refs(runs)
    centers: list[Over | None] = [None] * SOURCES
    if runs[0].scores["centers"]:
        for j in range(SOURCES):
            best = [run.scores["centers"][run.scores["best"][j]][j] for run in runs]
            centers[j] = Over(tuple(_percent(run, v) for run, v in zip(runs, best, strict=True)), origin)
    held = [run.scores["personal_held_out"] for run in runs]
    return Row(
        tuple(centers),
        Over(tuple(_percent(run, run.scores["personal_train"]["mean"]) for run in runs), origin),
        Over(tuple(_percent(r, h["mean"]) for r, h in zip(runs, held, strict=True)), origin) if all(held) else None,
    )


def _mixed(library: Library, run: Finished) -> float:
    """FedEM as its own authors predict: with the client's mixture of all centers, on its training points."""

    def make() -> float:
        loaded = load(run.folder.path, predict_with="mixture")
        with torch.no_grad(), one_thread():
            scores = loaded.engine.personal_scores(loaded.state, loaded.federation.train)
        return float(scores.double().mean())

    return _percent(run, float(library.note("mixture", run.folder.name, make)))


def _row_refs(row: Row) -> tuple[RunRef, ...]:
    return row.local.runs if row.local else ()


# --- tables -----------------------------------------------------------------------------------------------------------


def _heads(partitions: Sequence[str], sources: Sequence[str], held_out: bool) -> tuple[Column, ...]:
    kinds = [*(f"best center, {source}" for source in sources), "local (training)", *["local (held out)"] * held_out]
    return (Column("method", numeric=False), *(Column(f"{p}: {kind}") for p in partitions for kind in kinds))


def _published(item: ComparisonItem, sources: Sequence[str], metric: str, higher: bool) -> Table:
    assert item.printed is not None
    methods = list(next(iter(item.printed.values())))
    rows = []
    for name in methods:
        cells = [Cell(name)]
        for block in item.printed.values():
            method = block[name]
            for j, value in enumerate(method.centers):
                best = (max if higher else min)(m.centers[j] for m in block.values())
                cells.append(Cell(f"{value:.1f} (c{method.indices[j]})", value, best=value == best))
            best = (max if higher else min)(m.local for m in block.values())
            cells.append(printed(method.local, metric, method.local == best))
        rows.append(tuple(cells))
    heads = _heads(list(item.presets), sources, held_out=False)
    return Table(f"{item.id}-published", f"Published: {unit(metric)} (number of the center)", heads, tuple(rows))


def _table(name: str, caption: str, rows: Rows, sources: Sequence[str], metric: str, higher: bool) -> Table:
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
    return Table(name, caption, _heads(list(rows), sources, held_out=True), tuple(ordered), notes, foot)


def _difference(item: ComparisonItem, rows: Rows, sources: Sequence[str], metric: str, tolerance: float) -> Table:
    pairs = {pair.key: pair for pair in _pairs(item, rows)}
    assert item.printed is not None
    body = []
    for name in next(iter(item.printed.values())):
        keys = [(p, name, key) for p in rows for key in (*range(len(sources)), LOCAL)]
        body.append((Cell(name), *(difference(pairs.get(key), metric, tolerance) for key in keys)))
    heads = _heads(list(rows), sources, held_out=False)
    return Table(f"{item.id}-difference", "Difference: ours less published", heads, tuple(body))


# --- rules ------------------------------------------------------------------------------------------------------------


def _pairs(item: ComparisonItem, rows: Rows) -> list[Pair]:
    pairs = []
    for partition, block in (item.printed or {}).items():
        for name, method in block.items():
            row = rows[partition].get(name)
            for key, value in (*enumerate(method.centers), (LOCAL, method.local)):
                over = row.value(key) if row else None
                if over is not None:
                    pairs.append(Pair((partition, name, key), value, over))
    return pairs


def _ruling(item: ComparisonItem, case: Case, rows: Rows, higher: bool, tolerance: float) -> Ruling | None:
    if item.printed is None:
        return None
    claims = []
    for partition, block in item.printed.items():
        names = list(block)

        def center(values: Values, name: str, partition: str = partition) -> float:
            return float(np.mean([values[partition, name, j] for j in range(SOURCES)]))

        def local(values: Values, name: str, partition: str = partition) -> float:
            return values[partition, name, LOCAL]

        for what, value in (("centers", center), *([("local models", local)] if item.order_local else [])):
            theirs = {
                (partition, n, k): v for n, m in block.items() for k, v in (*enumerate(m.centers), (LOCAL, m.local))
            }
            order = sorted(names, key=lambda n, value=value, theirs=theirs: value(theirs, n), reverse=higher)
            claims += [
                Claim(f"{partition}: FedSoft has the best {what}", lambda v, value=value, names=names: all(
                    better(value(v, "FedSoft"), value(v, n), higher) for n in names)),
                Claim(f"{partition}: {what} from best to worst: {', '.join(order)}",
                      lambda v, value=value, order=order: in_order([value(v, n) for n in order], higher)),
            ]  # fmt: skip
    return rule(item.title, _pairs(item, rows), claims, as_published=item.as_published(case.scale),
                tolerance=tolerance)  # fmt: skip


# --- tuned ------------------------------------------------------------------------------------------------------------


def _tuned(
    item: ComparisonItem, case: Case, plain: Rows, sources: Sequence[str], metric: str, higher: bool,
    blocks: list[Block],
) -> list[str]:  # fmt: skip
    """The same table with every method tuned, what was chosen, and whether the order changes."""
    library, seeds = case.library, case.seeds(item)
    tuning = item.tuning(case.scale, library)
    assert tuning is not None

    def specs(partition: str, label: str) -> list[RunSpec]:
        made = [item.tuned_spec(partition, label, case.scale, library, seed) for seed in seeds]
        return [spec for spec in made if spec is not None]

    rows = _rows(item, library, specs)
    first = next(iter(item.presets))
    blocks.append(Text(
        f"{STARVED} Below, learning rate and local epochs of every method were chosen from "
        f"{len(item.grid(case.scale).points)} pairs under {first}, by the mean over clients on held-out points with "
        f"{len(tuning.seeds)} other seed{'s' * (len(tuning.seeds) > 1)} (test sets were not looked at), and every "
        "method may do the client work of FedSoft with the paper's solver."
    ))  # fmt: skip
    caption = f"Obtained with every method tuned, under the same client work: {unit(metric)}"
    blocks += [_table(f"{item.id}-tuned", caption, rows, sources, metric, higher), _choices(item, case)]
    findings = []
    for what, keys in (("Best centers", list(range(SOURCES))), ("Local models on training points", [LOCAL]),
                       ("Local models on held-out points", [HELD_OUT])):  # fmt: skip
        orders = [_order(table, keys, higher) for table in (plain, rows)]
        if not all(orders):
            continue
        both = [[name for name in order if name in orders[1 - i]] for i, order in enumerate(orders)]
        change = "the ordering stays" if both[0] == both[1] else "the ordering changes"
        findings.append(
            f"{item.title}. {what}, mean over sources and partitions, from best to worst. With the paper's solver: "
            f"{_words(plain, orders[0], keys)}. Tuned: {_words(rows, orders[1], keys)}. So {change}."
            f"{_oracle_words(plain, rows, keys)}"
        )
    blocks += [Text(sentence) for sentence in findings]
    return findings


def _mean(rows: Rows, name: str, keys: Sequence[int | str]) -> float | None:
    found = [block[name].value(key) if name in block else None for block in rows.values() for key in keys]
    known = [over.mean for over in found if over is not None]
    return float(np.mean(known)) if len(known) == len(found) and known else None


def _order(rows: Rows, keys: Sequence[int | str], higher: bool) -> list[str]:
    means = {name: mean for name in METHODS if (mean := _mean(rows, name, keys)) is not None}
    return sorted(means, key=lambda name: means[name], reverse=higher)


def _words(rows: Rows, order: Sequence[str], keys: Sequence[int | str]) -> str:
    return ", ".join(f"{name} {_mean(rows, name, keys):.1f}" for name in order)


def _oracle_words(plain: Rows, tuned: Rows, keys: Sequence[int | str]) -> str:
    found = [_mean(rows, SEPARATED, keys) for rows in (plain, tuned)]
    return "" if None in found else f" The oracle has {found[0]:.1f} and {found[1]:.1f}."


def _choices(item: ComparisonItem, case: Case) -> Table:
    """All trials, the chosen ones marked."""
    tuning = item.tuning(case.scale, case.library)
    assert tuning is not None
    trials = {(t.label, t.lr, t.epochs): t for t in tuning.trials}
    points = item.grid(case.scale).points
    names = {label: name for name, label in METHODS.items()}
    names |= {ORACLE.format(s): f"Oracle, source {s}" for s in range(SOURCES)}
    runs = {spec.id: spec for specs in (item.trials(case.scale, case.library) or {}).values() for spec in specs}
    body = []
    for label in item.labels:
        cells = [Cell(names[label])]
        for rate, epochs in points:
            trial = trials[label, rate, epochs]
            found = _got(case.library, [runs[name] for name in trial.runs])
            values = tuple(in_print(v, tuning.metric) for v in trial.scores)
            best = tuning.best.get(label) is trial
            cells.append(
                Cell("failed") if np.isnan(trial.score) else obtained(Over(values, refs(found)), tuning.metric, best)
            )
        body.append(tuple(cells))
    heads = [f"lr {rate:g}, {epochs} epoch{'s' * (epochs > 1)}" for rate, epochs in points]
    edge = [names[label] for label in tuning.best if tuning.at_the_edge(label)]
    notes = (f"At the smallest or largest rate that was tried: {', '.join(edge)}.",) if edge else ()
    return Table(f"{item.id}-tuning", "Tuning: mean over clients on held-out points, the choice marked",
                 (Column("method", numeric=False), *map(Column, heads)), tuple(body), notes)  # fmt: skip
