"""Tables of centers by sources: published, ours, and the difference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedsoft.paper.cells import (
    Case,
    ItemReport,
    claims_table,
    difference,
    in_print,
    incomplete,
    obtained,
    printed,
    refs,
    scale_words,
    section,
    verdict,
)
from fedsoft.paper.item_kinds import CentersItem
from fedsoft.paper.item_kinds import Column as BlockColumn
from fedsoft.paper.library import aligned
from fedsoft.paper.verdicts import POINTS, Claim, Key, Pair, Values, better, in_order, rule
from fedsoft.reports.cells import Over
from fedsoft.reports.numbers import unit
from fedsoft.reports.page import Block, Cell, Column, Table, Text
from fedsoft.reports.run_loader import Finished

LOCAL = "local"


@dataclass(frozen=True)
class Found:
    """One block of the table: its runs, and every value over seeds, centers in the order of their sources."""

    column: BlockColumn
    runs: list[Finished]

    @property
    def sources(self) -> list[str]:
        return self.runs[0].scores.sources

    @property
    def metric(self) -> str:
        return self.runs[0].scores.metric

    @property
    def higher(self) -> bool:
        return self.runs[0].scores.higher_is_better

    def centers(self, scaled: bool = False) -> list[list[Over]]:
        """`[source][center of source]`; `scaled`: divided by the mean squared distance of the sources."""
        tables = []
        for run in self.runs:
            factor = 1 / (run.scores.distance or math.nan) if scaled else in_print(1.0, self.metric)
            tables.append(factor * np.array(aligned(run.scores.centers or [], self.higher)))
        count = range(len(self.sources))
        return [[Over(tuple(float(t[j, i]) for t in tables), refs(self.runs)) for i in count] for j in count]

    def local(self) -> Over:
        """Personal models on the clients' own training points."""
        values = (in_print(run.local, self.metric) for run in self.runs)
        return Over(tuple(values), refs(self.runs))


def published(column: BlockColumn, higher: bool) -> list[list[float]]:
    """The printed values with centers in the order of their sources."""
    assert column.printed is not None
    return aligned(np.array(column.printed.values).T.tolist(), higher)


def report_on(item: CentersItem, case: Case) -> ItemReport:
    """The section of one table."""
    seeds, library = case.seeds(item), case.library
    missing = [spec for spec in item.wanted(case.scale, seeds, library) if not library.has(spec)]
    if missing:
        return incomplete(item, case, len(missing))
    found = [Found(column, library.over(column.spec(case.scale), seeds)) for column in item.columns]
    first = found[0]
    tolerance = POINTS if first.metric == "accuracy" else 0.0
    pairs = _pairs(item, found)
    ruling = rule(item.title, pairs, _claims(item, found), as_published=item.as_published(case.scale),
                  tolerance=tolerance)  # fmt: skip
    runs = tuple(ref for block in found for ref in refs(block.runs))
    by_key = {pair.key: pair for pair in pairs}
    shown = tolerance if item.as_published(case.scale) else math.inf  # other settings are expected to differ
    blocks: list[Block] = [Text(scale_words(item, case, first.runs[0])), verdict(ruling, runs)]
    blocks.append(_table(
        f"{item.id}-published", f"Published: {unit(first.metric)}", found,
        _printed,
        *_published_local(item, found),
        notes=("Centers are numbered at random: here each stands in the column of the source that it is assigned to, "
               "by the best one-to-one assignment. The best center of each source is marked.", *_misprints(item)),
    ))  # fmt: skip
    has_local = any(block.column.printed and block.column.printed.local is not None for block in found)
    blocks.append(_table(
        f"{item.id}-ours", f"Obtained: {unit(first.metric)}, mean ± standard deviation over seeds", found,
        lambda b, j, i: obtained(b.centers()[j][i], b.metric, _best([o.mean for o in b.centers()[j]], i, b)),
        *([("local", lambda b: obtained(b.local(), b.metric))] if has_local else []),
    ))  # fmt: skip
    blocks.append(_table(
        f"{item.id}-difference", "Difference: ours less published", found,
        lambda b, j, i: difference(by_key.get((b.column.name, j, i)), b.metric, shown),
        *([("local", lambda b: difference(by_key.get((b.column.name, LOCAL)), b.metric, shown))] * has_local),
    ))  # fmt: skip
    if first.runs[0].scores.distance is not None:
        blocks.append(_table(
            f"{item.id}-scaled", "Obtained, divided by the mean of |θ_s − θ_r|² over pairs of sources", found,
            lambda b, j, i: obtained(b.centers(scaled=True)[j][i], "mse"),
            notes=("A draw of the sources moves all errors of a run together; divided by their distance they are "
                   "comparable. A center half way between two sources has about 0.25.",),
        ))  # fmt: skip
    blocks += [_association(item, found), claims_table(item.id, ruling.claims)]
    findings = list(_beside(item, found, case, tolerance, blocks))
    return ItemReport(section(item, blocks), ruling, tuple(findings))


