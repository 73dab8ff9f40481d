"""Where clients live: their data and memory as rows of stacked tensors, and the jobs they do.

One place may hold all clients of a federation, a shard of them on another machine, or a single one. Chunks of clients
are worked on by several threads over the same memory. Which clients make a chunk does not depend on the number of
threads, and what chunks leave behind is put together in their order, so the bits do not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsoft.attack import Attack
from fedsoft.clientdata import ClientData
from fedsoft.contract import Algorithm, Ids, Reply, Site, State, is_job, rows_of
from fedsoft.errors import DivergedError, InputError, StoreError, unknown
from fedsoft.local import Solver, Work
from fedsoft.machine import check_workers, cores, memory_size
from fedsoft.model import Model
from fedsoft.seeds import generator
from fedsoft.tensorfile import Blocks, Form
from fedsoft.threads import in_order
from fedsoft.vault import Budget, Vault

R = TypeVar("R")

CHUNK_BYTES = 16 * 2**20  # parameters, moments and points of a chunk should stay near the cache


@dataclass
class Cost:
    """What a round cost, summed over clients."""

    gradients: int = 0  # points x epochs
    evaluations: int = 0  # points x models
    bytes_down: int = 0
    bytes_up: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass
class Room:
    """What a host may use of its machine. Nothing of it changes the draws.

    Arguments:
        chunk: how many clients are stacked together; chosen by size unless told.
        device: where.
        workers: how many threads work on chunks at once; one for each core unless told. Does not change the bits.
        memory: how much RAM client memory and replies may take, in bytes or as `500M`, `4G`, `2GiB`; half of what is
            available unless told. The rest is kept in scratch files. Does not change the bits.
        scratch: the folder for these; the system's unless told.
    """

    chunk: int | None = None
    device: str = "cpu"
    workers: int | None = None
    memory: int | str | None = None
    scratch: Path | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk = {self.chunk} is not allowed: should be at least 1")
        check_workers(self.workers)


class Host:
    """Some clients at one place, by their rows `0 .. len(names) - 1` there.

    Arguments:
        algorithm, model, solver: what clients run.
        data: their training points.
        names: of the clients; they and the seed make all draws.
        seed: of the run.
        dtype: the precision of everything.
        room: what may be used of the machine.
        attack, liars: what clients of these names send in place of their replies.
        before, change_at: other training points, for the rounds before that one.
    """

    def __init__(
        self, algorithm: Algorithm, model: Model, solver: Solver, data: ClientData, names: Sequence[str], *,
        seed: int, dtype: torch.dtype = torch.float32, room: Room | None = None, attack: Attack | None = None,
        liars: Set[str] = frozenset(), before: ClientData | None = None, change_at: int = 0,
    ) -> None:  # fmt: skip
        room = room or Room()
        self.algorithm, self.model, self.solver = algorithm, model, solver
        self.data = data.to(room.device, dtype)
        self.before = None if before is None else before.to(room.device, dtype)
        self.change_at = change_at
        self.names, self.seed, self.dtype, self.device = list(names), seed, dtype, room.device
        self.attack, self.lies = attack, np.array([name in liars for name in names], dtype=bool)
        self.chunk = room.chunk or chunk_size(model, self.data)
        self.workers = room.workers or (cores() if room.device == "cpu" else 1)
        self.budget, self.scratch = Budget(memory_size(room.memory)), room.scratch
        self.memory = self._vault(len(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def enrol(self) -> None:
        """Give everybody a first memory."""
        memory = self.memory = self._vault(len(self))
        self._chunks(len(self), lambda rows: memory.put(rows, self.algorithm.enrol(self._site(self.data, rows, 0))))

    def restore(self, memory: Blocks) -> None:
        """Give everybody the memory that was saved, in place of `enrol`; complains of one of another form."""
        first = self.algorithm.enrol(self._site(self.data, np.arange(1), 0)) if len(self) else {}
        wanted = {name: Form(value.dtype, (len(self), *value.shape[1:])) for name, value in first.items()}
        if len(self) and wanted != dict(memory.forms):
            wrong = sorted(name for name in {*wanted, *memory.forms} if wanted.get(name) != memory.forms.get(name))
            raise StoreError(f"the saved memory of clients does not fit this run: {', '.join(wrong)} should be another")
        self.memory = self._vault(len(self))
        self.memory.fill(memory)

    def clear(self, forms: Mapping[str, Form]) -> Vault:
        """Make room for a memory of these forms that comes in pieces, in place of `enrol`; returns it to be filled."""
        self.memory = self._vault(len(self))
        self.memory.lay_out(forms)
        return self.memory

    def do(self, job: str, rows: Ids, each: Reply, shared: Mapping[str, Tensor], t: int) -> tuple[Cost, Vault]:
        """Have the clients in `rows` do a job of round t; what it cost, and their replies."""
        check_job(self.algorithm, job)
        replies = self._vault(len(rows))

        def work(part: np.ndarray) -> Cost:
            cost, reply = self._do(job, rows[part], {name: value[part] for name, value in each.items()}, shared, t)
            replies.put(part, reply)
            return cost

        return sum(self._chunks(len(rows), work), Cost()), replies

    def _do(self, job: str, rows: Ids, each: Reply, shared: Mapping[str, Tensor], t: int) -> tuple[Cost, Reply]:
        """A job of one chunk of clients. What they change of their memory is kept."""
        data = self.before if self.before is not None and t < self.change_at else self.data
        site, given = self._site(data, rows, t), self.memory.take(rows)
        mine, reply = getattr(self.algorithm, job)(site, given, {**shared, **each})
        changed = {name: value for name, value in mine.items() if value is not given.get(name)}
        self._check(job, rows, reply, f"answered job '{job}' of round {t}")
        self._check(job, rows, changed, f"ended job '{job}' of round {t}")
        for name in changed.keys() - given.keys():
            raise InputError(f"job '{job}' remembers '{name}', which enrol did not: its clients know {[*given]}")
        self.memory.put(rows, changed)
        if self.attack is not None and self.lies[rows].any():
            reply = self._false(self.attack, job, rows, reply, each, shared, t)
        gradients, evaluations = int(site.work.gradients.sum()), int(site.work.evaluations.sum())
        return Cost(gradients, evaluations, bytes_up=size_of(reply)), reply

    def _false(
        self, attack: Attack, job: str, rows: Ids, reply: Reply, each: Reply, shared: Mapping[str, Tensor], t: int
    ) -> Reply:
        """The same reply, with what liars send."""
        lies = torch.as_tensor(np.flatnonzero(self.lies[rows]), device=self.device)
        sent = {**shared, **{name: value[lies] for name, value in each.items()}}
        draws = [generator(self.seed, "lie", job, t, self.names[rows[k]]) for k in lies.tolist()]
        said = attack.reply({name: value[lies] for name, value in reply.items()}, sent, self.model.size, draws)
        return {name: value.index_copy(0, lies, said[name]) for name, value in reply.items()}

    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        """The metric of each client's personal predictions on its points in `data`, NaN where it has none, `[N]`.

        `state` is the server's, with the rows of these clients only in entries named `..._k`.
        """
        data = data.to(self.device, self.dtype)

        def work(rows: Ids) -> Tensor:
            site = self._site(data, rows, 0)
            prediction = self._predict(site, rows, state)
            points = self.model.metric.per_point(prediction[None], data.y[site.data.points][None])[0]
            return site.data.mean_by_client(points.double())

        return torch.cat(self._chunks(len(self), work))

    def predict_for(self, row: int, x: Tensor, state: State) -> Tensor:
        """What one client predicts for inputs `x[points, ...]`."""
        y = self.data.y.new_zeros((len(x), *self.data.y.shape[1:]))
        rows = np.array([row])
        return self._predict(replace(self._site(self.data, rows, 0), data=ClientData.concat([(x, y)])), rows, state)

    def _predict(self, site: Site, rows: Ids, state: State) -> Tensor:
        own = rows_of(state, torch.as_tensor(rows, device=self.device))
        return self.algorithm.predict(site, self.memory.take(rows), own)

    def _chunks(self, count: int, work: Callable[[np.ndarray], R]) -> list[R]:
        """What the work on the rows of each chunk gives, in order."""
        return in_order(
            work, np.split(np.arange(count), range(self.chunk, count, self.chunk)) if count else [], self.workers
        )

    def _vault(self, count: int) -> Vault:
        return Vault(count, self.budget, folder=self.scratch, device=self.data.x.device)

    def _site(self, data: ClientData, rows: Ids, t: int) -> Site:
        names = [self.names[k] for k in rows]
        work = Work.none(len(rows))
        return Site(self.model, data.take(rows), self.solver, names, self.seed, t, self.dtype, work=work)

    def _check(self, job: str, rows: Ids, values: Mapping[str, Tensor], did: str) -> None:
        """Nothing that is not finite, or not one row per client, is ever used or remembered."""
        for name, value in values.items():
            if len(value) != len(rows):
                raise InputError(f"job '{job}' gave {len(value)} rows of '{name}' for {len(rows)} clients")
            bad = ~torch.isfinite(value).reshape(len(value), -1).all(1)
            if bool(bad.any()):
                first = self.names[rows[int(torch.nonzero(bad)[0])]]
                raise DivergedError(
                    f"client '{first}' {did} with values that are not finite: its training diverged, lower the "
                    "learning rate (local.lr) or scale the data"
                )


def check_job(algorithm: Algorithm, job: str) -> None:
    """Only methods that were marked can be asked for."""
    if not is_job(algorithm, job):
        jobs = [name for name in dir(type(algorithm)) if is_job(algorithm, name)]
        raise unknown(f"job of {type(algorithm).__name__}", job, jobs)


def size_of(values: Mapping[str, Tensor]) -> int:
    """How many bytes tensors take."""
    return sum(value.numel() * value.element_size() for value in values.values())


def chunk_size(model: Model, data: ClientData) -> int:
    """As many clients as keep the working set (w, gradient, moments, buffer; the points, twice) near the cache."""
    if model.alone:
        return 1
    point = math.prod(data.x.shape[1:]) + math.prod(data.y.shape[1:]) + 1
    per_client = 4 * 5 * model.size + 2 * data.x.element_size() * point * float(data.sizes.double().mean())
    return max(1, int(CHUNK_BYTES / per_client))
