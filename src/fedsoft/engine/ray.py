"""Clients in shards on Ray actors: several processes, or several machines.

Every actor holds the points, states and replies of its clients. Only what the algorithm asks for is transferred:
centers down; sums over clients up where it needs sums, single replies where it needs those.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
from fedsoft.engine.ray_rows import Column, Kept, Wire, WorkerStates
from fedsoft.engine.resources import Resources
from fedsoft.engine.shard import Forms, Points, Shard, arrays, by_shard, cuts
from fedsoft.errors import FedsoftError, InputError, WorkerLost
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.guards import Facts
from fedsoft.safety.privacy import Released
from fedsoft.storage.tensorfile import Blocks, Form


def engine(address: str | None = None) -> Factory:
    """Return a factory of this engine: on a Ray started here, or on a cluster."""
    return functools.partial(RayEngine, address=address)


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
        return WorkerStates(self, self.forms)

    @override
    def send(self, job: str, ids: Ids, each: Reply, shared: Mapping[str, Tensor]) -> Answer:
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
        replies = Kept(self, key, spans)
        done = self.call("run_job", asked)
        self.cost += sum((cost for cost, _, _, _ in done), Cost())
        self.released = self.released.plus(Released.most(released for _, _, _, released in done))
        facts = Facts.join([(b - a, one) for (a, b), (_, _, one, _) in zip(spans.values(), done, strict=True)])
        self.wire.up += facts.bytes
        kinds = [{name: (form.dtype, form.shape[1:]) for name, form in forms.items()} for _, forms, _, _ in done]
        if any(kind != kinds[0] for kind in kinds):
            raise InputError(f"job '{job}' has replies of different forms: should be the same for all clients")
        values: dict[str, Rows] = {name: Column(replies, name, tuple(kinds[0][name][1])) for name in kinds[0]}
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
        return torch.cat(self.received(self.call(what, asked)))

    @override
    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        j = int(np.searchsorted(self.cuts, k, side="right")) - 1
        begin, end = self._span(j)
        shared, own = by_shard(state, begin, end)
        self.wire.down += size_of(shared) + size_of(own) + size_of({"x": x})
        asked = {j: (k - begin, x.cpu().numpy(), arrays(shared), arrays(own))}
        return self.received(self.call("predict_for", asked))[0]

    def received(self, found: Sequence[np.ndarray]) -> list[Tensor]:
        """Return arrays from workers as tensors of our own; count their bytes."""
        self.wire.up += sum(array.nbytes for array in found)
        return [torch.from_numpy(np.array(array)) for array in found]
