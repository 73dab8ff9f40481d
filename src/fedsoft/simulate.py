"""Clients as rows of stacked tensors in this process: the transport behind `ask` for one machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsoft.clientdata import ClientData
from fedsoft.contract import Algorithm, Answer, Ids, Memory, Reply, Site, State, is_job, rows_of
from fedsoft.errors import DivergedError, InputError, unknown
from fedsoft.federation import Federation
from fedsoft.local import Solver, Work
from fedsoft.model import Model
from fedsoft.seeds import generator

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


class Simulation:
    """All clients of a federation on one machine. Implements `Ask`.

    Arguments:
        algorithm, model, solver: what clients run.
        federation: their data; only the training points are ever given to a job.
        seed: of all draws.
        chunk: how many clients are stacked together; chosen by size unless told. Does not change the draws.
        device, dtype: where and in what precision.
        absent: tells who does not answer, for studying dropouts.
    """

    def __init__(
        self, algorithm: Algorithm, model: Model, solver: Solver, federation: Federation, *,
        seed: int, chunk: int | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32,
        absent: Absent | None = None,
    ) -> None:  # fmt: skip
        algorithm.check(len(federation))
        self.algorithm, self.model, self.solver = algorithm, model, solver
        self.data = federation.train.to(device, dtype)
        self.names, self.seed, self.absent, self.dtype = federation.names, seed, absent, dtype
        if chunk is not None and chunk < 1:
            raise InputError(f"chunk = {chunk} is not allowed: should be at least 1")
        self.chunk = _chunk(model, self.data) if chunk is None else chunk
        self.sizes = self.data.sizes
        self.t, self.last = 0, False
        self.cost = Cost()
        self.memory: Memory = {}

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
        run: Callable[..., tuple[Memory, Reply]] = getattr(self.algorithm, job)
        replies: list[Reply] = []
        for begin in range(0, len(ids), self.chunk):
            part = ids[begin : begin + self.chunk]
            site = self._site(self.data, part)
            rows = torch.as_tensor(part, device=self.data.x.device)
            sent = shared | {name: value[begin : begin + self.chunk] for name, value in each.items()}
            given = {name: value[rows] for name, value in self.memory.items()}
            mine, reply = run(site, given, sent)
            changed = {name: value for name, value in mine.items() if value is not given.get(name)}
            self._check(job, part, reply, "answered")
            self._check(job, part, changed, "ended")
            for name, value in changed.items():
                if name not in self.memory:
                    raise InputError(
                        f"job '{job}' remembers '{name}', which enrol did not: its clients know {[*given]}"
                    )
                self.memory[name].index_copy_(0, rows, value)
            self.cost.gradients += int(site.work.gradients.sum())
            self.cost.evaluations += int(site.work.evaluations.sum())
            self.cost.bytes_up += _bytes(reply)
            replies.append(reply)
        return Answer(ids, {name: torch.cat([r[name] for r in replies]) for name in (replies[0] if replies else {})})

    # --- what the run loop uses ---------------------------------------------------------------------------------------

    def start(self) -> State:
        """Enrol everybody; the server's first state."""
        enrolled = [self.algorithm.enrol(self._site(self.data, part)) for part in _chunks(self.everyone, self.chunk)]
        self.memory = {name: torch.cat([mine[name] for mine in enrolled]) for name in enrolled[0]}
        return self.algorithm.init(self._site(self.data, self.everyone[:0]), len(self.names))

    def round(self, state: State, t: int, last: bool = False) -> tuple[State, dict[str, Any]]:
        """Play round t; what it cost stands in `cost`."""
        self.t, self.last, self.cost = t, last, Cost()
        return self.algorithm.round(state, t, self)

    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        """The metric of each client's personal predictions on its points in `data`, NaN where it has none, `[N]`."""
        data, scores = data.to(self.data.x.device, self.dtype), []
        for part in _chunks(self.everyone, self.chunk):
            site = self._site(data, part)
            rows = torch.as_tensor(part, device=data.x.device)
            mine = {name: value[rows] for name, value in self.memory.items()}
            prediction = self.algorithm.predict(site, mine, rows_of(state, rows))
            points = self.model.metric.per_point(prediction[None], data.y[site.data.points][None])[0]
            scores.append(site.data.mean_by_client(points.double()))
        return torch.cat(scores)

    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        """What client k predicts for inputs `x[points, ...]`."""
        y = self.data.y.new_zeros((len(x), *self.data.y.shape[1:]))
        site = replace(self._site(self.data, np.array([k])), data=ClientData.concat([(x, y)]))
        row = torch.tensor([k], device=self.data.x.device)
        mine = {name: value[row] for name, value in self.memory.items()}
        return self.algorithm.predict(site, mine, rows_of(state, row))

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


def _chunks(ids: Ids, size: int) -> list[Ids]:
    return [ids[i : i + size] for i in range(0, len(ids), size)]


def _bytes(values: dict[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values.values())


def _chunk(model: Model, data: ClientData) -> int:
    """As many clients as keep the working set (w, gradient, moments, buffer; the points, twice) near the cache."""
    point = data.x[0].numel() + data.y[0].numel() + 1
    per_client = 4 * 5 * model.size + 2 * data.x.element_size() * point * float(data.sizes.double().mean())
    return max(1, int(CHUNK_BYTES / per_client))
