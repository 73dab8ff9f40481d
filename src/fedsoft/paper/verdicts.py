"""When a table counts as reproduced. The rules are stated here, and computed; nothing is judged by eye."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedsoft.reports.cells import Over

Key = tuple[str | int, ...]
Values = Mapping[Key, float]
Word = Literal["reproduced", "same ordering", "not reproduced"]

DEVIATIONS = 2.0
POINTS = 3.0  # percentage points within which accuracies count as equal, however small their standard deviation is
SEEDS = 3  # with fewer, a standard deviation says nothing

RULE = (
    f"Reproduced: the settings are the paper's, every published value lies within our mean ± {DEVIATIONS:g} standard "
    f"deviations over at least {SEEDS} seeds (accuracies: or within {POINTS:g} percentage points), and every ordering "
    "that the paper claims and its own values show holds in our means. Same ordering: those orderings all hold. Not "
    "reproduced: one of them does not. With fewer clients, rounds or pixels than the paper's a table can earn 'same "
    "ordering' at most."
)


@dataclass(frozen=True)
class Pair:
    """A published value and ours."""

    key: Key
    published: float
    ours: Over

    def within(self, tolerance: float) -> bool:
        """Whether the published value is one that we might have found."""
        deviation = (self.ours.std or 0.0) if len(self.ours.values) >= SEEDS else 0.0
        return abs(self.published - self.ours.mean) <= max(DEVIATIONS * deviation, tolerance)


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper states, as a test of a table's values."""

    text: str
    test: Callable[[Values], bool]


@dataclass(frozen=True)
class Judged:
    """A claim, and whether it holds in the published values and in our means; None where nothing is published."""

    text: str
    published: bool | None
    ours: bool


@dataclass(frozen=True)
class Ruling:
    """What the rules say about one item."""

    word: Word
    sentence: str
    claims: tuple[Judged, ...]
    within: int
    pairs: int


def rule(
    title: str, pairs: Sequence[Pair], claims: Sequence[Claim], *, as_published: bool, tolerance: float = 0.0
) -> Ruling:
    """Judge an item. `as_published`: whether the settings are the paper's."""
    published = {pair.key: pair.published for pair in pairs}
    ours = {pair.key: pair.ours.mean for pair in pairs}
    judged = tuple(Judged(claim.text, claim.test(published), claim.test(ours)) for claim in claims)
    counted = [claim for claim in judged if claim.published]
    failed = [claim.text for claim in counted if not claim.ours]
    inside = sum(pair.within(tolerance) for pair in pairs)
    word: Word = "not reproduced" if failed else "same ordering"
    if not failed and as_published and inside == len(pairs):
        word = "reproduced"
    parts = [f"{inside} of {len(pairs)} published values lie within our range"] if as_published else []
    parts.append(f"{len(counted) - len(failed)} of {len(counted)} claimed orderings hold")
    sentence = f"{title}: {word}; {', '.join(parts)}."
    if failed:
        sentence += f" Does not hold: {'; '.join(failed)}."
    return Ruling(word, sentence, judged, inside, len(pairs))


def better(a: float, b: float, higher: bool) -> bool:
    """Whether a is at least as good as b. Ties count: the paper prints one digit."""
    return a >= b if higher else a <= b


def in_order(values: Sequence[float], higher: bool) -> bool:
    """Whether values come from best to worst."""
    return all(better(a, b, higher) for a, b in itertools.pairwise(values))
