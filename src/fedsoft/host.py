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
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsoft.clientdata import ClientData
from fedsoft.contract import Algorithm, Hide, Ids, Reply, Site, State, is_job, rows_of
from fedsoft.errors import DivergedError, InputError, StoreError, advice, unknown
from fedsoft.local import Solver, Work
from fedsoft.machine import check_workers, cores, memory_size
from fedsoft.model import Model
from fedsoft.seeds import generator
from fedsoft.tensorfile import Blocks, Form
from fedsoft.threads import in_order
from fedsoft.trust.attack import Attack
from fedsoft.trust.guards import Care, Facts, Guards, blank, merged
from fedsoft.trust.privacy import hidden_shares
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


class Done(NamedTuple):
    """What a job of some clients left behind."""

    cost: Cost
    replies: Vault
    facts: Facts


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
        care: what is done about clients that fail or lie, and what is hidden of them.
        secret: goes into the noise that hides them; nobody else may know it.
    """

    def __init__(
        self, algorithm: Algorithm, model: Model, solver: Solver, data: ClientData, names: Sequence[str], *,
        seed: int, dtype: torch.dtype = torch.float32, room: Room | None = None, attack: Attack | None = None,
        liars: Set[str] = frozenset(), before: ClientData | None = None, change_at: int = 0, care: Care | None = None,
        secret: str = "",
    ) -> None:  # fmt: skip
        room, self.care, self.secret = room or Room(), care or Care(), secret
        self.algorithm, self.model, self.solver = algorithm, model, solver
        self.data = data.to(room.device, dtype)
        self.before = None if before is None else before.to(room.device, dtype)
        self.change_at = change_at
        self.names, self.seed, self.dtype, self.device = list(names), seed, dtype, room.device
        self.attack, self.lies = attack, np.array([name in liars for name in names], dtype=bool)
        self.guards = Guards.of(self.care, algorithm, model.size)
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

    def do(self, job: str, rows: Ids, each: Reply, shared: Mapping[str, Tensor], t: int) -> Done:
        """Have the clients in `rows` do a job of round t; what it cost, their replies, and what guards say of them."""
        check_job(self.algorithm, job)
        replies = self._vault(len(rows))

        def work(part: np.ndarray) -> tuple[Cost, tuple[int, Facts]]:
            own = {name: value[part] for name, value in each.items()}
            cost, reply, facts = self._do(job, rows[part], own, shared, t)
            replies.put(part, reply)
            return cost, (len(part), facts)

        done = self._chunks(len(rows), work)
        return Done(sum((cost for cost, _ in done), Cost()), replies, Facts.join([facts for _, facts in done]))

    def _do(self, job: str, rows: Ids, each: Reply, shared: Mapping[str, Tensor], t: int) -> tuple[Cost, Reply, Facts]:
        """A job of one chunk of clients. What they change of their memory is kept, unless they are dropped."""
        data = self.before if self.before is not None and t < self.change_at else self.data
        site, given = self._site(data, rows, t), self.memory.take(rows)
        mine, reply = getattr(self.algorithm, job)(site, given, {**shared, **each})
        changed = {name: value for name, value in mine.items() if value is not given.get(name)}
        lost = self._diverged(job, rows, reply, f"answered job '{job}' of round {t + 1}")
        lost |= self._diverged(job, rows, changed, f"ended job '{job}' of round {t + 1}")
        for name in changed.keys() - given.keys():
            raise InputError(f"job '{job}' remembers '{name}', which enrol did not: its clients know {[*given]}")
        if lost:
            whole = np.array([row for row in range(len(rows)) if row not in lost], dtype=np.int64)
            self.memory.put(rows[whole], {name: value[torch.as_tensor(whole)] for name, value in changed.items()})
            reply = blank(reply, [*lost])
        else:
            self.memory.put(rows, changed)
        if self.attack is not None and self.lies[rows].any():
            reply = self._false(self.attack, job, rows, reply, each, shared, t)
        gradients, evaluations = int(site.work.gradients.sum()), int(site.work.evaluations.sum())
        cost = Cost(gradients, evaluations, bytes_up=size_of(reply))
        centers = shared.get("centers")
        facts = merged(self.guards.look(reply, site.data.sizes, None if centers is None else len(centers)), lost)
        return cost, blank(reply, [*facts.refused]) if facts.refused.keys() - lost.keys() else reply, facts

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
        work, own = Work.none(len(rows)), data.take(rows)
        hide = self._hide(own.sizes, names, t)
        return Site(self.model, own, self.solver, names, self.seed, t, self.dtype, work=work, hide=hide)

    def _hide(self, n: Tensor, names: Sequence[str], t: int) -> Hide | None:
        """What puts noise on counts. A client with more than one use of them in an estimation needs more of it."""
        privacy = self.care.privacy
        if privacy is None or not privacy.counts:
            return None
        times = getattr(self.algorithm, "counting", 1)
        deviation = privacy.counts * math.sqrt(2 * times)

        def hide(shares: Tensor, sweep: int) -> Tensor:
            draws = [generator(self.seed, "counts", self.secret, sweep, t, name) for name in names]
            return hidden_shares(shares, n, deviation, draws)

        return hide

    def _diverged(self, job: str, rows: Ids, values: Mapping[str, Tensor], did: str) -> dict[int, str]:
        """Nothing that is not finite, or not one row per client, is ever used or remembered."""
        found: dict[int, str] = {}
        for name, value in values.items():
            if len(value) != len(rows):
                raise InputError(f"job '{job}' gave {len(value)} rows of '{name}' for {len(rows)} clients")
            bad = ~torch.isfinite(value).reshape(len(value), -1).all(1)
            for row in torch.nonzero(bad).flatten().tolist() if bool(bad.any()) else ():
                if self.care.diverged == "stop":
                    raise DivergedError(
                        f"client '{self.names[rows[row]]}' {did} with values that are not finite: its training "
                        f"diverged, {advice(self.algorithm)}"
                    )
                found.setdefault(row, f"its training diverged in job '{job}': '{name}' is not finite")
        return found


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
