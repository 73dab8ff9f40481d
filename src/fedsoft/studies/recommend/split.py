"""Which points are tuned on, which are reported on, and which clients join later.

Every client's held-out points are its test points: nothing is chosen on them. A share of the clients never takes part:
they are the newcomers, and no point of theirs is trained or tuned on either. The training points of all others are
divided into folds; a fold is what models are tuned on that were trained on the other folds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedsoft.core.client_data import ClientData
from fedsoft.core.federation import Federation
from fedsoft.errors import InputError
from fedsoft.seeds import generator

FOLDS = 3
NEWCOMERS = 0.15  # share of the clients
FEWEST_NEWCOMERS = 5
MOST_NEWCOMERS = 200  # more say little more, and serving them costs
FEWEST_CLIENTS = 4  # that take part
COUNTS = (5, 10, 20, 50)  # points of a newcomer
LEAST_LEFT = 2  # points of a newcomer that it is scored on


@dataclass(frozen=True)
class Split:
    """The clients of one seed.

    Arguments:
        final: clients that take part, with all their training points; their test points are held out.
        newcomers: the others, with all their points as training points.
        seed: that everything was drawn from.
    """

    final: Federation
    newcomers: Federation
    seed: int

    @staticmethod
    def of(federation: Federation, seed: int, newcomers: int | None = None) -> Split:
        """Draw the newcomers, by default a share of the clients; raises where there are no points to report on."""
        _check(federation)
        federation = replace(federation, truth=None)
        aside = newcomers_among(federation.names, seed, newcomers)
        rest = np.setdiff1d(np.arange(len(federation)), aside)
        joined = _clients(federation, aside)
        both = [_joined(joined.train.client(k), joined.held_out.client(k)) for k in range(len(joined))]
        pool = ClientData.concat(both) if both else joined.train
        pool = replace(pool, augment=federation.train.augment)
        return Split(_clients(federation, rest), replace(joined, train=pool), seed)

    def tuning(self, fold: int) -> Federation:
        """Return the clients that take part without their test points: the points of a fold are held out instead."""
        train, kept, aside = self.final.train, [], []
        for k, name in enumerate(self.final.names):
            start, size = int(train.starts[k]), int(train.sizes[k])
            mask = in_fold(name, size, fold, self.seed)
            kept.append(start + np.flatnonzero(~mask))
            aside.append(start + np.flatnonzero(mask))
        return replace(self.final, train=_picked(train, kept), held_out=_picked(train, aside))

    def joining(self, points: int) -> Federation | None:
        """Return newcomers with `points` of their points, the rest held out; None if none has enough."""
        pool, chosen, kept, aside = self.newcomers.train, [], [], []
        for k, name in enumerate(self.newcomers.names):
            start, size = int(pool.starts[k]), int(pool.sizes[k])
            if size >= points + LEAST_LEFT:
                order = generator(self.seed, "newcomer's points", name).permutation(size)
                chosen.append(k)
                kept.append(start + np.sort(order[:points]))
                aside.append(start + np.sort(order[points:]))
        if len(chosen) < 2:
            return None
        names = tuple(self.newcomers.names[k] for k in chosen)
        return replace(self.newcomers, names=names, train=_picked(pool, kept), held_out=_picked(pool, aside))


def newcomers_among(names: tuple[str, ...], seed: int, wanted: int | None = None) -> np.ndarray:
    """Return the rows of clients that never take part, ascending; none where there are too few clients to do without.

    >>> len(newcomers_among(tuple(map(str, range(100))), seed=0))
    15
    """
    if wanted is None:
        wanted = min(MOST_NEWCOMERS, max(FEWEST_NEWCOMERS, round(NEWCOMERS * len(names))))
    if len(names) < 3 * FEWEST_NEWCOMERS:
        return np.array([], dtype=np.int64)
    return np.sort(generator(seed, "newcomers").permutation(len(names))[:wanted])


def in_fold(name: str, points: int, fold: int, seed: int) -> np.ndarray:
    """Return which of a client's training points are in a fold; every point is in one, and none of a lone point."""
    if points < 2:
        return np.zeros(points, dtype=bool)
    return generator(seed, "folds", name).permutation(points) % FOLDS == fold


def _check(federation: Federation) -> None:
    if not len(federation.train.x):
        raise InputError("recommend needs the points of the clients here, and these have theirs at nodes of their own")
    if not int(federation.held_out.sizes.sum()):
        raise InputError("recommend needs held-out points of clients to report on, and there are none: set held_out")
    if federation.before is not None:
        raise InputError("recommend is for data that stays the same, and this changes after some rounds")
    if len(federation) < FEWEST_CLIENTS:
        raise InputError(f"recommend needs at least {FEWEST_CLIENTS} clients, and there are {len(federation)}")


def _clients(federation: Federation, rows: np.ndarray) -> Federation:
    names = tuple(federation.names[k] for k in rows)
    return replace(federation, names=names, train=federation.train.take(rows), held_out=federation.held_out.take(rows))


def _picked(data: ClientData, places: list[np.ndarray]) -> ClientData:
    """Return clients with the points at these places of the pool."""
    sizes = torch.tensor([len(part) for part in places], dtype=torch.int64)
    return data.reordered(torch.from_numpy(np.concatenate(places)), sizes)


def _joined(
    first: tuple[torch.Tensor, torch.Tensor], second: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])
