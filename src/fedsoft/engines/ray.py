"""Clients in shards over the actors of Ray: more processes than one, or more machines than one.

Every actor has the points, the memory and the replies of its clients. What crosses between it and this process is what
the algorithm asks for: centers on the way down, sums over clients on the way up where it wants sums, replies where it
wants each.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray import exceptions
from torch import Tensor
from typing_extensions import override

from fedsoft.clientdata import ClientData
from fedsoft.contract import Algorithm, Answer, Ids, Reply, Rows, State
from fedsoft.engines import Factory
from fedsoft.engines.raycluster import GONE, PATIENCE, connect, idle_worker, last_line, let_go, sendable
from fedsoft.engines.shard import Forms, Points, Shard, arrays, by_shard, cuts
from fedsoft.errors import FedsoftError, InputError, WorkerLost
from fedsoft.federation import Federation
from fedsoft.host import Cost, chunk_size, size_of
from fedsoft.local import Solver
from fedsoft.machine import check_workers
from fedsoft.model import Model
from fedsoft.simulate import Engine
from fedsoft.tensorfile import Blocks, Form
from fedsoft.trust.absence import Absent
from fedsoft.trust.attack import Attack
from fedsoft.trust.guards import Care, Facts
from fedsoft.trust.robust import Rule
from fedsoft.vault import ClientRows


def engine(address: str | None = None) -> Factory:
    """What makes the engine: on a Ray that is started here, or on a cluster."""
    return functools.partial(RayEngine, address=address)


@dataclass
class Wire:
    """What crossed between this process and its workers: numbers, in bytes, and how many calls carried them."""

    points: int = 0  # of clients, when workers start and when they are scored
    down: int = 0
    up: int = 0
    calls: int = 0


class RayEngine(Engine):
    """All clients of a federation, in shards of neighbours with about as many points each, one for each worker.

    For arguments see `Engine` and `Room`, but for

    Arguments:
        workers: how many actors, each of which computes on one thread; one for each core unless told.
        memory: RAM for client memory and replies on each machine.
        address: of a cluster, `HOST:PORT` or `auto`. None starts Ray here, for as long as this process lives.
    """

    def __init__(
        self, algorithm: Algorithm, model: Model, solver: Solver, federation: Federation, *,
        seed: int, chunk: int | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32,
        absent: Absent | None = None, workers: int | None = None, memory: int | str | None = None,
        rule: Rule | None = None, attack: Attack | None = None, liars: Set[str] = frozenset(),
        address: str | None = None, care: Care | None = None,
    ) -> None:  # fmt: skip
        if device != "cpu":
            raise InputError(f"device = '{device}' is not allowed: workers of engine 'ray' compute on 'cpu'")
        check_workers(workers)
        super().__init__(
            algorithm, model, solver, federation, seed=seed, device=device, dtype=dtype, absent=absent, rule=rule,
            care=care,
        )  # fmt: skip
        room = connect(address, workers)
        self.train, self.before = federation.train, federation.before
        self.cuts = cuts(self.sizes, min(room.workers, len(self.names)))
        self.options = {"num_cpus": room.cores_each, "max_restarts": 0}
        self.settings = {
            "seed": seed, "dtype": dtype, "memory": memory, "beside": room.beside, "attack": attack, "liars": liars,
            "change_at": federation.change_at, "care": care,
            "chunk": chunk or chunk_size(model, replace(self.nobody, sizes=self.sizes)),
        }  # fmt: skip
        self.wire = Wire()
        self.folder: Path | None = None
        self.forms: Forms = {}
        self.keys, self.gone = itertools.count(), [list[int]() for _ in self.cuts[1:]]
        self.actors: list[Any] = [None] * (len(self.cuts) - 1)
        self.parts = sendable(algorithm, model, solver)
        self._begin(range(len(self.actors)))

    # --- workers ------------------------------------------------------------------------------------------------------

    def _begin(self, shards: Iterable[int]) -> None:
        """Start the workers of these shards, and give them their points."""
        made, settled = list(shards), []
        for j in made:
            points = Points.of(self.train, *self._span(j))
            self.wire.points += points.bytes
            names = self.names[slice(*self._span(j))]
            self.actors[j] = idle_worker() or ray.remote(Shard).options(**self.options).remote()
            earlier = None if self.before is None else Points.of(self.before, *self._span(j))
            self.wire.points += 0 if earlier is None else earlier.bytes
            settled.append(
                self.actors[j].settle.remote(self.parts, ray.put(points), names, before=earlier, **self.settings)
            )
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
    def mend(self) -> None:
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
        """Call a method of some shards, each with its arguments; what they return, in the order of shards."""
        if not self.actors:
            raise FedsoftError("the engine of this run is closed: nothing can be asked of its clients any more")
        self.wire.calls += len(asked)
        try:
            under_way = [getattr(self.actors[j], name).remote(*arguments) for j, arguments in asked.items()]
            return [ray.get(reference) for reference in under_way]  # one by one: the first shard's error is told
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
    def memory(self) -> ClientRows:
        return _Memory(self, self.forms)

    @override
    def carry(self, job: str, ids: Ids, each: Reply, shared: Mapping[str, Tensor]) -> Answer:
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
            asked[j] = (key, job, rows, arrays(mine), sent, self.t, gone)
            self.wire.down += size_of(shared) + size_of(mine) + (0 if rows is None else rows.nbytes)
        replies = _Replies(self, key, spans)
        done = self.call("do", asked)
        self.cost += sum((cost for cost, _, _ in done), Cost())
        facts = Facts.join([(b - a, one) for (a, b), (_, _, one) in zip(spans.values(), done, strict=True)])
        self.wire.up += facts.bytes
        kinds = [{name: (form.dtype, form.shape[1:]) for name, form in forms.items()} for _, forms, _ in done]
        if any(kind != kinds[0] for kind in kinds):
            raise InputError(f"job '{job}' has replies of different forms: should be the same for all clients")
        values: dict[str, Rows] = {name: _Column(replies, name) for name in kinds[0]}
        return self.believed(ids, facts, values)

    @override
    def use_folder(self, folder: Path) -> None:
        self.folder = folder
        self.call("use_folder", {j: (str(folder.resolve()),) for j in range(len(self.actors))})

    @override
    def enrol(self) -> None:
        forms: list[Forms] = self.call("enrol", dict.fromkeys(range(len(self.actors)), ()))
        self.forms = self._whole(forms[0])

    @override
    def restore(self, memory: Blocks) -> None:
        spans = [self._span(j) for j in range(len(self.actors))]
        self.forms = self._whole(memory.forms)
        self.call("clear", {
            j: ({name: replace(form, shape=(b - a, *form.shape[1:])) for name, form in self.forms.items()},)
            for j, (a, b) in enumerate(spans)
        })  # fmt: skip
        for name in self.forms:
            for begin, rows in memory.blocks(name):
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
        asked = {}
        sent = ray.put(arrays(by_shard(state, 0, 0)[0]))
        for j in range(len(self.actors)):
            shared, own = by_shard(state, *self._span(j))
            points = None if data is self.train else Points.of(data, *self._span(j))
            self.wire.points += 0 if points is None else points.bytes
            self.wire.down += size_of(shared) + size_of(own)
            asked[j] = (sent, arrays(own), points if points is None else ray.put(points))
        return torch.cat(self._received(self.call("personal_scores", asked)))

    @override
    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        j = int(np.searchsorted(self.cuts, k, side="right")) - 1
        begin, end = self._span(j)
        shared, own = by_shard(state, begin, end)
        self.wire.down += size_of(shared) + size_of(own) + size_of({"x": x})
        asked = {j: (k - begin, x.cpu().numpy(), arrays(shared), arrays(own))}
        return self._received(self.call("predict_for", asked))[0]

    def _received(self, found: Sequence[np.ndarray]) -> list[Tensor]:
        """Arrays that came from workers, as tensors of one's own."""
        self.wire.up += sum(array.nbytes for array in found)
        return [torch.from_numpy(np.array(array)) for array in found]


