"""Clients in shards on Ray actors: several processes, or several machines.

Every actor holds the points, states and replies of its clients. Only what the algorithm asks for is transferred:
centers down; sums over clients up where it needs sums, single replies where it needs those.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray import exceptions
from torch import Tensor
from typing_extensions import override

from fedsoft.core.client_data import ClientData
from fedsoft.core.contract import State, Training
from fedsoft.core.federation import Federation
from fedsoft.core.replies import Answer, Ids, Reply, Rows
from fedsoft.engine.base import Engine, Factory
from fedsoft.engine.client_host import Ticket, chunk_size
from fedsoft.engine.client_store import ClientRows
from fedsoft.engine.cost import Cost, size_of
from fedsoft.engine.ray_cluster import GONE, PATIENCE, connect, idle_worker, last_line, let_go, sendable
from fedsoft.engine.resources import Resources
from fedsoft.engine.shard import Forms, Points, Shard, arrays, by_shard, cuts
from fedsoft.errors import FedsoftError, InputError, WorkerLost
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.guards import Facts
from fedsoft.safety.privacy import Released
from fedsoft.secure.coding import Coded
from fedsoft.secure.weighing import Weighing
from fedsoft.storage.tensorfile import Blocks, Form


def engine(address: str | None = None) -> Factory:
    """Return a factory of this engine: on a Ray started here, or on a cluster."""
    return functools.partial(RayEngine, address=address)


@dataclass
class Wire:
    """What was transferred between this process and its workers: bytes, and the number of calls."""

    points: int = 0  # of clients, when workers start and when they are scored
    down: int = 0
    up: int = 0
    calls: int = 0


class RayEngine(Engine):
    """All clients of a federation, in contiguous shards of about as many points each, one per worker.

    For other arguments see `Engine`.

    Arguments:
        resources: `workers` actors of one thread each; `memory` for client states and replies on each machine.
        address: of a cluster, `HOST:PORT` or `auto`. None starts Ray here for the lifetime of this process.
    """

    def __init__(
        self, training: Training, federation: Federation, conditions: Conditions | None = None,
        resources: Resources | None = None, *, address: str | None = None,
    ) -> None:  # fmt: skip
        resources = resources or Resources()
        if resources.device != "cpu":
            raise InputError(f"device = '{resources.device}' is not allowed: workers of engine 'ray' compute on 'cpu'")
        super().__init__(training, federation, conditions, resources)
        cluster = connect(address, resources.workers)
        self.train, self.before, self.change_at = federation.train, federation.before, federation.change_at
        self.cuts = cuts(self.sizes, min(cluster.workers, len(self.names)))
        self.options = {"num_cpus": cluster.cores_each, "max_restarts": 0}
        self.beside = cluster.beside
        chunk = resources.chunk or chunk_size(training.model, replace(self.nobody, sizes=self.sizes))
        self.resources = replace(resources, chunk=chunk, scratch=None)
        self.wire = Wire()
        self.folder: Path | None = None
        self.forms: Forms = {}
        self.keys, self.gone = itertools.count(), [list[int]() for _ in self.cuts[1:]]
        self.actors: list[Any] = [None] * (len(self.cuts) - 1)
        self.sent = sendable(training)
        self._begin(range(len(self.actors)))

    # --- workers ------------------------------------------------------------------------------------------------------

    def _begin(self, shards: Iterable[int]) -> None:
        """Start the workers of these shards, and send them their points."""
        made, settled = list(shards), []
        for j in made:
            points = Points.of(self.train, *self._span(j))
            self.wire.points += points.bytes
            names = self.names[slice(*self._span(j))]
            self.actors[j] = idle_worker() or ray.remote(Shard).options(**self.options).remote()
            earlier = None if self.before is None else (Points.of(self.before, *self._span(j)), self.change_at)
            self.wire.points += 0 if earlier is None else earlier[0].bytes
            settings = (self.conditions, self.resources, earlier, self.secret, self.beside)
            settled.append(self.actors[j].settle.remote(self.sent, ray.put(points), names, *settings))
        try:
            ray.get(settled, timeout=PATIENCE)
        except exceptions.GetTimeoutError:
            raise FedsoftError(
                f"engine 'ray' found no room for {len(made)} workers within {PATIENCE:.0f} s: use fewer --workers"
            ) from None
        except GONE as error:
            raise FedsoftError(f"engine 'ray' could not start a worker: {last_line(error)}") from None
        if self.folder is not None:
            self.use_folder(self.folder)

    @override
    def restart_workers(self) -> None:
        lost = []
        for j, actor in enumerate(self.actors):
            try:
                ray.get(actor.ready.remote())
            except GONE:
                lost.append(j)
        self._begin(lost)

    @override
    def close(self) -> None:
        if ray.is_initialized():
            for actor in self.actors:
                let_go(actor)
        self.actors = []

    def call(self, name: str, asked: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Call a method of some shards, each with its arguments; return the results in the order of shards."""
        if not self.actors:
            raise FedsoftError("the engine of this run is closed: its clients cannot be asked any more")
        self.wire.calls += len(asked)
        try:
            under_way = [getattr(self.actors[j], name).remote(*arguments) for j, arguments in asked.items()]
            return [ray.get(reference) for reference in under_way]  # one by one: the first shard's error is raised
        except exceptions.RayTaskError as error:
            if isinstance(cause := error.cause, FedsoftError):
                raise cause from None
            raise
        except GONE as error:
            raise WorkerLost(f"a worker of engine 'ray' is lost: {last_line(error)}") from None

    def _span(self, j: int) -> tuple[int, int]:
        return int(self.cuts[j]), int(self.cuts[j + 1])

    # --- an engine ----------------------------------------------------------------------------------------------------

    @property
    @override
    def client_states(self) -> ClientRows:
        return _ClientStates(self, self.forms)

    @override
    def __call__(self, job: str, ids: Ids, *, each: Reply | None = None, **shared: Tensor) -> Answer:
        ids, own = self.admit(job, ids, each, shared)
        return self.release(job, self._send(job, ids, own, shared))

    def _send(self, job: str, ids: Ids, each: Reply, shared: Mapping[str, Tensor]) -> Answer:
        places = np.searchsorted(ids, self.cuts).tolist()
        spans = {j: (a, b) for j, (a, b) in enumerate(itertools.pairwise(places)) if a < b}
        if not spans:
            return Answer(ids, {})
        key, sent, asked = next(self.keys), ray.put(arrays(shared)), {}
        for j, (a, b) in spans.items():
            begin, end = self._span(j)
            rows = None if b - a == end - begin else (ids[a:b] - begin).astype(np.int32)
            mine = {name: value[a:b] for name, value in each.items()}
            gone, self.gone[j] = self.gone[j], []
            asked[j] = (key, job, rows, arrays(mine), sent, Ticket(self.t, self.asks), gone)
            self.wire.down += size_of(shared) + size_of(mine) + (0 if rows is None else rows.nbytes)
        replies = _Replies(self, key, spans)
        done = self.call("run_job", asked)
        self.cost += sum((cost for cost, _, _, _ in done), Cost())
        self.released = self.released.plus(Released.most(released for _, _, _, released in done))
        facts = Facts.join([(b - a, one) for (a, b), (_, _, one, _) in zip(spans.values(), done, strict=True)])
        self.wire.up += facts.bytes
        kinds = [{name: (form.dtype, form.shape[1:]) for name, form in forms.items()} for _, forms, _, _ in done]
        if any(kind != kinds[0] for kind in kinds):
            raise InputError(f"job '{job}' has replies of different forms: should be the same for all clients")
        values: dict[str, Rows] = {name: _Column(replies, name, tuple(kinds[0][name][1])) for name in kinds[0]}
        return self.accepted(ids, facts, values)

    @override
    def use_folder(self, folder: Path) -> None:
        self.folder = folder
        self.call("use_folder", {j: (str(folder.resolve()),) for j in range(len(self.actors))})

    @override
    def init_clients(self) -> None:
        forms: list[Forms] = self.call("init_clients", dict.fromkeys(range(len(self.actors)), ()))
        self.forms = self._whole(forms[0])

    @override
    def restore(self, saved: Blocks) -> None:
        spans = [self._span(j) for j in range(len(self.actors))]
        self.forms = self._whole(saved.forms)
        self.call("clear", {
            j: ({name: replace(form, shape=(b - a, *form.shape[1:])) for name, form in self.forms.items()},)
            for j, (a, b) in enumerate(spans)
        })  # fmt: skip
        for name in self.forms:
            for begin, rows in saved.blocks(name):
                asked = {}
                for j, (a, b) in enumerate(spans):
                    low, high = max(a, begin), min(b, begin + len(rows))
                    if low < high:
                        asked[j] = (name, low - a, rows[low - begin : high - begin].cpu().numpy())
                self.wire.down += size_of({name: rows})
                self.call("put", asked)

    def _whole(self, forms: Mapping[str, Form]) -> Forms:
        return {name: replace(form, shape=(len(self.names), *form.shape[1:])) for name, form in forms.items()}

    @override
    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        return self._personal("personal_scores", state, data)

    @override
    def personal_predictions(self, state: State, data: ClientData) -> Tensor:
        return self._personal("personal_predictions", state, data)

    def _personal(self, what: str, state: State, data: ClientData) -> Tensor:
        """Have every shard compute this of its clients and their points in `data`."""
        asked = {}
        sent = ray.put(arrays(by_shard(state, 0, 0)[0]))
        for j in range(len(self.actors)):
            shared, own = by_shard(state, *self._span(j))
            points = None if data is self.train else Points.of(data, *self._span(j))
            self.wire.points += 0 if points is None else points.bytes
            self.wire.down += size_of(shared) + size_of(own)
            asked[j] = (sent, arrays(own), points if points is None else ray.put(points))
        return torch.cat(self._received(self.call(what, asked)))

    @override
    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        j = int(np.searchsorted(self.cuts, k, side="right")) - 1
        begin, end = self._span(j)
        shared, own = by_shard(state, begin, end)
        self.wire.down += size_of(shared) + size_of(own) + size_of({"x": x})
        asked = {j: (k - begin, x.cpu().numpy(), arrays(shared), arrays(own))}
        return self._received(self.call("predict_for", asked))[0]

    def _received(self, found: Sequence[np.ndarray]) -> list[Tensor]:
        """Return arrays from workers as tensors of our own; count their bytes."""
        self.wire.up += sum(array.nbytes for array in found)
        return [torch.from_numpy(np.array(array)) for array in found]


