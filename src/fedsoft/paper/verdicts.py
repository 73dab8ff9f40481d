"""When an item of the paper counts as reproduced: a rule that is computed, and how often it would say so by chance.

A claim is tested over seeds, and the whole rule is applied to results in which nothing is true (`paper.nulls`): the
share of those that it would call reproduced stands beside every verdict. A rule that cannot fail proves nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import numpy as np

from fedsoft.reports.cells import Over
from fedsoft.seeds import generator

Key = tuple[str | int, ...]
Measures = Mapping[Key, float]
"""What is compared of one seed, or of the published values: everything that claims and ranges speak of."""
Null = Callable[[np.random.Generator], Sequence[Measures]]
"""Draws the results of all seeds in a world in which the claims are not true."""

Word = Literal[
    "reproduced", "contradicted", "consistent but weak", "not tested at the paper's scale", "not attempted"
]  # fmt: skip
WORDS: tuple[Word, ...] = (
    "reproduced", "contradicted", "consistent but weak", "not tested at the paper's scale", "not attempted"
)  # fmt: skip
Support = Literal["yes", "no", "unsure"]

LEVEL = 0.05
POINTS = 3.0  # percentage points within which accuracies count as equal, however small their standard deviation is
SEEDS = 3  # with fewer, a standard deviation says nothing
DRAWS = 200  # of each null

RULE = (
    "Reproduced: the settings are the paper's; every published value lies within the range in which one more run of "
    f"ours would (95 %, Bonferroni over the values, at least {SEEDS} seeds; accuracies: or within {POINTS:g} "
    "percentage points); every ordering that the paper claims and its own values show holds over our seeds (t-test, "
    f"5 % two-sided, for each of its parts); and of {DRAWS} sets of results in which nothing is true, drawn from each "
    "null, at most 5 % pass the same rule. Contradicted: a published value lies outside, or an ordering is "
    "significantly the other way round (Bonferroni over its parts). Consistent but weak: neither. An ordering counts "
    "as shown only if it holds in at most 5 % of the draws of each null. Values are compared "
    "free of the draw's scale: errors of two sources as the position of a center between them, those of more sources "
    "relative to the mean of their row. What is tested on a source has no part in choosing its center, which is the "
    "one that is left when the other sources have chosen theirs."
)
NULLS = (
    "The nulls are made of our own runs: one pooled model (all centers are copies of one, told apart by the sampling "
    "error of the test sets), jittered copies of it (each moved in a direction of its own, by lengths from small to "
    "large), exchanged labels (test points are given to sources at random), noise (numbers of the "
    "table's own mean and spread), exchanged columns or methods (they change places within each seed). Jittered copies "
    "are the hardest: of two that differ at all, one is nearer to each source, so a center of its own for each source "
    "is no evidence. Where centers lie is, and which partitions and methods come first."
)


@dataclass(frozen=True)
class Pair:
    """A published value and ours."""

    key: Key
    published: float
    ours: Over

    def within(self, tolerance: float, tests: int = 1) -> bool:
        """Whether the published value is one that one more run might have found, or near enough."""
        count = len(self.ours.values)
        spread = 0.0
        if count >= SEEDS:
            spread = student(1 - LEVEL / (2 * tests), count - 1) * (self.ours.std or 0.0) * math.sqrt(1 + 1 / count)
        return abs(self.published - self.ours.mean) <= max(spread, tolerance)


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper states: by how much each of its parts holds, below 0 where it does not."""

    text: str
    margins: Callable[[Measures], Sequence[float]]


@dataclass(frozen=True)
class Judged:
    """A claim, whether it holds in the published values (None: there are none), and over our seeds.

    `chance`: how often it holds where nothing is true, in the null in which it does most often; None where not drawn.
    """

    text: str
    published: bool | None
    ours: Support
    chance: float | None = None

    @property
    def shown(self) -> bool:
        """Whether it holds over our seeds, and would not where nothing is true."""
        return self.ours == "yes" and (self.chance is None or self.chance <= LEVEL)


@dataclass(frozen=True)
class Ruling:
    """What the rule says about one item.

    Arguments:
        within, pairs: how many published values lie in our range, of how many.
        chance: for each null the share of its draws that pass the rule.
    """

    word: Word
    sentence: str
    claims: tuple[Judged, ...] = ()
    within: int = 0
    pairs: int = 0
    chance: Mapping[str, float] = field(default_factory=dict)

    @property
    def worst_chance(self) -> float | None:
        return max(self.chance.values(), default=None)


@dataclass(frozen=True)
class Evidence:
    """What an item rests on.

    Arguments:
        published: the paper's own values.
        ours: of each seed.
        compared: the keys whose published values should lie in our range.
        claims: orderings.
        nulls: worlds in which nothing of it is true, by name.
        tolerance: within which values count as equal.
    """

    published: Measures
    ours: Sequence[Measures]
    compared: Sequence[Key]
    claims: Sequence[Claim]
    nulls: Mapping[str, Null]
    tolerance: float = 0.0

    @property
    def pairs(self) -> list[Pair]:
        return [Pair(key, self.published[key], over(self.ours, key)) for key in self.compared]


