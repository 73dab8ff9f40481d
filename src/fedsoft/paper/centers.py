"""Tables of centers by sources: published, ours, and the difference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsoft.paper.cells import (
    Case,
    ItemReport,
    chance_table,
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
from fedsoft.paper.measures import LOCAL, compared, distance, doubtful, measures, mended
from fedsoft.paper.nulls import of_centers
from fedsoft.paper.verdicts import POINTS, Claim, Evidence, Key, Measures, Pair, gap, over, rule, steps
from fedsoft.reports.cells import Over
from fedsoft.reports.numbers import unit
from fedsoft.reports.page import Block, Cell, Column, Table, Text
from fedsoft.reports.run_loader import Finished

TEST_POINTS = 1000  # of a source, where the settings do not say


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

    def table(self, seed: int) -> np.ndarray:
        """`[center][source]` of one run, in the paper's unit, centers as they are numbered."""
        return in_print(1.0, self.metric) * np.array(self.runs[seed].scores.centers or [])

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
    pairs, evidence = _pairs(item, found), _evidence(item, found, tolerance)
    ruling = rule(item.title, evidence, as_published=item.as_published(case.scale))
    runs = tuple(ref for block in found for ref in refs(block.runs))
    by_key = {pair.key: pair for pair in pairs}
    # Other settings are expected to differ, and errors move with the distance of the sources of a draw.
    shown = tolerance if item.as_published(case.scale) and tolerance else math.inf
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
    if (first.column.name, "position") in evidence.published:
        blocks.append(_positions(item, found, evidence))
    if first.runs[0].scores.distance is not None:
        blocks.append(_table(
            f"{item.id}-scaled", "Obtained, divided by the mean of |θ_s − θ_r|² over pairs of sources", found,
            lambda b, j, i: obtained(b.centers(scaled=True)[j][i], "mse"),
            notes=("A draw of the sources moves all errors of a run together; divided by their distance they are "
                   "comparable. A center half way between two sources has about 0.25.",),
        ))  # fmt: skip
    blocks += [_association(item, found), claims_table(item.id, ruling.claims)]
    if ruling.chance:
        blocks.append(chance_table(item.id, ruling))
    findings = list(_beside(item, found, case, blocks))
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
        if item.data == "synthetic" and (found := doubtful(column.printed)) is not None:
            source, center, expected = found
            notes.append(
                f"{column.name}: the printed {column.printed.values[source][center]:g} of center {center} on source "
                f"{source} is probably a misprint: the other three values of the block imply about {expected:.0f}, "
                "which is used in its place. Values of this block are shown, but not judged."
            )
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


def _evidence(item: CentersItem, found: Sequence[Found], tolerance: float) -> Evidence:
    """What the rule judges: published values and ours, seed by seed, and worlds in which nothing is true."""
    higher, published_values, keys = found[0].higher, dict[Key, float](), list[Key]()
    for block in found:
        printed, name = block.column.printed, block.column.name
        assert printed is not None
        local = None if printed.local is None else printed.local * item.local_factor
        published_values |= measures(name, mended(printed), higher, local)
        if doubtful(printed) is None:  # what contradicts itself can neither confirm nor contradict
            keys += compared(name, mended(printed), higher, local is not None)

    def measured(tables: Mapping[str, np.ndarray], seed: int) -> Measures:
        made: dict[Key, float] = {}
        for block in found:
            has_local = block.column.printed is not None and block.column.printed.local is not None
            local = in_print(block.runs[seed].local, block.metric) if has_local else None
            made |= measures(block.column.name, tables[block.column.name].tolist(), higher, local)
        return made

    seeds = [{block.column.name: block.table(i) for block in found} for i in range(len(found[0].runs))]
    points = int(found[0].runs[0].spec.dataset.settings.get("test_points", TEST_POINTS))
    return Evidence(
        published_values, [measured(tables, i) for i, tables in enumerate(seeds)], keys,
        _claims(item, found, published_values), of_centers(seeds, measured, higher=higher, points=points,
                   ordered=bool(item.worst or item.best or item.ordered)), tolerance,
    )  # fmt: skip