class _Replies:
    """Replies kept at the workers for as long as this object is in use."""

    def __init__(self, engine: RayEngine, key: int, spans: Mapping[int, tuple[int, int]]) -> None:
        self.engine, self.key, self.spans = engine, key, spans
        # Sent to the workers with the next job: a finalizer may run in the middle of a call to Ray.
        for j in spans:
            weakref.finalize(self, engine.gone[j].append, key).atexit = False


@dataclass(frozen=True)
class _Column:
    """The replies of all clients under one name. See `replies.Rows`."""

    replies: _Replies
    name: str
    shape: tuple[int, ...]

    def gather(self) -> Tensor:
        asked = dict.fromkeys(self.replies.spans, (self.replies.key, self.name))
        return torch.cat(self.replies.engine._received(self.replies.engine.call("gather", asked)))

    def weighted(self, weights: Tensor) -> Tensor:
        """Sum over each worker's clients in float64; add the sums up in the order of shards."""
        w, engine = weights.double().cpu().numpy(), self.replies.engine
        asked = {j: (self.replies.key, self.name, w[:, a:b]) for j, (a, b) in self.replies.spans.items()}
        engine.wire.down += w.nbytes
        return functools.reduce(torch.add, engine._received(engine.call("weighted", asked)))

    def coded(self, what: Weighing) -> Coded:
        """Add up what the clients of each worker code for themselves; integers have one sum in any order."""
        engine = self.replies.engine
        asked = {j: (self.replies.key, self.name, what.of(slice(a, b))) for j, (a, b) in self.replies.spans.items()}
        engine.wire.down += what.weights.numel() * what.weights.itemsize
        found = engine.call("coded", asked)
        totals = engine._received([total for total, _ in found])
        # What comes out of Ray's store is read-only.
        counts = [torch.from_numpy(counts.copy()) for _, counts in found]
        parts = [Coded(total, count) for total, count in zip(totals, counts, strict=True)]
        return functools.reduce(Coded.plus, parts)


@dataclass(frozen=True, eq=False)
class _ClientStates(ClientRows):
    """The states of clients, kept at the workers."""

    engine: RayEngine
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
        return {name: torch.cat(self.engine._received([part[name] for part in found]))[back] for name in wanted}

    @override
    def blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        for begin, end in self.forms[name].spans():
            yield begin, self.take(np.arange(begin, end), [name])[name]

    def __getitem__(self, name: str) -> Tensor:
        return self.take(np.arange(self.forms[name].rows), [name])[name]
