"""What falls behind the first method of a comparison or is ahead of it, in words: nobody should have to find it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedsoft.reports.measures import Measured


def behind(rows: Sequence[Measured], sources: Sequence[str], higher: bool) -> list[str]:
    """Return a sentence for each method that is worse than the first by more than the spread over seeds.

    It is worse on something where the mean of its differences to the first, seed by seed, is larger than their standard
    deviation; with a single seed, where it is worse at all.

    Arguments:
        rows: the methods, the first one first.
        sources: their names, for the best center of each.
        higher: whether larger values are better.
    """
    return _told(rows, sources, higher, "worse", 1)


def ahead(rows: Sequence[Measured], sources: Sequence[str], higher: bool) -> list[str]:
    """Return a sentence for each method that is better than the first by more than the spread; see `behind`."""
    return _told(rows, sources, higher, "better", -1)


def _told(rows: Sequence[Measured], sources: Sequence[str], higher: bool, word: str, sign: int) -> list[str]:
    first, *others = rows
    found = []
    for row in others:
        seeds = [seed for seed in row.seeds if seed in first.seeds]  # those of runs that diverged are missing
        losses = _losses(row, first, seeds, sources, higher)
        where = [what for what, gaps in losses if _matters([sign * gap for gap in gaps])]
        if where:
            spread = "by more than the spread over seeds" if len(seeds) > 1 else "with the only seed"
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


def _matters(losses: Sequence[float]) -> bool:
    return bool(losses) and statistics.mean(losses) > (statistics.stdev(losses) if len(losses) > 1 else 0.0)
