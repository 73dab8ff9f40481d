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
        where = [name for name, ours, theirs in _pairs(row, first, sources) if _worse(ours, theirs, higher)]
        if where:
            seeds = len(row["seeds"])
            spread = "more than the spread over seeds" if seeds > 1 else "with the only seed"
            found.append(f"{row['algorithm']} is worse than {first['algorithm']} ({spread}) by: {', '.join(where)}")
    return found


def _pairs(
    row: Mapping[str, Any], first: Mapping[str, Any], sources: Sequence[str]
) -> list[tuple[str, list[float | None], list[float | None]]]:
    """What is compared: its name, and the values of both, seed by seed."""
    found = [("personal models on held-out points", row["personal_held_out"], first["personal_held_out"])]
    if row["best_center"] and first["best_center"]:
        centers = [
            (f"best center of {name}", [best[j] for best in row["best_center"]], [b[j] for b in first["best_center"]])
            for j, name in enumerate(sources)
        ]
        found = centers + found
    return found


def _worse(ours: Sequence[float | None], theirs: Sequence[float | None], higher: bool) -> bool:
    gaps = [a - b for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    losses = [-gap if higher else gap for gap in gaps]
    return bool(losses) and statistics.mean(losses) > (statistics.stdev(losses) if len(losses) > 1 else 0.0)
