"""Carry out what items of the paper need: in waves, because what is tuned depends on what was run before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedsoft.errors import unknown
from fedsoft.paper.item_kinds import Item, Scale, TheoryItem
from fedsoft.paper.items import ITEMS
from fedsoft.paper.library import Library
from fedsoft.paper.speed import core_seconds, expected_seconds, forecast
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.process_pool import ProcessPool
from fedsoft.theory.check import Check


@dataclass(frozen=True)
class Done:
    """How it ended: how many runs the items rest on, and the sentences about those that failed."""

    runs: int
    failures: dict[str, str]


def chosen(names: Sequence[str], library: Library | None = None) -> list[Item]:
    """The items of these names; all of them where there is none, but for those that run on request and have not."""

    def usual(item: Item) -> bool:
        return not item.on_request or (
            library is not None and any(library.has(e.spec.with_seed(0)) for e in item.forecast("paper", range(1)))
        )

    for name in names:
        if name not in ITEMS:
            raise unknown("item of the paper", name, ITEMS)
    return [item for item in ITEMS.values() if item.id in names or (not names and usual(item))]


def seeds_of(item: Item, scale: Scale, count: int | None) -> range:
    """Seeds 0, 1, ...: `count` of them (default: as many as the item takes at this scale)."""
    return range(count if count is not None else item.seeds[scale])


def carry_out(
    items: Sequence[Item], scale: Scale, count: int | None, pool: ProcessPool
) -> Done | None:  # fmt: skip
    """Run all that is not saved already; None when stopped, and what is done is saved."""
    library = Library(pool.out)
    library.forget_failures()

    def expected(spec: RunSpec) -> float:
        known = expected_seconds(spec, library)
        return 0.0 if math.isnan(known) else known  # it will say itself what it lacks

    while True:
        wanted = {s.id: s for item in items for s in item.wanted(scale, seeds_of(item, scale, count), library)}
        missing = [spec for spec in wanted.values() if not library.ended(spec)]
        if not missing:
            break
        more, later = _later(items, scale, count, library, list(wanted.values()))
        # So that all processes end together.
        longest_first = sorted(missing, key=expected, reverse=True)
        outcomes = pool.run(longest_first, more=more, later=later, expected=expected)
        if outcomes is None:
            return None
        library.add_failures({o.spec.id: str(o.ending) for o in outcomes if o.folder is None})
    if any(isinstance(item, TheoryItem) for item in items):
        checks(library)
    return Done(len(wanted), library.failures)


def _later(
    items: Sequence[Item], scale: Scale, count: int | None, library: Library, wanted: Sequence[RunSpec]
) -> tuple[int, float]:
    """Runs that are not known yet, and about how long they take on one core: what is forecast less what is known."""
    expected = forecast(items, scale, lambda item: seeds_of(item, scale, count))
    left = core_seconds(expected, library) - sum(expected_seconds(spec, library) for spec in wanted)
    more = sum(e.count for e in expected) - len(wanted)
    return max(0, more), 0.0 if math.isnan(left) else max(0.0, left)


def checks(library: Library) -> list[Check]:
    """Check all statements of the paper, once."""
    from fedsoft.theory import run_checks

    found = library.note("theory", "seed-0", lambda: [check.to_dict() for check in run_checks(seed=0)])
    return [*map(Check.from_dict, found)]
