"""Clients as rows of stacked tensors in this process: the transport behind `ask` for one machine.

Chunks of clients are worked on by several threads over the same memory. Which clients make a chunk does not depend on
the number of threads, and what chunks leave behind is put together in their order, so the bits do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsoft.clientdata import ClientData
from fedsoft.contract import Algorithm, Answer, Ids, Reply, Site, State, is_job, rows_of
from fedsoft.errors import DivergedError, InputError, unknown
from fedsoft.federation import Federation
from fedsoft.local import Solver, Work
from fedsoft.machine import check_workers, cores, memory_size
from fedsoft.model import Model
from fedsoft.seeds import generator
from fedsoft.tensorfile import Blocks
from fedsoft.threads import in_order
from fedsoft.vault import Budget, Vault

R = TypeVar("R")

CHUNK_BYTES = 16 * 2**20  # parameters, moments and points of a chunk should stay near the cache

Absent = Callable[[str, int, list[str]], np.ndarray]
"""(job, round, names of the clients) to a mask of those that do not answer."""


@dataclass
class Cost:
    """What a round cost, summed over clients."""

    gradients: int = 0  # points x epochs
    evaluations: int = 0  # points x models
    bytes_down: int = 0
    bytes_up: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: value + getattr(other, name) for name, value in vars(self).items()})


class Simulation:
    """All clients of a federation on one machine. Implements `Ask`.

    Arguments:
        algorithm, model, solver: what clients run.
        federation: their data; only the training points are ever given to a job.
        seed: of all draws.
        chunk: how many clients are stacked together; chosen by size unless told. Does not change the draws.
        device, dtype: where and in what precision.
        absent: tells who does not answer, for studying dropouts.
        workers: how many threads work on chunks at once; one for each core unless told. Does not change the bits.
        memory: how much RAM client memory and replies may take, in bytes or as `500M`, `4G`, `2GiB`; half of what is
            available unless told. The rest is kept in scratch files. Does not change the bits.
        scratch: the folder for these; the system's unless told.
    """

    def __init__(
        self, algorithm: Algorithm, model: Model, solver: Solver, federation: Federation, *,
        seed: int, chunk: int | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32,
        absent: Absent | None = None, workers: int | None = None, memory: int | str | None = None,
        scratch: Path | None = None,
    ) -> None:  # fmt: skip
        algorithm.check(len(federation))
        self.algorithm, self.model, self.solver = algorithm, model, solver
        self.data = self.latest = federation.train.to(device, dtype)
        self.before = None if federation.before is None else federation.before.to(device, dtype)
        self.change_at = federation.change_at
        self.names, self.seed, self.absent, self.dtype = federation.names, seed, absent, dtype
        if chunk is not None and chunk < 1:
            raise InputError(f"chunk = {chunk} is not allowed: should be at least 1")
        self.chunk = _chunk(model, self.data) if chunk is None else chunk
        check_workers(workers)
        self.workers = workers or (cores() if device == "cpu" else 1)
        self.budget, self.scratch = Budget(memory_size(memory)), scratch
        self.sizes = self.data.sizes
        self.t, self.last = 0, False
        self.cost = Cost()
        self.memory = self._vault(len(federation))

    # --- what the algorithm may use -----------------------------------------------------------------------------------

    @property
    def everyone(self) -> Ids:
        """All clients."""
        return np.arange(len(self.names))

    def generator(self, *labels: str | int) -> np.random.Generator:
        """A generator of this run and round."""
        return generator(self.seed, *labels, self.t)

    def generators(self, *labels: str | int) -> list[np.random.Generator]:
        """One generator of this run and round for each client."""
        return [generator(self.seed, *labels, self.t, name) for name in self.names]

    def __call__(self, job: str, ids: Ids, *, each: Reply | None = None, **shared: Tensor) -> Answer:
        """Have the clients `ids` do a job, chunk by chunk."""
        if not is_job(self.algorithm, job):
            jobs = [name for name in dir(type(self.algorithm)) if is_job(self.algorithm, name)]
            raise unknown(f"job of {type(self.algorithm).__name__}", job, jobs)
        each = each or {}
        self.cost.bytes_down += len(ids) * _bytes(shared) + _bytes(each)
        if self.absent is not None and len(ids):
            present = ~self.absent(job, self.t, [self.names[k] for k in ids])
            ids, each = ids[present], {name: value[present] for name, value in each.items()}
        replies = self._vault(len(ids))

        def work(rows: np.ndarray) -> Cost:
            sent = shared | {name: value[rows] for name, value in each.items()}
            cost, reply = self._do(job, ids[rows], sent)
            replies.put(rows, reply)
            return cost

        self.cost = sum(self._chunks(len(ids), work), self.cost)
        return Answer(ids, {name: replies.column(name) for name in replies})

    def _do(self, job: str, ids: Ids, sent: Reply) -> tuple[Cost, Reply]:
        """A job of one chunk of clients. What they change of their memory is kept."""
        site, given = self._site(self.data, ids), self.memory.take(ids)
        mine, reply = getattr(self.algorithm, job)(site, given, sent)
        changed = {name: value for name, value in mine.items() if value is not given.get(name)}
        self._check(job, ids, reply, "answered")
        self._check(job, ids, changed, "ended")
        for name in changed.keys() - given.keys():
            raise InputError(f"job '{job}' remembers '{name}', which enrol did not: its clients know {[*given]}")
        self.memory.put(ids, changed)
        gradients, evaluations = int(site.work.gradients.sum()), int(site.work.evaluations.sum())
        return Cost(gradients, evaluations, bytes_up=_bytes(reply)), reply

    # --- what the run loop uses ---------------------------------------------------------------------------------------

    def start(self) -> State:
        """Enrol everybody; the server's first state."""
        memory = self.memory = self._vault(len(self.names))
        self._chunks(len(self.names), lambda ids: memory.put(ids, self.algorithm.enrol(self._site(self.data, ids))))
        return self.algorithm.init(self._site(self.data, self.everyone[:0]), len(self.names))

    def restore(self, memory: Blocks) -> None:
        """Give everybody the memory that was saved, in place of `start`."""
        self.memory = self._vault(len(self.names))
        self.memory.fill(memory)

    def round(self, state: State, t: int, last: bool = False) -> tuple[State, dict[str, Any]]:
        """Play round t; what it cost stands in `cost`."""
        self.t, self.last, self.cost = t, last, Cost()
        self.data = self.before if self.before is not None and t < self.change_at else self.latest
        return self.algorithm.round(state, t, self)

    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        """The metric of each client's personal predictions on its points in `data`, NaN where it has none, `[N]`."""
        data = data.to(self.data.x.device, self.dtype)

        def work(ids: Ids) -> Tensor:
            site = self._site(data, ids)
            prediction = self._predict(site, ids, state)
            points = self.model.metric.per_point(prediction[None], data.y[site.data.points][None])[0]
            return site.data.mean_by_client(points.double())

        return torch.cat(self._chunks(len(self.names), work))

    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        """What client k predicts for inputs `x[points, ...]`."""
        y = self.data.y.new_zeros((len(x), *self.data.y.shape[1:]))
        ids = np.array([k])
        return self._predict(replace(self._site(self.data, ids), data=ClientData.concat([(x, y)])), ids, state)

    def _predict(self, site: Site, ids: Ids, state: State) -> Tensor:
        rows = torch.as_tensor(ids, device=self.data.x.device)
        return self.algorithm.predict(site, self.memory.take(ids), rows_of(state, rows))

    def _chunks(self, count: int, work: Callable[[np.ndarray], R]) -> list[R]:
        """What the work on the rows of each chunk gives, in order."""
        return in_order(
            work, np.split(np.arange(count), range(self.chunk, count, self.chunk)) if count else [], self.workers
        )

    def _vault(self, count: int) -> Vault:
        return Vault(count, self.budget, folder=self.scratch, device=self.data.x.device)

    def _site(self, data: ClientData, ids: Ids) -> Site:
        names = [self.names[k] for k in ids]
        work = Work.none(len(ids))
        return Site(self.model, data.take(ids), self.solver, names, self.seed, self.t, self.dtype, work=work)

    def _check(self, job: str, ids: Ids, values: dict[str, Tensor], what: str) -> None:
        """Nothing that is not finite, or not one row per client, is ever used or remembered."""
        for name, value in values.items():
            if len(value) != len(ids):
                raise InputError(f"job '{job}' {what} with {len(value)} rows of '{name}' for {len(ids)} clients")
            bad = ~torch.isfinite(value).reshape(len(value), -1).all(1)
            if bool(bad.any()):
                first = self.names[ids[int(torch.nonzero(bad)[0])]]
                raise DivergedError(
                    f"client '{first}' {what} job '{job}' of round {self.t} with values that are not finite: "
                    "its training diverged, lower the learning rate (local.lr) or scale the data"
                )


def dropout(probability: float, seed: int) -> Absent | None:
    """Every client fails to answer a job with this probability, drawn once for each kind of job in a round."""
    if not 0 <= probability <= 1:
        raise InputError(f"dropout = {probability} is not allowed: should be from 0 to 1")
    if probability == 0:
        return None

    def absent(job: str, t: int, names: list[str]) -> np.ndarray:
        return np.array([generator(seed, "dropout", job, t, name).random() < probability for name in names])

    return absent


def _bytes(values: dict[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values.values())


def _chunk(model: Model, data: ClientData) -> int:
    """As many clients as keep the working set (w, gradient, moments, buffer; the points, twice) near the cache."""
    if model.alone:
        return 1
    point = data.x[0].numel() + data.y[0].numel() + 1
    per_client = 4 * 5 * model.size + 2 * data.x.element_size() * point * float(data.sizes.double().mean())
    return max(1, int(CHUNK_BYTES / per_client))
