"""Rows of clients that stay at Ray's workers: replies as long as somebody uses them, and what clients keep."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsoft.engine.client_store import ClientRows
from fedsoft.secure.coding import Coded
from fedsoft.secure.weighing import Weighing
from fedsoft.storage.tensorfile import Form


@dataclass
class Wire:
    """What was transferred between this process and its workers: bytes, and the number of calls."""

    points: int = 0  # of clients, when workers start and when they are scored
    down: int = 0
    up: int = 0
    calls: int = 0


class Workers(Protocol):
    """The workers of an engine, each with one shard of the clients.

    `cuts` says where shards begin, `gone[j]` which replies shard j can drop.
    """

    cuts: np.ndarray
    gone: list[list[int]]
    wire: Wire

    def call(self, name: str, asked: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Call a method of some shards, each with its arguments; return the results in the order of shards."""
        ...

    def received(self, found: Sequence[np.ndarray]) -> list[Tensor]:
        """Return arrays from workers as tensors of our own; count their bytes."""
        ...


class Kept:
    """Replies kept at the workers for as long as this object is in use."""

    def __init__(self, engine: Workers, key: int, spans: Mapping[int, tuple[int, int]]) -> None:
        self.engine, self.key, self.spans = engine, key, spans
        # Sent to the workers with the next job: a finalizer may run in the middle of a call to Ray.
        for j in spans:
            weakref.finalize(self, engine.gone[j].append, key).atexit = False


@dataclass(frozen=True)
class Column:
    """The replies of all clients under one name. See `replies.Rows`."""

    replies: Kept
    name: str
    shape: tuple[int, ...]

    def gather(self) -> Tensor:
        asked = dict.fromkeys(self.replies.spans, (self.replies.key, self.name))
        return torch.cat(self.replies.engine.received(self.replies.engine.call("gather", asked)))

    def weighted(self, weights: Tensor) -> Tensor:
        """Sum over each worker's clients in float64; add the sums up in the order of shards."""
        w, engine = weights.double().cpu().numpy(), self.replies.engine
        asked = {j: (self.replies.key, self.name, w[:, a:b]) for j, (a, b) in self.replies.spans.items()}
        engine.wire.down += w.nbytes
        return functools.reduce(torch.add, engine.received(engine.call("weighted", asked)))

    def coded(self, what: Weighing) -> Coded:
        """Add up what the clients of each worker code for themselves; integers have one sum in any order."""
        engine = self.replies.engine
        asked = {j: (self.replies.key, self.name, what.of(slice(a, b))) for j, (a, b) in self.replies.spans.items()}
        engine.wire.down += what.weights.numel() * what.weights.itemsize
        found = engine.call("coded", asked)
        totals = engine.received([total for total, _ in found])
        # What comes out of Ray's store is read-only.
        counts = [torch.from_numpy(counts.copy()) for _, counts in found]
        parts = [Coded(total, count) for total, count in zip(totals, counts, strict=True)]
        return functools.reduce(Coded.plus, parts)


@dataclass(frozen=True, eq=False)
class WorkerStates(ClientRows):
    """The states of clients, kept at the workers."""

    engine: Workers
    forms: Mapping[str, Form] = field(repr=False)

    @override
    def take(self, rows: np.ndarray, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        wanted, at = list(self.forms if names is None else names), np.asarray(rows)
        for name in wanted:
            if name not in self.forms:
                raise KeyError(name)
        if not len(at) or not wanted:
            forms = {name: self.forms[name] for name in wanted}
            return {name: torch.empty((0, *form.shape[1:]), dtype=form.dtype) for name, form in forms.items()}
        shard = np.searchsorted(self.engine.cuts, at, side="right") - 1
        asked = {int(j): (at[shard == j] - self.engine.cuts[j], wanted) for j in np.unique(shard)}
        found = self.engine.call("take", asked)
        back = np.argsort(np.argsort(shard, kind="stable"), kind="stable")  # from the order of shards to that of rows
        return {name: torch.cat(self.engine.received([part[name] for part in found]))[back] for name in wanted}

    @override
    def blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        for begin, end in self.forms[name].spans():
            yield begin, self.take(np.arange(begin, end), [name])[name]

    def __getitem__(self, name: str) -> Tensor:
        return self.take(np.arange(self.forms[name].rows), [name])[name]
