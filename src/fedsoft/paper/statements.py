"""The paper's lemmas and theorems, and the role of tau: what the checks found."""

from __future__ import annotations

from collections.abc import Sequence

from fedsoft.paper.cells import Case, ItemReport, section
from fedsoft.paper.item_kinds import TheoryItem
from fedsoft.reports.page import Axis, Block, Cell, Column, Figure, Panel, Section, Series, Table, Text, Verdict
from fedsoft.theory.check import KINDS, Check, tally

RULE = (
    "Every statement is tested on strongly convex problems whose constants are known exactly, over drawn problems; one "
    "counterexample is enough for 'no'. 'Assumptions not met': no case was found in which they can be."
)


def report_on(item: TheoryItem, case: Case) -> ItemReport:
    """The section of a group of checks."""
    known = case.library.peek("theory", "seed-0")
    if known is None:
        text = f"Not run yet. Make it with: fedsoft paper run {item.id}."
        return ItemReport(Section(item.id, item.title, (Text(text),)), None, (f"{item.title}: not run.",))
    checks = [*map(Check.from_dict, known)]
    names = {check.name for check in checks} - {*item.apart}
    chosen = [check for check in checks if check.name in (item.checks or names)]
    sentence = f"{item.title}: {counted(chosen)}."
    blocks: list[Block] = [
        Text("Made by: fedsoft theory --seed 0 (all draws are named, so the numbers come out the same)."),
        Verdict(sentence, RULE, None),
        _table(item, chosen),
    ]
    blocks += [figure for check in chosen if item.checks and (figure := _figure(item, check)) is not None]
    return ItemReport(section(item, blocks), None, (sentence,))


def counted(checks: Sequence[Check]) -> str:
    """How many statements hold, each counted once, as they are written and once they are corrected."""
    words = {"as written": "as written", "corrected": "corrected", "step of a proof": "steps of proofs"}
    parts = []
    for kind in KINDS:
        found = tally(checks, kind)
        if any(found.values()):
            some = f", {found['assumptions not met']} rest on assumptions that cannot be met"
            parts.append(f"{words[kind]}: {found['yes']} hold, {found['no']} do not"
                         f"{some if found['assumptions not met'] else ''}")  # fmt: skip
    return "; ".join(parts)


def _table(item: TheoryItem, checks: list[Check]) -> Table:
    heads = ("check", "where", "kind", "statement", "holds", "measured", "bound", "what was found")
    rows = tuple(
        (Cell(check.name), Cell(check.reference), Cell(check.kind), Cell(check.statement), Cell(check.holds),
         Cell(check.measured), Cell(check.bound), Cell(check.finding))
        for check in checks
    )  # fmt: skip
    wide = ("statement", "measured", "bound", "what was found")
    return Table(f"{item.id}-checks", "What was checked, and what was found",
                 tuple(Column(head, numeric=False, wrap=head in wide) for head in heads), rows)  # fmt: skip


def _figure(item: TheoryItem, check: Check) -> Figure | None:
    """The curves of a check, where it has any."""
    series = tuple(
        Series(name, [x for x, _ in points], [y for _, y in points]) for name, points in check.series.items()
    )
    if not series:
        return None
    panel = Panel("", Axis("x"), Axis("value"), series)
    return Figure(f"{item.id}-{check.name}-curves", f"{check.reference}: {check.statement}",
                  check.measured, (panel,))  # fmt: skip
