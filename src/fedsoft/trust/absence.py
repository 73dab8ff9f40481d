"""Clients that do not answer, for studying it: who is absent is drawn by name, so it is the same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from fedsoft.errors import InputError
from fedsoft.seeds import generator

Absent = Callable[[str, int, list[str]], np.ndarray]
"""(job, round, names of the clients) to a mask of those that do not answer."""


def dropout(probability: float, seed: int) -> Absent | None:
    """Every client fails to answer a job with this probability, drawn once for each kind of job in a round."""
    _share("dropout", probability)
    if probability == 0:
        return None

    def absent(job: str, t: int, names: list[str]) -> np.ndarray:
        return np.array([generator(seed, "dropout", job, t, name).random() < probability for name in names])

    return absent


def stragglers(share: float, late: float = 1.0, seed: int = 0) -> Absent:
    """A share of the clients is slow, always the same ones: with the probability `late` their answer to a job comes
    after the time is over, and they are cut off."""
    _share("share", share)
    _share("late", late)

    def absent(job: str, t: int, names: list[str]) -> np.ndarray:
        slow = (generator(seed, "slow", name).random() < share for name in names)
        return np.array([
            one and generator(seed, "late", job, t, name).random() < late for one, name in zip(slow, names, strict=True)
        ], dtype=bool)  # fmt: skip

    return absent


def never(clients: Collection[str]) -> Absent:
    """These clients never answer."""
    silent = frozenset(clients)
    return lambda job, t, names: np.array([name in silent for name in names], dtype=bool)


def spans(times: Mapping[str, tuple[int, int | None]]) -> Absent:
    """Clients that join and leave: each is there from its first round to before its last one, or to the end for None.

    Clients without an entry are always there. Those that join later were enrolled before: they start from the first
    values of the run, as all others did.
    """
    for name, (begin, end) in times.items():
        if begin < 0 or (end is not None and end < begin):
            raise InputError(f"spans['{name}'] = ({begin}, {end}) is not allowed: should be 0 <= first <= last")

    def absent(job: str, t: int, names: list[str]) -> np.ndarray:
        known = [times.get(name, (0, None)) for name in names]
        return np.array([t < begin or (end is not None and t >= end) for begin, end in known], dtype=bool)

    return absent


def together(*kinds: Absent | None) -> Absent | None:
    """Whoever is absent by any of them."""
    found = [kind for kind in kinds if kind is not None]
    if len(found) < 2:
        return found[0] if found else None
    return lambda job, t, names: np.any([kind(job, t, names) for kind in found], axis=0)


def _share(key: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{key} = {value} is not allowed: should be from 0 to 1")
