"""The server's side of a run: what stands behind `ask`, whichever way jobs reach the clients."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsoft.clusters.ensemble import Ensemble
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Draws, Names
from fedsoft.core.client_metrics import ClientMetric, Judged
from fedsoft.core.contract import State, Training
from fedsoft.core.federation import Federation
from fedsoft.core.local_solve import Work
from fedsoft.core.replies import Answer, Ids, Reply, Rows
from fedsoft.core.site import Site
from fedsoft.engine.client_host import STATISTICS
from fedsoft.engine.client_store import ClientRows
from fedsoft.engine.cost import Cost, size_of
from fedsoft.engine.job_checks import check_job
from fedsoft.engine.naming import named
from fedsoft.engine.resources import Resources
from fedsoft.errors import DivergedError, InputError, advice
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.dropouts import schedule
from fedsoft.safety.exclusions import Exclusion
from fedsoft.safety.guards import Facts, Guards, without
from fedsoft.safety.noise import HiddenRows, hidden
from fedsoft.safety.privacy import Privacy, Released, Spent
from fedsoft.safety.robust import guarded
from fedsoft.secure.distributed import Distributed, Mechanism
from fedsoft.secure.protection import Secure
from fedsoft.secure.sums import Ledger, summed
from fedsoft.secure.weighing import Reaches
from fedsoft.seeds import generator
from fedsoft.storage.tensorfile import Blocks


class Engine(abc.ABC):
    """All clients of a federation, behind `ask`. Subclasses decide where the clients are, and how to `send` them jobs.

    Arguments:
        training: what clients run.
        federation: the clients. Only jobs on their side touch their points.
        conditions: what clients may do, and what is done about it.
        resources: what may be used of the machine.
    """

    saves_every_round = False  # whether no round may be lost, because remote clients cannot go far back

    def __init__(
        self, training: Training, federation: Federation, conditions: Conditions | None = None,
        resources: Resources | None = None,
    ) -> None:  # fmt: skip
        resources, self.conditions = resources or Resources(), conditions or Conditions()
        training.algorithm.check(len(federation))
        self.training, self.algorithm, self.model = training, training.algorithm, training.model
        self.names, self.device, self.dtype = federation.names, resources.device, training.dtype
        self.named = Names.of(federation.names)  # with a hash of each
        self.dropouts = schedule(self.conditions.dropout, training.seed)
        self.sizes = federation.train.sizes.to(self.device)
        train = federation.train.take([])
        self.nobody = replace(train, x=train.x[:0], y=train.y[:0]).to(self.device, self.dtype)
        self.guards = Guards.of(self.conditions.guard, self.algorithm, self.model.size)
        self.secure = self.conditions.protection is not None
        self.released, self.asks = Released(), 0  # in this round: noisy releases; number of asks
        self.reaches = Reaches()  # of sums, as far as they are known
        self.asked, self.clipped, self.failed = 0, 0, 0  # clients of the last ask; of this round, see `round_notes`
        # Names the experiment in draws of noise, see `ClientHost`.
        further = () if training.class_weights is None else (repr(training.class_weights),)
        self.secret = named(self.algorithm, training.solver, self.conditions.privacy, self.model.size, *further)
        self.excluded: list[Exclusion] = []  # in this round
        self.clusters: np.ndarray | None = None  # of the clients, as far as the server knows
        self.t, self.last = 0, False
        self.at_hand = True  # whether client states can be reached
        self.metrics: tuple[ClientMetric, ...] = ()  # that the run asks for, beside that of the model
        self.cost: Cost = Cost()

    # --- what the algorithm may use -----------------------------------------------------------------------------------

    @property
    def everyone(self) -> Ids:
        return np.arange(len(self.names))

    def generator(self, *labels: str | int) -> np.random.Generator:
        """Return a generator of this run and round."""
        return generator(self.training.seed, *labels, self.t)

    def generators(self, *labels: str | int) -> Draws:
        """Return draws of this run and round for each client."""
        return Draws(self.training.seed, *labels, self.t, names=self.named)

    def __call__(self, job: str, ids: Ids, *, each: Reply | None = None, **shared: Tensor) -> Answer:
        """Have the clients `ids` do a job; return their answer as the algorithm may see it."""
        check_job(self.algorithm, job)
        each, self.asked = each or {}, len(ids)
        self.cost.bytes_down += len(ids) * size_of(shared) + size_of(each)
        if self.dropouts is not None and len(ids):
            present = ~self.dropouts(job, self.t, [self.names[k] for k in ids])
            ids, each = ids[present], {name: value[present] for name, value in each.items()}
        return self._released(job, self.send(job, ids, each, shared))

    def accepted(self, ids: Ids, facts: Facts, values: Mapping[str, Rows]) -> Answer:
        """Return what the clients `ids` answered, without those that the guards do not accept."""
        known = None if self.clusters is None else self.clusters[ids]
        bad = self.guards.judge(facts, self.sizes.cpu().numpy()[ids] if facts.norms else None, known)
        self.excluded += [Exclusion.of(self.names[ids[row]], bad[row]) for row in sorted(bad)]
        return without(ids, values, bad)

    def _released(self, job: str, answer: Answer) -> Answer:
        """Return an answer as the algorithm sees it: as sums, averaged by the aggregator, hidden by noise."""
        self.asks += 1
        if (secure := self.conditions.protection) is not None:
            return self._summed(job, answer, secure)
        answer, privacy = guarded(answer, self.conditions.aggregator), self.conditions.privacy
        if privacy is None or not privacy.clip:
            return answer
        kinds = self.algorithm.jobs[job].replies
        return hidden(answer, partial(self._hidden, privacy), self.model.size, kinds)

    def _summed(self, job: str, answer: Answer, secure: Secure) -> Answer:
        """Return an answer that is seen as sums only; where too few answered, nobody did."""
        if 0 < len(answer.ids) < secure.least(self.asked):
            self.failed += 1
            answer = Answer(answer.ids[:0], {})

        def spent(each: int, clipped: int) -> None:
            self.cost.bytes_up += each * len(answer.ids)
            self.clipped += clipped

        ids, noise, t, asks = answer.ids, None, self.t, self.asks
        seed = int(self.generator("rounding", asks).integers(2**62))
        if self.conditions.privacy is not None and self.conditions.privacy.clip:
            noise = Distributed(self._mechanism, self.least(ids), self._members(), self._release)

        def keys(number: int) -> Tensor:
            labels = ("share of noise", self.secret, t, asks, number)
            draws = [generator(self.training.seed, *labels, self.names[k]).integers(2**63, size=2) for k in ids]
            return torch.from_numpy(np.stack(draws))

        points = self.sizes[torch.as_tensor(ids, device=self.sizes.device)].cpu()
        ledger = Ledger(secure, spent, job, self.reaches, seed, noise, keys, points)
        return summed(answer, self.algorithm.jobs[job].replies, ledger)

    def least(self, ids: Ids) -> int:
        """Return how many clients are in a sum over these at least."""
        assert self.conditions.protection is not None
        return self.conditions.protection.least(len(ids))

    def _mechanism(self, sums: int, own: bool) -> Mechanism:
        """Return what hides clients in sums."""
        privacy = self.conditions.privacy
        assert privacy is not None
        return Mechanism(privacy.clip, privacy.noise, sums, self.model.size, len(self.names), own)

    def _members(self) -> int:
        means = self.algorithm.means(len(self.names))
        return len(self.names) if means is None else means.members

    def _release(self) -> None:
        self.released = self.released.plus(Released(centers=1))

    def _hidden(self, privacy: Privacy, rows: Rows) -> HiddenRows:
        """Return models that are seen only as noisy means; each such mean is a release."""
        means = self.algorithm.means(len(self.names))
        assert means is not None

        def release() -> Callable[[int], np.random.Generator]:
            self.released = self.released.plus(Released(centers=1))
            return partial(self.generator, "centers", self.secret, int(self.released.centers))

        return HiddenRows(rows, privacy.clip, privacy.noise, means.members, release)

    def spent(self, before: Spent | None) -> Spent | None:
        """Return the privacy guarantees after this round, given those `before` it."""
        privacy = self.conditions.privacy
        if privacy is None or not privacy.hides:
            return None
        earlier = Released() if before is None else before.released
        means = self.algorithm.means(len(self.names))
        shared = self.secure and privacy.clip > 0
        mechanism = self._mechanism(self.algorithm.center_count, self.algorithm.weighs) if shared else None
        return privacy.spent(earlier.plus(self.released), means, len(self.names), mechanism)

    # --- what the run loop uses ---------------------------------------------------------------------------------------

    def start(self) -> State:
        """Give all clients an initial state; return the server's."""
        self.init_clients()
        return self.initial_state()

    def initial_state(self) -> State:
        """Return the server's initial state; raises what the algorithm does not accept of the model."""
        state = self.algorithm.init(self._site(self.nobody, []), len(self.names))
        return replace(state, mixture=None) if self.secure else state  # nobody but a client knows its mixture

    def begin_round(self, state: State, t: int, last: bool = False) -> None:
        """Prepare for round t: reset `cost` and `excluded`."""
        self.t, self.last, self.cost = t, last, Cost()
        u = state.mixture
        self.released, self.asks, self.clipped, self.failed = Released(), 0, 0, 0
        self.excluded, self.clusters = [], None if u is None or not self.guards.norm else u.argmax(1).cpu().numpy()

    def recall(self, notes: Mapping[str, Any]) -> None:
        """Go on from the notes of the round before, see `round_notes`."""
        self.reaches = Reaches(dict(notes.get("reaches", {})))

    def round_notes(self) -> dict[str, Any]:
        """Return what to log about the round, besides the algorithm's own notes."""
        found = {"clipped_values": self.clipped, "failed_sums": self.failed, "reaches": dict(self.reaches.known)}
        return {name: count for name, count in found.items() if count}

    def round(self, state: State, t: int, last: bool = False) -> tuple[State, dict[str, Any]]:
        """Play round t; return the new state and what to log about it."""
        self.begin_round(state, t, last)
        state, notes = self.carry_out(state, t)
        return state, notes | self.round_notes()

    def carry_out(self, state: State, t: int) -> tuple[State, dict[str, Any]]:
        """Play the algorithm's part of round t, in which numbers may have grown until no matrix can be inverted."""
        try:
            return self.algorithm.round(state, t, self)
        except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
            raise DivergedError(
                f"a matrix of round {t + 1} cannot be inverted or decomposed: training diverged, "
                f"{advice(self.algorithm.rates)}"
            ) from error

    # --- what an engine is --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def send(self, job: str, ids: Ids, each: Reply, shared: Mapping[str, Tensor]) -> Answer:
        """Have the clients `ids` do a job, and return what is `accepted` of their replies. Nobody may be asked.

        `each` holds a row for each of them, `shared` is the same for all.
        """

    @property
    @abc.abstractmethod
    def client_states(self) -> ClientRows:
        """The states of all clients."""

    @abc.abstractmethod
    def use_folder(self, folder: Path) -> None:
        """Use this folder for what does not fit into memory, and for files of the run beside its saved state."""

    def restart_workers(self) -> None:  # noqa: B027 (in this process nothing is lost, and there is nothing to close)
        """Replace the workers lost with `WorkerLost`. All clients then need `start` or `restore`."""

    def close(self) -> None:  # noqa: B027
        """Release other processes and machines; clients cannot be asked afterwards."""

    @abc.abstractmethod
    def init_clients(self) -> None:
        """Give all clients an initial state."""

    @abc.abstractmethod
    def restore(self, saved: Blocks) -> None:
        """Give all clients their saved state, in place of `start`."""

    @abc.abstractmethod
    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        """Return the metric of each client's personal predictions on its points in `data`, NaN for none, `[N]`."""

    @abc.abstractmethod
    def personal_predictions(self, state: State, data: ClientData) -> Tensor:
        """Return what each client predicts for its points in `data`, in the order of `data.points`."""

    def personal_metrics(self, state: State, data: ClientData, metrics: Sequence[ClientMetric]) -> Tensor:
        """Return metrics of each client's personal predictions on its points in `data`, `[N, metrics]`.

        NaN where one is not defined.
        """
        if not metrics:
            return torch.empty((len(data), 0), dtype=torch.float64)
        judged = Judged.of(data, self.personal_predictions(state, data))
        return torch.stack([metric.values(judged) for metric in metrics], 1)

    @abc.abstractmethod
    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        """Return what client k predicts for inputs `x[points, ...]`."""

    def use_metrics(self, metrics: Sequence[ClientMetric]) -> None:
        """Score by these, too; raise if clients cannot be asked for one of them."""
        self.metrics = tuple(metrics)

    def reach_clients(self) -> None:
        """Raise if client states cannot be reached."""
        if not self.at_hand:
            raise InputError(
                "the clients of this run keep their models at the nodes of a federation: only its centers are here"
            )

    def ensemble_for(self, k: int, state: State) -> Ensemble:
        """Return what client k predicts with."""
        self.reach_clients()
        ids = np.array([k])
        none = self.sizes.new_zeros(1)
        site = self._site(replace(self.nobody, starts=none, sizes=none), [self.names[k]])
        own = state.seen_by(torch.as_tensor(ids, device=self.device))
        mine = self.client_states.take(ids)
        found = Ensemble.of(self.model, self.algorithm.predict(site, mine, own))
        statistics = mine[STATISTICS] if self.model.local_statistics else None
        return replace(found, w=self.model.with_statistics(found.w, statistics))

    def _site(self, data: ClientData, names: list[str]) -> Site:
        training = self.training
        work = Work.none(len(names))
        return Site(
            self.model, data, training.solver, names, training.seed, 0, training.dtype, work=work,
            class_weights=training.class_weights,
        )  # fmt: skip


class Factory(Protocol):
    """Makes an engine that is ready for the first round. For arguments see `Engine`."""

    def __call__(
        self, training: Training, federation: Federation, conditions: Conditions, resources: Resources
    ) -> Engine: ...