def _printed(block: Found, j: int, i: int) -> Cell:
    row = published(block.column, block.higher)[j]
    return printed(row[i], block.metric, _best(row, i, block))


def _best(row: Sequence[float], i: int, block: Found) -> bool:
    return row[i] == (max(row) if block.higher else min(row))


def _table(
    name: str, caption: str, found: Sequence[Found], cell: Callable[[Found, int, int], Cell],
    *rows: tuple[str, Callable[[Found], Cell]], notes: tuple[str, ...] = (),
) -> Table:  # fmt: skip
    """Sources in rows, and in columns the centers of every block, as in the paper; further rows below."""
    sources = found[0].sources
    count = range(len(sources))
    heads = [f"{b.column.name}: c({source})" if len(found) > 1 else f"c({source})" for b in found for source in sources]
    body = [(Cell(sources[j]), *(cell(block, j, i) for block in found for i in count)) for j in count]
    for title, value in rows:
        # A row about a block as a whole stands in its first column.
        body.append((Cell(title), *(value(b) if i == 0 else Cell("") for b in found for i in count)))
    return Table(name, caption, (Column("test set", numeric=False), *map(Column, heads)), tuple(body), notes)


def _published_local(item: CentersItem, found: Sequence[Found]) -> list[tuple[str, Callable[[Found], Cell]]]:
    """The local row as printed, and corrected where the authors' code divides wrongly."""
    if not any(block.column.printed and block.column.printed.local is not None for block in found):
        return []

    def local(block: Found, factor: float) -> Cell:
        value = block.column.printed.local if block.column.printed else None
        return printed(None if value is None else factor * value, block.metric)

    rows: list[tuple[str, Callable[[Found], Cell]]] = [("local, as printed", lambda b: local(b, 1.0))]
    if item.local_factor != 1.0:
        rows.append((f"local, printed x {item.local_factor:g}", lambda b: local(b, item.local_factor)))
    return rows


def _misprints(item: CentersItem) -> list[str]:
    """Where the paper underlines a value that is not the best of its row."""
    notes = []
    for column in item.columns:
        assert column.printed is not None
        for row, marks in zip(column.printed.values, column.printed.underlined, strict=True):
            best = max(row) if item.data != "synthetic" else min(row)
            if any(row[mark] != best for mark in marks):
                notes.append(f"{column.name}: the paper underlines {row[marks[0]]:g}, though {best:g} is better.")
    if item.local_factor != 1.0:
        notes.append(
            "The authors' code sums squared errors over batches of 10 and divides by the number of batches and by 50: "
            f"the printed local error is {item.local_factor:g} times too small. It is compared after correction."
        )
    return notes


def _pairs(item: CentersItem, found: Sequence[Found]) -> list[Pair]:
    pairs = []
    for block in found:
        theirs, ours = published(block.column, block.higher), block.centers()
        for j, row in enumerate(ours):
            pairs += [Pair((block.column.name, j, i), theirs[j][i], value) for i, value in enumerate(row)]
        local = block.column.printed.local if block.column.printed else None
        if local is not None:
            pairs.append(Pair((block.column.name, LOCAL), local * item.local_factor, block.local()))
    return pairs