def over(ours: Sequence[Measures], key: Key) -> Over:
    """Return a value over seeds."""
    return Over(tuple(one[key] for one in ours))


def rule(title: str, evidence: Evidence, *, as_published: bool, seed: int = 0) -> Ruling:
    """Judge an item. `as_published`: whether the settings are the paper's."""
    word, judged, inside = decide(evidence)
    tried = {name: passing(evidence, null, generator(seed, "null", name)) for name, null in evidence.nulls.items()}
    judged = tuple(
        replace(claim, chance=max((one.claims[i] for one in tried.values()), default=None))
        for i, claim in enumerate(judged)
    )
    chance = {name: one.rule for name, one in tried.items()} if as_published else {}
    by_chance = [f"{rate:.0%} of {name}" for name, rate in chance.items() if rate > LEVEL]
    if not as_published:
        word = "not tested at the paper's scale"
    elif word == "reproduced" and by_chance:
        word = "consistent but weak"
    counted = [claim for claim in judged if claim.published is not False]
    count = len(evidence.compared)
    parts = [f"{inside} of {count} published values lie within our range"] if as_published and count else []
    parts.append(f"{sum(c.shown for c in counted)} of {len(counted)} claimed orderings hold beyond chance")
    sentence = f"{title}: {word}; {', '.join(parts)}."
    if against := [claim.text for claim in counted if claim.ours == "no"]:
        sentence += f" The other way round: {'; '.join(against)}."
    if by_chance:
        sentence += f" By chance the rule passes {', '.join(by_chance)}."
    return Ruling(word, sentence, judged, inside, count, chance)


def decide(evidence: Evidence) -> tuple[Word, tuple[Judged, ...], int]:
    """Apply the rule to results, whatever their settings and whatever else would pass it."""
    judged = tuple(
        Judged(one.text, min(one.margins(evidence.published), default=0.0) >= 0, support(one, evidence.ours))
        for one in evidence.claims
    )
    pairs = evidence.pairs
    inside = sum(pair.within(evidence.tolerance, len(pairs)) for pair in pairs)
    counted = [claim.ours for claim in judged if claim.published]
    known = len(evidence.ours) >= SEEDS or evidence.tolerance > 0
    if "no" in counted or (known and inside < len(pairs)):
        return "contradicted", judged, inside
    sure = all(found == "yes" for found in counted) and (counted or pairs)
    return "reproduced" if sure and inside == len(pairs) else "consistent but weak", judged, inside


def support(claim: Claim, ours: Sequence[Measures]) -> Support:
    """Test a claim over seeds: `yes` if every part of it is significant, `no` if one is the other way round."""
    margins = np.array([[*claim.margins(one)] for one in ours], dtype=float)
    count, parts = margins.shape
    if count < 2 or not parts:
        return "unsure"
    mean, error = margins.mean(0), margins.std(0, ddof=1) / math.sqrt(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, mean / error, np.sign(mean) * np.inf)
    t = np.nan_to_num(t, nan=0.0, posinf=np.inf, neginf=-np.inf)
    if (t >= student(1 - LEVEL / 2, count - 1)).all():
        return "yes"
    return "no" if (t <= -student(1 - LEVEL / (2 * parts), count - 1)).any() else "unsure"


@dataclass(frozen=True)
class Passing:
    """How often results in which nothing is true pass the rule, and each of its claims."""

    rule: float
    claims: tuple[float, ...]


def passing(evidence: Evidence, null: Null, rng: np.random.Generator, draws: int = DRAWS) -> Passing:
    """Return the share of a null's draws that the rule calls reproduced, and for each claim that in which it holds."""
    found, held = 0, np.zeros(len(evidence.claims))
    for _ in range(draws):
        drawn = Evidence(
            evidence.published, null(rng), evidence.compared, evidence.claims, {}, evidence.tolerance
        )  # fmt: skip
        word, judged, _ = decide(drawn)
        found += word == "reproduced"
        held += [claim.ours == "yes" for claim in judged]
    return Passing(found / draws, tuple((held / draws).tolist()))


@cache
def student(level: float, freedom: int) -> float:
    """Return a quantile of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, level))


def gap(a: float, b: float, higher: bool | None) -> float:
    """Return by how much a is better than b: accuracies in points, errors (`higher` False) relative to their mean."""
    if higher:
        return a - b
    return (b - a) / ((abs(a) + abs(b)) / 2) if a or b else 0.0


def steps(values: Sequence[float], higher: bool) -> list[float]:
    """Return by how much each value is better than the next."""
    return [gap(a, b, higher) for a, b in itertools.pairwise(values)]