class _Replies:
    """Replies that are kept at the workers, for as long as this is in use here."""

    def __init__(self, engine: RayEngine, key: int, spans: Mapping[int, tuple[int, int]]) -> None:
        self.engine, self.key, self.spans = engine, key, spans
        # Told to the workers with the next job: what ends an object's life may be in the middle of a call to Ray.
        for j in spans:
            weakref.finalize(self, engine.gone[j].append, key).atexit = False


@dataclass(frozen=True)
class _Column:
    """The replies of all clients under one name. See `contract.Rows`."""

    replies: _Replies
    name: str

    def gather(self) -> Tensor:
        """All rows."""
        asked = dict.fromkeys(self.replies.spans, (self.replies.key, self.name))
        return torch.cat(self.replies.engine._received(self.replies.engine.call("gather", asked)))

    def weighted(self, weights: Tensor) -> Tensor:
        """Each worker sums over its own clients in float64; their sums are added up in the order of shards."""
        w, engine = weights.double().cpu().numpy(), self.replies.engine
        asked = {j: (self.replies.key, self.name, w[:, a:b]) for j, (a, b) in self.replies.spans.items()}
        engine.wire.down += w.nbytes
        return functools.reduce(torch.add, engine._received(engine.call("weighted", asked)))


@dataclass(frozen=True, eq=False)
class _Memory(ClientRows):
    """What clients keep, at the workers."""

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
