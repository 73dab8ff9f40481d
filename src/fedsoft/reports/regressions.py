"""What falls behind the first method of a comparison or is ahead of it, in words: nobody should have to find it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from fedsoft.reports.measures import Measured
from fedsoft.reports.run_loader import Group
from fedsoft.training.settled import settled

LEVEL = 0.95  # of intervals


def behind(rows: Sequence[Measured], sources: Sequence[str], higher: bool) -> list[str]:
    """Return a sentence for each method that is worse than the first by more than chance over seeds.

    It is worse on something where Student's 95 % interval of its differences to the first, seed by seed, lies on one
    side of 0 (see `is_clear`); with a single seed, where it is worse at all, which is said.

    Arguments:
        rows: the methods, the first one first.
        sources: their names, for the best center of each.
        higher: whether larger values are better.
    """
    return _told(rows, sources, higher, "worse", 1)


def ahead(rows: Sequence[Measured], sources: Sequence[str], higher: bool) -> list[str]:
    """Return a sentence for each method that is better than the first by more than chance; see `behind`."""
    return _told(rows, sources, higher, "better", -1)


def _told(rows: Sequence[Measured], sources: Sequence[str], higher: bool, word: str, sign: int) -> list[str]:
    first, *others = rows
    found = []
    for row in others:
        seeds = [seed for seed in row.seeds if seed in first.seeds]  # those of runs that diverged are missing
        losses = _losses(row, first, seeds, sources, higher)
        where = [what for what, gaps in losses if is_clear([sign * gap for gap in gaps])]
        if where:
            spread = "by more than chance over seeds" if len(seeds) > 1 else "with the only seed"
            found.append(f"{row.algorithm} is {word} than {first.algorithm}, {spread}: {', '.join(where)}")
    return found


def _losses(
    row: Measured, first: Measured, seeds: Sequence[int], sources: Sequence[str], higher: bool
) -> list[tuple[str, list[float]]]:
    """Return what is compared, and by how much it is worse with each seed."""

    def gaps(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float]:
        pairs = [(ours[row.seeds.index(seed)], theirs[first.seeds.index(seed)]) for seed in seeds]
        return [(b - a if higher else a - b) for a, b in pairs if a is not None and b is not None]

    personal = ("personal models on held-out points", gaps(row.personal_held_out, first.personal_held_out))
    if not (row.best_center and first.best_center):
        return [personal]
    centers = [(f"best center of {name}", gaps(row.best_on(j), first.best_on(j))) for j, name in enumerate(sources)]
    return [*centers, personal]


def is_clear(gains: Sequence[float]) -> bool:
    """Whether a gain is above 0 by more than chance: its mean over seeds is more than Student's t of standard errors.

    With one seed nothing is known of chance: then whether it is above 0 at all. Two seeds must agree to 13 %.
    """
    if len(gains) < 2:
        return bool(gains) and gains[0] > 0
    from scipy.special import stdtrit

    error = statistics.stdev(gains) / math.sqrt(len(gains))
    return statistics.mean(gains) > float(stdtrit(len(gains) - 1, (1 + LEVEL) / 2)) * error


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
