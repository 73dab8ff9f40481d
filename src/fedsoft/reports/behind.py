"""What falls behind the first method of a comparison, in words: nobody should have to find it in a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def behind(rows: Sequence[Mapping[str, Any]], sources: Sequence[str], higher: bool) -> list[str]:
    """One sentence for each method that is worse than the first by more than the spread over seeds.

    It is worse on something where the mean of its differences to the first, seed by seed, is larger than their standard
    deviation; with a single seed, where it is worse at all.

    Arguments:
        rows: as `comparison.rows` gives them, the first method first.
        sources: their names, for the best center of each.
        higher: whether larger values are better.
    """
    first, *others = rows
    found = []
    for row in others:
        seeds = [seed for seed in row["seeds"] if seed in first["seeds"]]  # those of runs that diverged are missing
        where = [what for what, losses in _losses(row, first, seeds, sources, higher) if _matters(losses)]
        if where:
            spread = "by more than the spread over seeds" if len(seeds) > 1 else "with the only seed"
            found.append(f"{row['algorithm']} is worse than {first['algorithm']}, {spread}: {', '.join(where)}")
    return found


def _losses(
    row: Mapping[str, Any], first: Mapping[str, Any], seeds: Sequence[int], sources: Sequence[str], higher: bool
) -> list[tuple[str, list[float]]]:
    """What is compared, and by how much it is worse with each seed."""

    def gaps(key: str, j: int | None = None) -> list[float]:
        found = []
        for seed in seeds:
            ours, theirs = (r[key][r["seeds"].index(seed)] for r in (row, first))
            if ours is not None and theirs is not None:
                gap = ours - theirs if j is None else ours[j] - theirs[j]
                found.append(-gap if higher else gap)
        return found

    compared = [("personal models on held-out points", gaps("personal_held_out"))]
    if row["best_center"] and first["best_center"]:
        compared = [(f"best center of {name}", gaps("best_center", j)) for j, name in enumerate(sources)] + compared
    return compared


def _matters(losses: Sequence[float]) -> bool:
    return bool(losses) and statistics.mean(losses) > (statistics.stdev(losses) if len(losses) > 1 else 0.0)
