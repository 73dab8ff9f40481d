"""Numbers of the paper and ours as cells, and what all sections share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedsoft.paper.item_kinds import Item, Scale
from fedsoft.paper.library import Library
from fedsoft.paper.verdicts import DRAWS, Judged, Pair, Ruling, Support
from fedsoft.reports.cells import Over
from fedsoft.reports.numbers import factor
from fedsoft.reports.page import Block, Cell, Column, RunRef, Section, Table, Text, Verdict
from fedsoft.reports.run_loader import Finished

SHORT = (
    "stated in the summary: published values within our range, claimed orderings over seeds, and how often results in "
    "which nothing is true would pass."
)
MARKS = {True: "yes", False: "no", None: "-"}
SUPPORT: dict[Support, str] = {"yes": "yes", "no": "the other way round", "unsure": "not significant"}


@dataclass(frozen=True)
class Case:
    """What a section is made for."""

    scale: Scale
    seeds: Callable[[Item], range]
    library: Library

    def command(self, item: Item) -> str:
        """What makes the runs of an item."""
        return f"fedsoft paper run {item.id} --scale {self.scale} --seeds {len(self.seeds(item))}"


@dataclass(frozen=True)
class ItemReport:
    """A section, what the rules say, and further sentences for the summary."""

    section: Section
    ruling: Ruling | None = None
    findings: tuple[str, ...] = ()


def incomplete(item: Item, case: Case, missing: int) -> ItemReport:
    """An item that cannot be shown yet."""
    failed = [name for name in case.library.failures if name.startswith(item.data)]
    text = f"Not complete: {missing} runs are missing. Make them with: {case.command(item)}."
    if failed:
        text += f" Of these data {len(failed)} runs failed; the first: {case.library.failures[failed[0]]}."
    return ItemReport(Section(item.id, item.title, (Text(text),)), None, (f"{item.title}: not run.",))


def scale_words(item: Item, case: Case, run: Finished) -> str:
    """How large the runs of an item are, in words."""
    spec, data = run.spec, run.spec.dataset.settings
    local = spec.solver.settings
    low, high = data["points"]
    size = f", images of {data['size']} x {data['size']} pixels" if data.get("size") else ""
    network = "".join(f", {key} {value}" for key, value in spec.model.settings.items() if key in ("channels", "hidden"))
    head = "The paper's scale" if item.as_published(case.scale) else "FAST SCALE, not the paper's"
    return (
        f"{head}: {data['clients']} clients with {low} to {high} points each{size}, model {spec.model.name}{network}, "
        f"{spec.rounds} rounds, {spec.solver.name} {local['lr']:g}, batch {local['batch']}, {local['epochs']} local "
        f"epochs, {len(case.seeds(item))} seed{'s' * (len(case.seeds(item)) > 1)}. Made by: {case.command(item)}."
    )


# --- numbers ----------------------------------------------------------------------------------------------------------


def in_print(value: float, metric: str) -> float:
    """Return a value in the unit of the paper: accuracies in percent."""
    return factor(metric) * value


def digits(value: float, metric: str) -> int:
    """Digits behind the point: the paper has one; errors below ten get two, small ones three."""
    return 1 if metric == "accuracy" or abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3


def printed(value: float | None, metric: str, best: bool = False) -> Cell:
    return Cell("-") if value is None else Cell(f"{value:,.{digits(value, metric)}f}", value, best=best)


def obtained(over: Over | None, metric: str, best: bool = False) -> Cell:
    """Show ours: mean ± standard deviation over seeds."""
    if over is None or not over.values:
        return Cell("-")
    return over.cell(lambda value: f"{value:,.{digits(over.mean, metric)}f}", best=best)


def difference(pair: Pair | None, metric: str, tolerance: float) -> Cell:
    """Ours less the published value, and whether it is beyond what the rule allows."""
    if pair is None:
        return Cell("-")
    gap = pair.ours.mean - pair.published
    text = f"{gap:+,.{digits(gap, metric)}f}"
    return Cell(
        text if math.isinf(tolerance) or pair.within(tolerance) else f"{text} (outside)", gap, runs=pair.ours.runs
    )


def refs(runs: Sequence[Finished]) -> tuple[RunRef, ...]:
    """Where numbers of these runs come from."""
    return tuple(run.ref for run in runs)


# --- blocks -----------------------------------------------------------------------------------------------------------


def claims_table(name: str, claims: Sequence[Judged]) -> Table:
    """What the paper claims, and where it holds."""
    rows = tuple(
        (Cell(c.text), Cell(MARKS[c.published]), Cell(SUPPORT[c.ours]),
         Cell("-") if c.chance is None else Cell(f"{c.chance:.1%}", c.chance), Cell(MARKS[c.shown]))
        for c in claims
    )  # fmt: skip
    heads = (
        Column("claim", numeric=False, wrap=True),
        Column("published values", False),
        Column("over our seeds", False),
        Column("in the worst null"),
        Column("shown", False),
    )
    notes = (
        "In the worst null: how often it holds where nothing is true. Shown: it holds over our seeds, and in at most "
        "5 % of the draws of each null.",
    )
    return Table(f"{name}-claims", "What the paper claims, and whether it holds", heads, rows, notes)


def chance_table(name: str, ruling: Ruling) -> Table:
    """How often results in which nothing is true would pass the rule."""
    rows = tuple((Cell(null), Cell(f"{rate:.1%}", rate)) for null, rate in ruling.chance.items())
    heads = (Column("null", numeric=False), Column("passes the rule"))
    caption = f"False positives: of {DRAWS} draws of each null"
    return Table(f"{name}-chance", caption, heads, rows)


def verdict(ruling: Ruling, runs: tuple[RunRef, ...]) -> Verdict:
    """The sentence that was computed, with its rule."""
    return Verdict(ruling.sentence, SHORT, ruling.word != "contradicted", runs)


def section(item: Item, blocks: Sequence[Block]) -> Section:
    return Section(item.id, item.title, tuple(blocks))
