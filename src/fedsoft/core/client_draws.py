"""Draws of many clients at once: as many numbers as each needs from a stream of its own, without a loop over clients.

A stream is named by seed, labels and the name of the client, and by nothing else. So draws do not depend on how many
clients are stacked together, on their order, on threads, or on which machine knows which clients: a node that holds one
client draws for it what one process draws that holds all of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from fedsoft.seeds import generator_at, key_of

SCALE = 2.0**-53

Counts = np.ndarray | Sequence[int]


class Names(Sequence[str]):
    """The names of clients, and a hash of each, which is made once and shared with what is taken from them."""

    def __init__(self, names: Sequence[str], rows: np.ndarray | None = None, keys: np.ndarray | None = None) -> None:
        self._all, self._rows, self._keys = names, rows, keys

    @staticmethod
    def of(names: Sequence[str]) -> Names:
        return names if isinstance(names, Names) else Names(names)

    @cached_property
    def keys(self) -> np.ndarray:
        """Two words for each name, `[m, 2]`."""
        if self._keys is None:
            text = b"".join(hashlib.blake2b(str(name).encode(), digest_size=16).digest() for name in self._all)
            self._keys = np.frombuffer(text, "<u8").astype(np.uint64).reshape(-1, 2)
        return self._keys if self._rows is None else self._keys[self._rows]

    def take(self, rows: np.ndarray) -> Names:
        """Return those in `rows`, which may repeat some."""
        below = rows if self._rows is None else self._rows[rows]
        if self._keys is None:
            _ = self.keys
        return Names(self._all, below, self._keys)

    def repeat(self, count: int) -> Names:
        """Return every name `count` times, side by side."""
        return self.take(np.repeat(np.arange(len(self)), count))

    def __len__(self) -> int:
        return len(self._all) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, k: int) -> str: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[str]: ...
    def __getitem__(self, k: int | slice) -> str | Sequence[str]:
        if isinstance(k, slice):
            return self.take(np.arange(len(self))[k])
        return self._all[k if self._rows is None else int(self._rows[k])]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all) if self._rows is None else (self._all[int(k)] for k in self._rows)


class Draws(Sequence[np.random.Generator]):
    """Draws for each of m clients, from streams that seed, labels and their names decide.

    Methods draw for all clients in one pass; each call continues where the one before it ended. As a sequence it gives
    a generator of numpy for each client, for draws of other kinds; those are independent of what the methods return.
    """

    def __init__(self, seed: int, *labels: str | int, names: Sequence[str]) -> None:
        self.names = Names.of(names)
        words = np.frombuffer(key_of(seed, *labels), "<u8").astype(np.uint64)
        self.key = words[0], words[1]
        self.calls = 0
        self._single: dict[int, np.random.Generator] = {}

    def random(self, *shape: int) -> np.ndarray:
        """Return numbers from 0 to 1, without 1, `[m, *shape]`."""
        count = math.prod(shape)
        return self.random_each(np.full(len(self), count)).reshape(len(self), *shape)

    def random_each(self, counts: Counts, *shape: int) -> np.ndarray:
        """Return `counts[k]` numbers or arrays from 0 to 1 for each client, one client after the other."""
        words = self.words(np.asarray(counts) * math.prod(shape))
        words >>= np.uint64(11)
        return (words * SCALE).reshape(-1, *shape)

    def exponential(self, *shape: int) -> np.ndarray:
        """Return standard exponential numbers, `[m, *shape]`."""
        found = self.random(*shape)
        for function in (np.negative, np.log1p, np.negative):  # -log(1 - u), in one place
            function(found, out=found)
        return found

    def normal_each(self, counts: Counts, *shape: int) -> np.ndarray:
        """Return `counts[k]` standard normal numbers or arrays for each client, of single precision."""
        from fedsoft.core import draw_kernels as kernels

        ends, call = self._next(np.asarray(counts) * math.prod(shape))
        out = np.empty(ends[-1] if len(ends) else 0, dtype=np.float32)
        kernels.normals(self.key, self.names.keys, call, ends, kernels.TABLES, out)
        return out.reshape(-1, *shape)

    def integers_each(self, high: int | np.ndarray, counts: Counts) -> np.ndarray:
        """Return `counts[k]` numbers from 0 to `high` (below 2^31), without it, for each client.

        `high` may be one for each number. The chance of any number is right to `high` / 2^53.
        """
        return (self.random_each(counts) * high).astype(np.int64)

    def permutations(self, sizes: Counts, times: int = 1) -> np.ndarray:
        """Return the places of each client's points, in an order drawn anew each time, `[times, points]`.

        Places are counted over all clients: those of a client follow those of the clients before it.
        """
        from fedsoft.core import draw_kernels as kernels

        ends, call = self._next(sizes)
        out = np.empty((times, ends[-1] if len(ends) else 0), dtype=np.int64)
        kernels.permutations(self.key, self.names.keys, call, ends, out)
        return out

    def words(self, counts: Counts) -> np.ndarray:
        """Return `counts[k]` random words of 64 bits for each client, one client after the other."""
        from fedsoft.core import draw_kernels as kernels

        ends, call = self._next(counts)
        out = np.empty(ends[-1] if len(ends) else 0, dtype=np.uint64)
        kernels.words(self.key, self.names.keys, call, ends, out)
        return out

    def take(self, rows: Sequence[int] | np.ndarray) -> Draws:
        """Return the draws of the clients in `rows`, from the start."""
        found = Draws(0, names=self.names.take(np.asarray(rows, dtype=np.int64)))
        found.key = self.key
        return found

    def _next(self, counts: Counts) -> tuple[np.ndarray, int]:
        """Return the running sums of counts, and the number of this call: one half of the counter of its blocks."""
        self.calls += 1
        return np.cumsum(counts, dtype=np.int64), self.calls

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, k: int) -> np.random.Generator: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[np.random.Generator]: ...
    def __getitem__(self, k: int | slice) -> np.random.Generator | Sequence[np.random.Generator]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        if not -len(self) <= k < len(self):
            raise IndexError(k)
        k %= len(self)
        if k not in self._single:
            first, second = self.names.keys[k]
            self._single[k] = generator_at(self.key, (0, 0, int(first), int(second)))
        return self._single[k]
