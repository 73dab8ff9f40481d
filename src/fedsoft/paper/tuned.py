"""The same comparison with every method's solver tuned, under the client work of FedSoft with the paper's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsoft.paper.cells import Case, in_print, obtained, refs
from fedsoft.paper.item_kinds import METHODS, ORACLE, SOURCES, ComparisonItem
from fedsoft.paper.methods import HELD_OUT, LOCAL, SEPARATED, Rows, got, methods_table, rows_of
from fedsoft.reports.cells import Over
from fedsoft.reports.numbers import unit
from fedsoft.reports.page import Block, Cell, Column, Table, Text
from fedsoft.runs.spec import RunSpec

STARVED = (
    "The paper gives every method the solver that suits FedSoft, whose clients keep their own model and optimiser over "
    "rounds. A method whose clients start again from a center in every round is starved by it."
)


def tuned_blocks(
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

    rows = rows_of(item, library, specs)
    first = next(iter(item.presets))
    blocks.append(Text(
        f"{STARVED} Below, learning rate and local epochs of every method were chosen from "
        f"{len(item.grid(case.scale).points)} pairs under {first}, by the mean over clients on held-out points with "
        f"{len(tuning.seeds)} other seed{'s' * (len(tuning.seeds) > 1)} (test sets were not looked at), and from rates "
        "beyond these as long as the best was at the edge; every "
        "method may do the client work of FedSoft with the paper's solver."
    ))  # fmt: skip
    caption = f"Obtained with every method tuned, under the same client work: {unit(metric)}"
    blocks += [methods_table(f"{item.id}-tuned", caption, rows, sources, metric, higher), _choices(item, case)]
    findings = []
    for what, keys in (("Best centers", list(range(SOURCES))), ("Local models on training points", [LOCAL]),
                       ("Local models on held-out points", [HELD_OUT])):  # fmt: skip
        orders = [_order(table, keys, higher) for table in (plain, rows)]
        if not all(orders):
            continue
        both = [[name for name in order if name in orders[1 - i]] for i, order in enumerate(orders)]
        change = "stays" if both[0] == both[1] else "changes"
        findings.append(
            f"{item.title}. {what}, mean over sources and partitions, from best to worst. With the paper's solver: "
            f"{_words(plain, orders[0], keys)}. Tuned: {_words(rows, orders[1], keys)}. "
            f"The order of these means {change}, which was not tested."
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
    points = sorted({(t.lr, t.epochs) for t in tuning.trials}, key=lambda point: (point[1], point[0]))
    names = {label: name for name, label in METHODS.items()}
    names |= {ORACLE.format(s): f"Oracle, source {s}" for s in range(SOURCES)}
    runs = {spec.id: spec for specs in (item.trials(case.scale, case.library) or {}).values() for spec in specs}
    body = []
    for label in item.labels:
        cells = [Cell(names[label])]
        for rate, epochs in points:
            if (label, rate, epochs) not in trials:  # beyond the edge, and of interest to other methods only
                cells.append(Cell("-"))
                continue
            trial = trials[label, rate, epochs]
            found = got(case.library, [runs[name] for name in trial.runs])
            values = tuple(in_print(v, tuning.metric) for v in trial.scores)
            best = tuning.best.get(label) is trial
            cells.append(
                Cell("failed") if np.isnan(trial.score) else obtained(Over(values, refs(found)), tuning.metric, best)
            )
        body.append(tuple(cells))
    heads = [f"lr {rate:g}, {epochs} epoch{'s' * (epochs > 1)}" for rate, epochs in points]
    edge = [names[label] for label in tuning.best if tuning.at_the_edge(label)]
    notes = (f"Still at the smallest or largest rate that was tried: {', '.join(edge)}.",) if edge else ()
    return Table(f"{item.id}-tuning", "Tuning: mean over clients on held-out points, the choice marked",
                 (Column("method", numeric=False), *map(Column, heads)), tuple(body), notes)  # fmt: skip