def _claims(item: CentersItem, found: Sequence[Found], theirs: Measures) -> list[Claim]:
    higher, count = found[0].higher, range(len(found[0].sources))
    names = [block.column.name for block in found]
    by_position = len(count) == 2 and not higher  # then blocks are compared free of the distance of their sources

    def own(m: Measures, name: str) -> float:
        return m[name, "position"] if by_position else float(np.mean([m[name, "own", j] for j in count]))

    def local(m: Measures, name: str) -> float:
        return m[name, LOCAL]

    def error(m: Measures, name: str) -> float:
        return float(np.mean([m[name, "own", j] for j in count]))

    def separated(name: str) -> Claim:
        return Claim(
            f"{name}: every source is served best by the center that the others leave to it",
            lambda m: [gap(m[name, "own", j], m[name, "next", j], higher) for j in count],
        )

    def ahead(name: str) -> Claim:
        return Claim(
            f"{name}: on the mean over sources, the center that is left is better than the others",
            lambda m: [gap(float(np.mean([m[name, "own", j] for j in count])),
                           float(np.mean([m[name, "rest", j] for j in count])), higher)],
        )  # fmt: skip

    def first(name: str, value: Callable[[Measures, str], float], sign: int = 1) -> Callable[[Measures], list[float]]:
        return lambda m: [sign * gap(value(m, name), value(m, n), higher) for n in names if n != name]

    def order(value: Callable[[Measures, str], float]) -> list[str]:
        return sorted(names, key=lambda name: value(theirs, name), reverse=higher)

    claims = [make(name) for name in names for make in ((separated, ahead) if len(count) > 2 else (separated,))]
    if item.worst:
        claims.append(Claim(f"{item.worst} is the worst partition", first(item.worst, own, -1)))
    if item.best:
        claims.append(Claim(f"{item.best} has the best centers", first(item.best, own)))
    if item.best and all((name, LOCAL) in theirs for name in names):
        claims += [
            Claim(f"{item.best} has the best local models", first(item.best, local)),
            Claim(f"centers from best to worst: {', '.join(order(own))}",
                  lambda m: steps([own(m, n) for n in order(own)], higher)),
            Claim(f"local models from best to worst: {', '.join(order(local))}",
                  lambda m: steps([local(m, n) for n in order(local)], higher)),
        ]  # fmt: skip
    if item.ordered:
        claims.append(Claim("errors of assigned centers grow from column to column",
                            lambda m: steps([error(m, n) for n in names], higher)))  # fmt: skip
        claims.append(Claim("local errors grow from column to column",
                            lambda m: steps([local(m, n) for n in names], higher)))  # fmt: skip
    return claims


def _positions(item: CentersItem, found: Sequence[Found], evidence: Evidence) -> Table:
    """Where centers lie between their two sources."""
    rows = []
    for block in found:
        key = (block.column.name, "position")
        pair = Pair(key, evidence.published[key], over(evidence.ours, key))
        inside = pair.within(0.0, len(evidence.compared))
        word = ("yes" if inside else "no") if key in evidence.compared else "not judged"
        ours = replace(pair.ours, runs=refs(block.runs)).cell(lambda value: f"{value:.3f}")
        theirs = Cell(f"{pair.published:.3f}", pair.published)
        rows.append((Cell(block.column.name), theirs, ours, Cell(word)))
    heads = (Column("block", numeric=False), Column("published"), Column("ours"), Column("in our range", numeric=False))
    note = (
        "a = √(e₀−1) / (√(e₀−1) + √(e₁−1)) from a center's errors on its source and on the other one, mean of both "
        "centers: 0 at the source, 0.5 for one pooled model, whatever the distance of the sources of a draw."
    )
    return Table(f"{item.id}-positions", "Where a center lies between the sources", heads, tuple(rows), (note,))


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
    item: CentersItem, found: Sequence[Found], case: Case, blocks: list[Block]
) -> list[str]:  # fmt: skip
    """The other reading of sigma_0, and which of both the published distance of the sources fits."""
    if not item.beside:
        return []
    others = [Found(column, case.library.over(column.spec(case.scale), case.seeds(item))) for column in item.beside]
    blocks.append(_table(
        f"{item.id}-squared", "Obtained when σ₀ is read as a standard deviation, as the paper's text has it", others,
        lambda b, j, i: obtained(b.centers()[j][i], b.metric, _best([o.mean for o in b.centers()[j]], i, b)),
        ("local", lambda b: obtained(b.local(), b.metric)),
    ))  # fmt: skip
    scales = [_distances(group) for group in (found, others)]
    sentence = (
        f"Squared distance of the sources, published: {_distances(found, theirs=True)}; ours with σ₀ as a variance: "
        f"{scales[0]}; as a standard deviation: {scales[1]}."
    )
    blocks.append(Text(sentence))
    return [sentence]


def _distances(found: Sequence[Found], *, theirs: bool = False) -> str:
    """The squared distances of the sources that the errors of centers imply, block by block."""
    values = []
    for block in found:
        assert block.column.printed is not None
        tables = (
            [np.array(mended(block.column.printed))] if theirs else [block.table(i) for i in range(len(block.runs))]
        )
        values.append(f"{np.mean([distance(table) for table in tables]):,.0f}")
    return ", ".join(values)
