"""Methods side by side: as published, and with the paper's solver; see `tuned` for every method's solver tuned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedsoft.paper.cells import (
    Case,
    ItemReport,
    chance_table,
    claims_table,
    difference,
    incomplete,
    printed,
    scale_words,
    section,
    verdict,
)  # fmt: skip
from fedsoft.paper.item_kinds import SOURCES, ComparisonItem
from fedsoft.paper.methods import LOCAL, Row, Rows, method_columns, methods_table, row_of, rows_of
from fedsoft.paper.nulls import of_methods
from fedsoft.paper.tuned import tuned_blocks
from fedsoft.paper.verdicts import POINTS, Claim, Evidence, Key, Measures, Pair, Ruling, gap, rule, steps
from fedsoft.reports.numbers import unit
from fedsoft.reports.page import Block, Cell, RunRef, Table, Text
from fedsoft.runs.spec import RunSpec

TEST_POINTS = 1000  # of a source


def report_on(item: ComparisonItem, case: Case) -> ItemReport:
    """The section of one comparison."""
    seeds, library = case.seeds(item), case.library

    def plain(partition: str, label: str) -> list[RunSpec]:
        return [item.plain(partition, label, case.scale).with_seed(seed) for seed in seeds]

    first = [spec for partition in item.presets for label in item.labels for spec in plain(partition, label)]
    first += [make(case.scale).with_seed(seed) for make in item.variants.values() for seed in seeds]
    if absent := sum(not library.ended(spec) for spec in first):
        return incomplete(item, case, absent)
    rows = rows_of(item, library, plain)
    for name, make in item.variants.items():
        spec = make(case.scale)
        shown = f"{name} ({spec.dataset.settings['clients']} clients, {spec.rounds} rounds)"
        if runs := library.over(spec, seeds):
            rows[next(iter(item.presets))][shown] = row_of(runs)
    run = library.get(plain(next(iter(item.presets)), "fedsoft")[0])
    assert run is not None
    sources, metric, higher = run.scores.sources, run.scores.metric, run.scores.higher_is_better
    tolerance = POINTS if metric == "accuracy" else 0.0
    blocks: list[Block] = [Text(scale_words(item, case, run))]
    ruling = _ruling(item, case, rows, higher, tolerance)
    if ruling is not None and item.printed is not None:
        blocks += [
            verdict(ruling, tuple(ref for block in rows.values() for ref in _row_refs(block["FedSoft"]))),
            _published(item, sources, metric, higher),
        ]
    caption = f"Obtained with the paper's solver for all: {unit(metric)}, mean ± standard deviation over seeds"
    blocks.append(methods_table(f"{item.id}-ours", caption, rows, sources, metric, higher))
    if ruling is not None:
        shown = tolerance if item.as_published(case.scale) else math.inf  # other settings are expected to differ
        blocks += [_difference(item, rows, sources, metric, shown), claims_table(item.id, ruling.claims)]
        if ruling.chance:
            blocks.append(chance_table(item.id, ruling))
    findings = []
    untuned = sum(not library.ended(spec) for spec in item.wanted(case.scale, seeds, library))
    if item.tuned and (untuned or item.tuning(case.scale, library) is None):
        blocks.append(Text(f"Tuned methods are not shown: at least {max(1, untuned)} runs are missing. Make them with: "
                           f"{case.command(item)}."))  # fmt: skip
        findings = [f"{item.title}: the tuned part was not run."]
    elif item.tuned:
        findings = tuned_blocks(item, case, rows, sources, metric, higher, blocks)
    return ItemReport(section(item, blocks), ruling, tuple(findings))


def _row_refs(row: Row) -> tuple[RunRef, ...]:
    return row.local.runs if row.local else ()


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
    heads = method_columns(list(item.presets), sources, held_out=False)
    return Table(f"{item.id}-published", f"Published: {unit(metric)} (number of the center)", heads, tuple(rows))


def _difference(item: ComparisonItem, rows: Rows, sources: Sequence[str], metric: str, tolerance: float) -> Table:
    pairs = {pair.key: pair for pair in _pairs(item, rows)}
    assert item.printed is not None
    body = []
    for name in next(iter(item.printed.values())):
        keys = [(p, name, key) for p in rows for key in (*range(len(sources)), LOCAL)]
        body.append((Cell(name), *(difference(pairs.get(key), metric, tolerance) for key in keys)))
    heads = method_columns(list(rows), sources, held_out=False)
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
    pairs = _pairs(item, rows)
    theirs: dict[Key, float] = {pair.key: pair.published for pair in pairs}
    keys = list(theirs)
    seeds = min((len(pair.ours.values) for pair in pairs), default=0)  # a method that failed has fewer
    ours = [{pair.key: pair.ours.values[i] for pair in pairs} for i in range(seeds)]
    claims = []
    for partition, block in item.printed.items():
        names = [name for name in block if (partition, name, LOCAL) in theirs]

        def center(m: Measures, name: str, partition: str = partition) -> float:
            return float(np.mean([m[partition, name, j] for j in range(SOURCES)]))

        def local(m: Measures, name: str, partition: str = partition) -> float:
            return m[partition, name, LOCAL]

        for what, value in (("centers", center), *([("local models", local)] if item.order_local else [])):
            order = sorted(names, key=lambda n, value=value: value(theirs, n), reverse=higher)
            claims += [
                Claim(f"{partition}: FedSoft has the best {what}", lambda m, value=value, names=names: [
                    gap(value(m, "FedSoft"), value(m, n), higher) for n in names if n != "FedSoft"]),
                Claim(f"{partition}: {what} from best to worst: {', '.join(order)}",
                      lambda m, value=value, order=order: steps([value(m, n) for n in order], higher)),
            ]  # fmt: skip
    nulls = of_methods(ours, higher=higher, points=TEST_POINTS) if ours else {}
    evidence = Evidence(theirs, ours, keys, claims, nulls, tolerance)
    return rule(item.title, evidence, as_published=item.as_published(case.scale))