def _claims(item: CentersItem, found: Sequence[Found]) -> list[Claim]:
    higher, count = found[0].higher, range(len(found[0].sources))
    names = [block.column.name for block in found]

    def own(values: Values, name: str) -> float:
        return float(np.mean([values[name, j, j] for j in count]))

    def separated(name: str) -> Claim:
        return Claim(
            f"{name}: every source is served best by the center that is assigned to it",
            lambda v: all(better(v[name, j, j], v[name, j, i], higher) for j in count for i in count),
        )

    def ahead(name: str) -> Claim:
        return Claim(
            f"{name}: on the mean over sources, the assigned center is better than the others",
            lambda v: better(
                own(v, name), float(np.mean([v[name, j, i] for j in count for i in count if i != j])), higher
            ),
        )

    claims = [make(name) for name in names for make in ((separated, ahead) if len(count) > 2 else (separated,))]
    if item.worst:
        claims.append(Claim(f"{item.worst} is the worst partition (mean of assigned centers)",
                            lambda v: all(better(own(v, n), own(v, item.worst), higher) for n in names)))  # fmt: skip
    if item.best:
        claims.append(Claim(f"{item.best} has the best centers", lambda v: all(
            better(own(v, item.best), own(v, n), higher) for n in names)))  # fmt: skip
    has_local = all(block.column.printed and block.column.printed.local is not None for block in found)
    if item.best and has_local:
        claims.append(Claim(f"{item.best} has the best local models", lambda v: all(
            better(v[item.best, LOCAL], v[n, LOCAL], higher) for n in names)))  # fmt: skip
        claims += [
            Claim(f"centers from best to worst: {_order_words(found, own)}",
                  lambda v: in_order([own(v, n) for n in _order(found, own)], higher)),
            Claim(f"local models from best to worst: {_order_words(found, _local)}",
                  lambda v: in_order([v[n, LOCAL] for n in _order(found, _local)], higher)),
        ]  # fmt: skip
    if item.ordered:
        claims.append(Claim("errors of assigned centers grow from column to column",
                            lambda v: in_order([own(v, n) for n in names], higher)))  # fmt: skip
        claims.append(Claim("local errors grow from column to column",
                            lambda v: in_order([v[n, LOCAL] for n in names], higher)))  # fmt: skip
    return claims


def _local(values: Values, name: str) -> float:
    return values[name, LOCAL]


def _order(found: Sequence[Found], value: Callable[[Values, str], float]) -> list[str]:
    """The blocks from best to worst by the published values."""
    theirs: dict[Key, float] = {}
    for block in found:
        table = published(block.column, block.higher)
        theirs |= {(block.column.name, j, i): v for j, row in enumerate(table) for i, v in enumerate(row)}
        if block.column.printed is not None and block.column.printed.local is not None:
            theirs[block.column.name, LOCAL] = block.column.printed.local
    names = [block.column.name for block in found]
    return sorted(names, key=lambda name: value(theirs, name), reverse=found[0].higher)


def _order_words(found: Sequence[Found], value: Callable[[Values, str], float]) -> str:
    return ", ".join(_order(found, value))


def _association(item: CentersItem, found: Sequence[Found]) -> Table:
    """Whether centers and sources find each other, run by run."""
    rows = []
    for block in found:
        assert block.column.printed is not None
        S = len(block.sources)
        theirs = max(len(set(chosen)) for chosen in itertools.product(*block.column.printed.underlined))  # ties
        different = Over(tuple(float(len(set(run.scores.best or []))) for run in block.runs), refs(block.runs))
        whole = sum(len(set(run.scores.best or [])) == S for run in block.runs)
        found_u = tuple(run.scores.recovery or 0.0 for run in block.runs)
        error = Over(found_u, refs(block.runs))
        rows.append((
            Cell(block.column.name), Cell(f"{theirs} of {S}", float(theirs)), obtained(different, "accuracy"),
            Cell(f"{whole} of {len(block.runs)}", float(whole), runs=refs(block.runs)), obtained(error, "share"),
        ))  # fmt: skip
    heads = ("different best centers, published", "different best centers, ours", "seeds with a center for each source",
             "mean |u − true share|")  # fmt: skip
    return Table(f"{item.id}-association", "Do centers and sources find each other?",
                 (Column("block", numeric=False), *map(Column, heads)), tuple(rows))  # fmt: skip


def _beside(
    item: CentersItem, found: Sequence[Found], case: Case, tolerance: float, blocks: list[Block]
) -> list[str]:  # fmt: skip
    """The other reading of sigma_0, and which of both the published values fit."""
    if not item.beside:
        return []
    others = [Found(column, case.library.over(column.spec(case.scale), case.seeds(item))) for column in item.beside]
    blocks.append(_table(
        f"{item.id}-squared", "Obtained when σ₀ is read as a standard deviation, as the paper's text has it", others,
        lambda b, j, i: obtained(b.centers()[j][i], b.metric, _best([o.mean for o in b.centers()[j]], i, b)),
        ("local", lambda b: obtained(b.local(), b.metric)),
    ))  # fmt: skip
    fits = [sum(pair.within(tolerance) for pair in _pairs(item, group)) for group in (found, others)]
    count = len(_pairs(item, found))
    sentence = (
        f"Read as a variance, σ₀ puts {fits[0]} of {count} published values of Table 6 within two standard "
        "deviations of ours; "
        f"read as a standard deviation, {fits[1]} of {count}."
    )
    blocks.append(Text(sentence))
    return [sentence]
