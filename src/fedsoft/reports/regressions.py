"""What is worse or better than the first method of a comparison, in words: nobody should have to find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedsoft.evaluation.seed_tests import FEWEST, SeedDifference, corrected, difference
from fedsoft.reports.cells import Values
from fedsoft.reports.measures import Measured
from fedsoft.reports.numbers import several
from fedsoft.reports.run_loader import Group
from fedsoft.training.settled import settled

CENTERS, PERSONAL = "best centers", "personal models on held-out points"


@dataclass(frozen=True)
class ToFirst:
    """How a method differs from the first one, over the seeds that both have; above 0 it is better.

    Arguments:
        method: by its label.
        measure: what is compared.
        difference: in the metric; tested: the same divided by each seed's scale, where draws have one, corrected for
            all differences of the comparison.
    """

    method: str
    measure: str
    difference: SeedDifference
    tested: SeedDifference


Seeded = Mapping[str, Mapping[str, Mapping[int, float]]]  # method, measure, seed


def to_first(rows: Sequence[Measured], higher: bool, scale: Mapping[int, float] | None = None) -> list[ToFirst]:
    """Return how all other methods differ from the first one, by centers and by personal models; see `compared`."""
    return compared(
        {
            row.algorithm: {
                CENTERS: by_seed(row.seeds, row.best_on(None)),
                PERSONAL: by_seed(row.seeds, row.personal_held_out),
            }
            for row in rows
        },
        higher,
        scale,
    )


def compared(values: Seeded, higher: bool, scale: Mapping[int, float] | None = None) -> list[ToFirst]:
    """Return how all other methods differ from the first one, tested with one correction for all.

    Arguments:
        values: of each method, the first one first, by measure and seed.
        higher: whether larger values are better.
        scale: what differences are divided by, seed by seed, before they are tested: draws differ in how hard they are.
    """
    (_, first), *others = values.items()
    found: list[tuple[str, str, SeedDifference, SeedDifference]] = []
    for method, own in others:
        for measure in own:
            pair = own[measure], first.get(measure, {})
            plain = difference(*pair, higher_is_better=higher)
            scaled = difference(*pair, higher_is_better=higher, scale=scale)
            if plain is not None and scaled is not None:
                found.append((method, measure, plain, scaled))
    tested = corrected([scaled for *_, scaled in found])
    return [
        ToFirst(method, measure, replace(plain, test=one.test, p=one.p, corrected=one.corrected), one)
        for (method, measure, plain, _), one in zip(found, tested, strict=True)
        if one is not None
    ]


def by_seed(seeds: Sequence[int], values: Values) -> dict[int, float]:
    """Return the values that are there, by seed."""
    return {seed: value for seed, value in zip(seeds, values, strict=True) if value is not None}


def scale_of(groups: Sequence[Group]) -> dict[int, float] | None:
    """Return the mean squared distance of the sources by seed, where errors are squared and it is known for all."""
    if groups[0].first.scores.metric != "mse":
        return None
    found = {run.spec.seed: run.scores.distance for group in groups for run in group.runs}
    known = {seed: distance for seed, distance in found.items() if distance}
    return known if len(known) == len(found) else None


def behind(found: Sequence[ToFirst], first: str) -> list[str]:
    """Return a sentence for each method that is worse than the first by more than chance over seeds."""
    return _told(found, first, "worse")


def ahead(found: Sequence[ToFirst], first: str) -> list[str]:
    """Return a sentence for each method that is better than the first by more than chance over seeds."""
    return _told(found, first, "better")


def _told(found: Sequence[ToFirst], first: str, word: str) -> list[str]:
    sentences = []
    for method in dict.fromkeys(one.method for one in found):
        clear = [
            one for one in found
            if one.method == method and (one.tested.is_worse if word == "worse" else one.tested.is_better)
        ]  # fmt: skip
        if clear:
            what = ", ".join(f"{one.measure} (p = {one.tested.corrected:.2g})" for one in clear)
            sentences.append(f"{method} is {word} than {first} over {clear[0].tested.seeds} seeds: {what}")
    return sentences


def how_tested(found: Sequence[ToFirst]) -> str:
    """Say how differences were tested, or that there are too few seeds; nothing where nothing is compared."""
    if not found:
        return ""
    tested = [one.tested for one in found if one.tested.test != "none"]
    if not tested:
        seeds = several(max(one.tested.seeds for one in found), "seed")
        return f"{seeds}: too few to call a method better or worse; {FEWEST} are the least, 20 are good (--seeds 0..19)"
    tests = " and ".join(dict.fromkeys(one.test for one in tested))
    return f"differences seed by seed are tested by {tests}, with Holm's correction for all {len(tested)} of them"


def unsettled(groups: Sequence[Group], *, higher: bool) -> dict[str, list[int]]:
    """Return the seeds of each method whose runs had not come to rest when they ended."""
    return {
        group.label: [run.spec.seed for run in group.runs if settled(run.records, higher) is False] for group in groups
    }


def restless(seeds: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a sentence about the methods with such runs, if there are any."""
    found = [label for label, some in seeds.items() if some]
    if not found:
        return []
    were = "was still improving when its runs" if len(found) == 1 else "were still improving when their runs"
    return [f"{', '.join(found)} {were} ended: compare with more rounds (marked ~)"]
