"""Which of a client's points are held out: a share at random, the last ones, whole groups, or given ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsoft.core.client_draws import Draws
from fedsoft.errors import InputError, unknown
from fedsoft.seeds import generator
from fedsoft.settings import settings

KINDS = ("column", "time", "group", "test")


@settings
class Split:
    """How held-out points are chosen, where not at random: by a column, or given as points of their own.

    For tables a column is given by its name, for arrays as one array of values per client.

    Arguments:
        column: its value tells whether a point is held out: those in `test` are.
        test: values of `column`; without it the held-out points themselves: a file or folder, or (x, y) per client.
        time: the last points of each client by this column are held out, as many as `held_out` says.
        group: points with the same value stay on one side, over all clients.
    """

    column: Any = None
    test: Any = None
    time: Any = None
    group: Any = None

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if given not in (["column", "test"], ["time"], ["group"], ["test"]):
            some = " and ".join(given) or "nothing"
            raise InputError(f"split has {some}, should have column and test, or one of time, group and test")

    @property
    def kind(self) -> str:
        """How points are chosen: by `column`, `time` or `group`, or given as `test`."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def by(self) -> Any:
        """The column: its name, or an array of values for each client."""
        return getattr(self, self.kind)

    def masks(self, names: Sequence[str], values: Sequence[np.ndarray], share: float, seed: int) -> list[np.ndarray]:
        """Return for each client which of its points are held out, from each point's value of the column."""
        if self.kind == "group":
            return _by_group(names, [_texts(own) for own in values], share, seed)
        if self.kind == "time":
            return [_last(_times(name, own), share) for name, own in zip(names, values, strict=True)]
        wanted, texts = _texts(np.atleast_1d(np.asarray(self.test))), [_texts(own) for own in values]
        known = np.unique(np.concatenate(texts)).tolist()
        for value in wanted.tolist():
            if value not in known:
                raise InputError(f"split.test: {unknown('value of the column', value, known)}")
        return [np.isin(own, wanted) for own in texts]


def at_random(names: Sequence[str], sizes: Sequence[int], share: float, seed: int) -> list[np.ndarray]:
    """Return which points of each client are held out: a share of them, drawn by the client's name."""
    counts = np.array(sizes, dtype=np.int64)
    order = Draws(seed, "held-out", names=names).permutations(counts)[0]
    ends = np.cumsum(counts)
    place = np.arange(len(order)) - np.repeat(ends - counts, counts)
    mask = np.zeros(len(order), dtype=bool)
    mask[order[place < np.repeat(np.floor(counts * share), counts)]] = True
    return np.split(mask, ends[:-1])


def check_left(name: str, held_out: np.ndarray) -> None:
    """Raise InputError for a client that has nothing left to train on."""
    if held_out.all():
        raise InputError(f"client '{name}': all of its {len(held_out)} points are held out, leave it out or keep some")


def _texts(values: np.ndarray) -> np.ndarray:
    """Return values as text, so that 5 in a file is '5' in a setting."""
    return np.array([str(value) for value in np.asarray(values).tolist()], dtype=np.str_)


def _times(name: str, values: np.ndarray) -> np.ndarray:
    """Return times that can be compared: numbers, or dates, which may be text such as 2026-01-31."""
    values = np.asarray(values)
    if values.dtype.kind in "iufM":
        return values
    try:
        return np.array([str(value) for value in values.tolist()], dtype="datetime64[us]")
    except ValueError as error:
        raise InputError(
            f"client '{name}': split.time should be numbers or dates such as 2026-01-31T12:00 ({error})"
        ) from None


def _last(times: np.ndarray, share: float) -> np.ndarray:
    """Return the last share of points; of those at one time, the first in the data are trained on."""
    mask = np.zeros(len(times), dtype=bool)
    order = np.argsort(times, kind="stable")
    mask[order[len(times) - int(len(times) * share) :]] = True
    return mask


def _by_group(names: Sequence[str], groups: Sequence[np.ndarray], share: float, seed: int) -> list[np.ndarray]:
    """Return points by their groups, which are drawn by client until no further one fits into its share.

    A group of several clients is on the side that the first of them, by name, gave it; clients that would have nothing
    to train on get a group back.
    """
    aside: dict[str, bool] = {}
    orders = {}
    for k in sorted(range(len(names)), key=lambda k: names[k]):
        known, counts = np.unique(groups[k], return_counts=True)
        orders[k] = order = generator(seed, "held-out", names[k]).permutation(len(known))
        left = int(len(groups[k]) * share) - sum(int(counts[i]) for i, g in enumerate(known) if aside.get(str(g)))
        for i in order:
            if (group := str(known[i])) not in aside:
                aside[group] = int(counts[i]) <= left
                left -= int(counts[i]) if aside[group] else 0
    for k, order in orders.items():
        known = np.unique(groups[k])
        if all(aside[str(group)] for group in known):
            aside[str(known[order[-1]])] = False
    return [np.array([aside[str(group)] for group in own], dtype=bool) for own in groups]
