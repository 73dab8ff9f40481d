"""Where clients live: their data and states as rows of stacked tensors, and the jobs they do.

A host may hold all clients of a federation, a shard of them on another machine, or a single one. Several threads work
on chunks of clients in the same memory. Chunks do not depend on the number of threads, and their results are joined in
order, so the bits do not depend on it either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsoft.clusters.ensemble import predictions
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Names
from fedsoft.core.contract import PersonalModels, State, Training
from fedsoft.core.local_solve import Work
from fedsoft.core.model import Model
from fedsoft.core.replies import ClientState, Ids, Kind, Reply
from fedsoft.core.site import Site
from fedsoft.engine.client_store import Budget, ClientStore
from fedsoft.engine.cost import Cost, size_of
from fedsoft.engine.job_checks import check_job, check_reply, finite_rows, not_finite
from fedsoft.engine.resources import Resources
from fedsoft.errors import DivergedError, StoreError, advice
from fedsoft.machine.heap import keep_heap
from fedsoft.machine.resources import cores, memory_size
from fedsoft.machine.threads import in_order
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.exclusions import Reason, Refusal
from fedsoft.safety.guards import Facts, Guards, blank, merged
from fedsoft.safety.noise import ClientNoise
from fedsoft.safety.privacy import Released
from fedsoft.seeds import generator
from fedsoft.storage.tensorfile import Blocks, Form

R = TypeVar("R")

STATISTICS = "statistics"  # beside what the algorithm keeps of a client
CHUNK_BYTES = 16 * 2**20  # parameters, optimizer state and points of a chunk should stay near the cache


class Ticket(NamedTuple):
    """Identifies one ask within the experiment; noise that hides clients is drawn by it."""

    t: int  # the round
    question: str | int = ""


class JobResult(NamedTuple):
    """What a job of some clients returned."""

    cost: Cost
    replies: ClientStore
    facts: Facts
    released: Released


class ClientHost:
    """Some clients in one place, by their rows `0 .. len(names) - 1`.

    Arguments:
        training: what clients run.
        data: their training points.
        names: of the clients; names and seed determine all draws.
        conditions: what clients may do, and what is hidden of them.
        resources: what may be used of the machine.
        before: other training points, and the round before which they are used.
        secret: names the experiment in draws of noise; must stay unknown to others where the seed is known.
        least_points: sums over fewer points of a client are not sent.
    """

    def __init__(
        self, training: Training, data: ClientData, names: Sequence[str], *, conditions: Conditions | None = None,
        resources: Resources | None = None, before: tuple[ClientData, int] | None = None, secret: str = "",
        least_points: int = 1,
    ) -> None:  # fmt: skip
        resources = resources or Resources()
        keep_heap()
        self.training, self.conditions = training, conditions or Conditions()
        self.algorithm, self.model, self.names = training.algorithm, training.model, list(names)
        self.named = Names.of(names)
        self.device, self.secret, self.least_points = resources.device, secret, least_points
        self.data = data.to(resources.device, training.dtype)
        self.before = None if before is None else (before[0].to(resources.device, training.dtype), before[1])
        self.malicious = np.array([name in self.conditions.malicious for name in names], dtype=bool)
        self.guards = Guards.of(self.conditions.guard, training.algorithm, training.model.size)
        self.chunk = resources.chunk or chunk_size(training.model, self.data)
        self.workers = resources.workers or (cores() if resources.device == "cpu" else 1)
        self.budget, self.scratch = Budget(memory_size(resources.memory)), resources.scratch
        self.client_states = self._store(len(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def init_clients(self) -> None:
        """Give all clients an initial state."""
        states = self.client_states = self._store(len(self))

        def work(rows: Ids) -> None:
            states.put(rows, self._initial(rows))

        self._chunks(len(self), work)

    def _initial(self, rows: Ids) -> ClientState:
        """Return the initial state of some clients: the algorithm's, and statistics where they keep their own."""
        site = self._site(self.data, rows, 0)
        state = self.algorithm.init_client(site)
        if self.model.local_statistics:
            state |= {STATISTICS: site.draw("client")[-self.model.statistics :].repeat(len(rows), 1)}
        return state

    def restore(self, saved: Blocks) -> None:
        """Give all clients their saved state, in place of `init_clients`; raise if its form differs."""
        first = self._initial(np.arange(1)) if len(self) else {}
        wanted = {name: Form.of(value, len(self)) for name, value in first.items()}
        if len(self) and wanted != dict(saved.forms):
            wrong = sorted(name for name in {*wanted, *saved.forms} if wanted.get(name) != saved.forms.get(name))
            raise StoreError(f"the saved state of clients does not fit this run: {', '.join(wrong)} differ")
        self.client_states = self._store(len(self))
        self.client_states.fill(saved)

    def clear(self, forms: Mapping[str, Form]) -> ClientStore:
        """Return an empty store for states of these forms that arrive in pieces, in place of `init_clients`."""
        self.client_states = self._store(len(self))
        self.client_states.lay_out(forms)
        return self.client_states

    def run_job(self, job: str, rows: Ids, each: Reply, shared: Mapping[str, Tensor], ticket: Ticket) -> JobResult:
        """Have the clients in `rows` do a job; return its cost, their replies, and what guards say about them.

        Changes to their states are kept, except for clients that are dropped.
        """
        check_job(self.algorithm, job)
        replies, centers = self._store(len(rows)), shared.get("centers")

        def work(part: np.ndarray) -> tuple[Cost, tuple[int, Facts], Released]:
            chunk, own = rows[part], {name: value[part] for name, value in each.items()}
            noise = self._noise(chunk, job, ticket)
            given = self.client_states.take(chunk)
            site = self._site(self._points(ticket.t), chunk, ticket.t, noise, given)
            mine, reply = self.algorithm.jobs[job].function(self.algorithm, site, given, {**shared, **own})
            changed = {name: value for name, value in mine.items() if value is not given.get(name)}
            changed |= {} if site.statistics is None else {STATISTICS: site.statistics}
            kinds = check_reply(self.algorithm, job, len(chunk), reply, changed, given)
            reply = self._without_statistics(reply, kinds)
            lost: dict[int, Refusal] = {}
            if noise is not None and noise.covers_models:  # divergence depends on points: hide it
                reply, kept = noise.reply(reply, shared, kinds), finite_rows(changed, len(chunk))
            else:
                lost = self._diverged(job, chunk, reply, f"answered job '{job}' of round {ticket.t + 1}")
                lost |= self._diverged(job, chunk, changed, f"ended job '{job}' of round {ticket.t + 1}")
                reply = blank(reply, [*lost]) if lost else reply
                kept = np.array([row for row in range(len(chunk)) if row not in lost], dtype=np.int64)
            self._keep(chunk, changed, kept)
            reply = self._attacked(job, chunk, reply, own, shared, ticket.t)
            sent = 0 if self.conditions.protection is not None else size_of(reply)  # else its sums are counted
            cost = Cost(int(site.work.gradients.sum()), int(site.work.evaluations.sum()), bytes_up=sent)
            facts = self.guards.look(reply, kinds, site.data.sizes, None if centers is None else len(centers))
            replies.put(part, blank(reply, [*facts.refused]) if facts.refused.keys() - lost.keys() else reply)
            return cost, (len(part), merged(facts, lost)), Released() if noise is None else noise.released

        done = self._chunks(len(rows), work, rows)
        cost = sum((cost for cost, _, _ in done), Cost())
        facts = Facts.join([facts for _, facts, _ in done])
        return JobResult(cost, replies, facts, Released.most(released for _, _, released in done))

    def _points(self, t: int) -> ClientData:
        """Return the training points of a round."""
        return self.before[0] if self.before is not None and t < self.before[1] else self.data

    def _keep(self, rows: Ids, changed: Mapping[str, Tensor], kept: np.ndarray) -> None:
        """Store the changed states of the clients `rows[kept]`."""
        if len(kept) == len(rows):
            self.client_states.put(rows, changed)
        else:
            self.client_states.put(rows[kept], {name: value[torch.as_tensor(kept)] for name, value in changed.items()})

    def _without_statistics(self, reply: Reply, kinds: Mapping[str, Kind]) -> Reply:
        """Return the reply with 0 in place of statistics, where clients keep their own."""
        if not self.model.local_statistics:
            return reply
        none = self.training.model.layout.size - self.model.statistics
        hidden = {name: value.clone() for name, value in reply.items() if kinds[name].has_parameters}
        for value in hidden.values():
            value[..., none:] = 0
        return reply | hidden

    def _attacked(self, job: str, rows: Ids, reply: Reply, each: Reply, shared: Mapping[str, Tensor], t: int) -> Reply:
        """Return the reply with the rows of malicious clients replaced."""
        attack = self.conditions.attack
        if attack is None or not self.malicious[rows].any():
            return reply
        bad = torch.as_tensor(np.flatnonzero(self.malicious[rows]), device=self.device)
        sent = {**shared, **{name: value[bad] for name, value in each.items()}}
        draws = [generator(self.training.seed, "lie", job, t, self.names[rows[k]]) for k in bad.tolist()]
        kinds = self.algorithm.jobs[job].replies
        false = attack.reply({name: value[bad] for name, value in reply.items()}, sent, kinds, draws)
        return {name: value.index_copy(0, bad, false[name]) for name, value in reply.items()}

    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        """Return the metric of each client's personal predictions on its points in `data`; NaN where it has none.

        `state` is the server's, with only the rows of these clients in `per_client`.
        """
        data = data.to(self.device, self.training.dtype)

        def work(rows: Ids) -> Tensor:
            site, prediction = self._predicted(state, data, rows)
            points = self.model.metric.per_point(prediction[None], data.y[site.data.points][None])[0]
            return site.data.mean_by_client(points.double())

        return torch.cat(self._chunks(len(self), work))

    def personal_predictions(self, state: State, data: ClientData) -> Tensor:
        """Return what each client predicts for its points in `data`, in the order of `data.points`."""
        data = data.to(self.device, self.training.dtype)
        return torch.cat(self._chunks(len(self), lambda rows: self._predicted(state, data, rows)[1]))

    def _predicted(self, state: State, data: ClientData, rows: Ids) -> tuple[Site, Tensor]:
        """Return some clients with their points in `data`, and what they predict for these."""
        site = self._site(data, rows, 0, mine=self.client_states.take(rows))
        return site, predictions(site, self._personal(site, rows, state))

    def predict_for(self, row: int, x: Tensor, state: State) -> Tensor:
        """Return what one client predicts for inputs `x[points, ...]`."""
        y = self.data.y.new_zeros((len(x), *self.data.y.shape[1:]))
        rows = np.array([row])
        site = self._site(self.data, rows, 0, mine=self.client_states.take(rows))
        site = replace(site, data=ClientData.concat([(x, y)]))
        return predictions(site, self._personal(site, rows, state))

    def _personal(self, site: Site, rows: Ids, state: State) -> PersonalModels:
        own = state.seen_by(torch.as_tensor(rows, device=self.device))
        return self.algorithm.predict(site, self.client_states.take(rows), own)

    def _chunks(self, count: int, work: Callable[[np.ndarray], R], rows: Ids | None = None) -> list[R]:
        """Do the work on each chunk of some `rows` (default: all clients); return the results in order."""
        if not count:
            return []
        sizes = self.data.sizes.cpu().numpy()
        parts = np.split(np.arange(count), range(self.chunk, count, self.chunk))
        points = np.add.reduceat(sizes if rows is None else sizes[rows], [part[0] for part in parts])
        return in_order(work, parts, self.workers, points.tolist())

    def _store(self, count: int) -> ClientStore:
        return ClientStore(count, self.budget, folder=self.scratch, device=self.data.x.device)

    def _site(
        self, data: ClientData, rows: Ids, t: int, noise: ClientNoise | None = None, mine: ClientState | None = None
    ) -> Site:
        own = None if mine is None or not self.model.local_statistics else mine[STATISTICS].clone()
        names, training = self.named.take(rows), self.training
        hide = None if noise is None else noise.shares
        return Site(
            self.model, data.take(rows), training.solver, names, training.seed, t, training.dtype,
            work=Work.none(len(rows)), hide=hide, least_points=self.least_points, statistics=own,
            class_weights=training.class_weights, secure=self.conditions.protection is not None,
        )  # fmt: skip

    def _noise(self, rows: Ids, job: str, ticket: Ticket) -> ClientNoise | None:
        """Return the noise that hides these clients' points from the server."""
        privacy = self.conditions.privacy
        if privacy is None or not (privacy.counts or privacy.update_noise):
            return None
        names, sizes = [self.names[k] for k in rows], self.data.sizes[torch.as_tensor(rows, device=self.device)]
        labels = (self.training.seed, self.secret, job, ticket.t, ticket.question)
        return ClientNoise(privacy, max(1, self.algorithm.counting), names, sizes, labels)

    def _diverged(self, job: str, rows: Ids, values: Mapping[str, Tensor], did: str) -> dict[int, Refusal]:
        """Return the rows that are not finite, with a reason; raise instead if the run stops on divergence."""
        found: dict[int, Refusal] = {}
        for name, row in not_finite(values):
            if self.conditions.diverged == "stop":
                raise DivergedError(
                    f"client '{self.names[rows[row]]}' {did} with values that are not finite: its training "
                    f"diverged, {advice(self.algorithm.rates)}"
                )
            text = f"its training diverged in job '{job}': '{name}' is not finite"
            found.setdefault(row, Refusal(Reason.NOT_FINITE, text))
        return found


def chunk_size(model: Model, data: ClientData) -> int:
    """Return how many clients keep the working set near the cache.

    It holds w, gradient, optimizer state and a buffer, and the points twice.
    """
    if model.backend.one_client_at_a_time:
        return 1
    point = math.prod(data.x.shape[1:]) + math.prod(data.y.shape[1:]) + 1
    per_client = 4 * 5 * model.size + 2 * data.x.element_size() * point * float(data.sizes.double().mean())
    return max(1, int(CHUNK_BYTES / per_client))
