"""Simulated dropouts: clients that do not answer, drawn by name, so that they are the same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from fedsoft.core.client_draws import Draws
from fedsoft.errors import InputError

Dropouts = Callable[[str, int, list[str]], np.ndarray]
"""Maps (job, round, names of the clients) to a mask of those that do not answer."""


def schedule(dropout: float | Dropouts, seed: int) -> Dropouts | None:
    """Return which clients do not answer; None if all do."""
    return dropout if callable(dropout) else at_random(dropout, seed)


def at_random(probability: float, seed: int) -> Dropouts | None:
    """Drop every client with this probability, drawn once for each kind of job in a round."""
    check_share("dropout", probability)
    if probability == 0:
        return None
    return lambda job, t, names: Draws(seed, "dropout", job, t, names=names).random() < probability


def stragglers(share: float, late: float = 1.0, seed: int = 0) -> Dropouts:
    """Make a share of the clients slow, always the same: with probability `late` a slow one misses the deadline."""
    check_share("share", share)
    check_share("late", late)

    def are_late(job: str, t: int, names: Sequence[str]) -> np.ndarray:
        slow = Draws(seed, "slow", names=names).random() < share
        return slow & (Draws(seed, "late", job, t, names=names).random() < late)

    return are_late


def never(clients: Collection[str]) -> Dropouts:
    """Drop these clients always."""
    silent = frozenset(clients)
    return lambda job, t, names: np.array([name in silent for name in names], dtype=bool)


def spans(times: Mapping[str, tuple[int, int | None]]) -> Dropouts:
    """Let clients join and leave: each answers from its first round until before its last, or to the end for None.

    Clients without an entry always answer. Those that join later start from the initial weights of the run.
    """
    for name, (begin, end) in times.items():
        if begin < 0 or (end is not None and end < begin):
            raise InputError(f"spans['{name}'] = ({begin}, {end}) is not allowed: should be 0 <= first <= last")

    def is_away(t: int, name: str) -> bool:
        begin, end = times.get(name, (0, None))
        return t < begin or (end is not None and t >= end)

    return lambda job, t, names: np.array([is_away(t, name) for name in names], dtype=bool)


def together(*kinds: Dropouts) -> Dropouts:
    """Drop clients that any of these schedules drops."""
    return lambda job, t, names: np.any([kind(job, t, names) for kind in kinds], axis=0)


def check_share(key: str, value: float) -> None:
    """Raise unless the value is from 0 to 1."""
    if not 0 <= value <= 1:
        raise InputError(f"{key} = {value} is not allowed: should be from 0 to 1")
