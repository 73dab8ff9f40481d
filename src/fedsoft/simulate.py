"""The server's side of a run: what stands behind `ask`, whoever carries the questions to the clients."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsoft.centers.blend import Blend, blend_of
from fedsoft.clientdata import ClientData
from fedsoft.contract import Algorithm, Answer, Ids, Reply, Rows, Site, State, rows_of
from fedsoft.errors import InputError
from fedsoft.federation import Federation
from fedsoft.host import Cost, Host, Room, check_job, size_of
from fedsoft.local import Solver, Work
from fedsoft.model import Model
from fedsoft.seeds import generator
from fedsoft.tensorfile import Blocks
from fedsoft.trust.absence import Absent
from fedsoft.trust.attack import Attack
from fedsoft.trust.guards import Care, Facts, Guards, noted, without
from fedsoft.trust.privacy import HiddenRows, Privacy, hidden
from fedsoft.trust.robust import Rule, guarded
from fedsoft.vault import ClientRows, Vault


class Engine(abc.ABC):
    """All clients of a federation, behind `ask`. Where they are is the business of those who inherit from this.

    Arguments:
        algorithm, model, solver: what clients run.
        federation: the clients. Only what is done at their side touches their points.
        seed: of all draws.
        device, dtype: where, and in what precision, the server's state is.
        absent: tells who does not answer, for studying dropouts.
        rule: what is taken in place of the mean wherever replies are averaged.
        care: what is done about clients that fail or lie.
    """

    attacked = False  # whether some clients lie, which is what is studied
    saves_every_round = False  # whether no round may be lost, because clients elsewhere cannot go far back

    def __init__(
        self, algorithm: Algorithm, model: Model, solver: Solver, federation: Federation, *,
        seed: int, device: str = "cpu", dtype: torch.dtype = torch.float32, absent: Absent | None = None,
        rule: Rule | None = None, care: Care | None = None,
    ) -> None:  # fmt: skip
        algorithm.check(len(federation))
        self.algorithm, self.model, self.solver = algorithm, model, solver
        self.names, self.seed, self.device, self.dtype, self.absent = federation.names, seed, device, dtype, absent
        self.sizes = federation.train.sizes.to(device)
        first = federation.train.x[:1], federation.train.y[:1]
        self.one = ClientData.concat([first]).to(device, dtype)
        train = federation.train.take([])
        self.nobody = replace(train, x=train.x[:0], y=train.y[:0]).to(device, dtype)
        self.rule, self.care = rule, care or Care()
        self.guards = Guards.of(self.care, algorithm, model.size)
        self.estimations = self.releases = 0  # in this round, of counts and of centers
        self.secret = ""  # goes into noise; where others know the seed, nobody may know this
        self.excluded: list[tuple[str, str]] = []  # in this round, who was not believed, and why
        self.clusters: np.ndarray | None = None  # of the clients, as far as the server knows
        self.t, self.last = 0, False
        self.at_hand = True  # whether what clients keep can be reached
        self.cost: Cost = Cost()

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
        """Have the clients `ids` do a job."""
        check_job(self.algorithm, job)
        each = each or {}
        self.cost.bytes_down += len(ids) * size_of(shared) + size_of(each)
        if self.absent is not None and len(ids):
            present = ~self.absent(job, self.t, [self.names[k] for k in ids])
            ids, each = ids[present], {name: value[present] for name, value in each.items()}
        answer = guarded(self.carry(job, ids, each, shared), self.rule)
        privacy = self.care.privacy
        if privacy is not None and privacy.counts and job == "estimate":
            self.estimations += 1
        if privacy is None or not privacy.clip:
            return answer
        return hidden(answer, partial(self._hidden, privacy), self.model.size)

    def _hidden(self, privacy: Privacy, rows: Rows) -> HiddenRows:
        """Models of which only noisy means are seen; each such mean is a release."""
        means = privacy.means(self.algorithm, len(self.names))
        assert means is not None

        def draw(s: int) -> np.random.Generator:
            self.releases = 1  # all centers of a round are one
            return self.generator("centers", self.secret, s)

        return HiddenRows(rows, privacy.clip, privacy.noise, means.members, draw)

    def spent(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """What can be stated about privacy after this round; `before`: after the last."""
        privacy = self.care.privacy
        if privacy is None or not (privacy.counts or privacy.clip):
            return {}
        estimations = before.get("estimations", 0) + self.estimations
        releases = before.get("releases", 0) + self.releases
        means = privacy.means(self.algorithm, len(self.names))
        return {"privacy": privacy.spent(estimations, releases, means, len(self.names))}

    # --- what the run loop uses ---------------------------------------------------------------------------------------

    def start(self) -> State:
        """Enrol everybody; the server's first state."""
        self.enrol()
        site = Site(self.model, self.nobody, self.solver, [], self.seed, 0, self.dtype, work=Work.none(0))
        return self.algorithm.init(site, len(self.names))

    def round(self, state: State, t: int, last: bool = False) -> tuple[State, dict[str, Any]]:
        """Play round t; what it cost stands in `cost`."""
        self.t, self.last, self.cost = t, last, Cost()
        u = state.get("u")
        self.estimations = self.releases = 0
        self.excluded, self.clusters = [], None if u is None or not self.guards.norm else u.argmax(1).cpu().numpy()
        state, notes = self.algorithm.round(state, t, self)
        return state, notes | noted(self.excluded)

    def believed(self, ids: Ids, facts: Facts, values: Mapping[str, Rows]) -> Answer:
        """What the clients `ids` answered, without those that the guards do not believe."""
        known = None if self.clusters is None else self.clusters[ids]
        bad = self.guards.judge(facts, self.sizes.cpu().numpy()[ids] if facts.norms else None, known)
        self.excluded += [(self.names[ids[row]], why) for row, why in sorted(bad.items())]
        return without(ids, values, bad)

    # --- what an engine is --------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def memory(self) -> ClientRows:
        """What all clients keep."""

    @abc.abstractmethod
    def carry(self, job: str, ids: Ids, each: Reply, shared: Mapping[str, Tensor]) -> Answer:
        """Carry a job to clients and their replies back; adds to `cost`."""

    @abc.abstractmethod
    def use_folder(self, folder: Path) -> None:
        """Keep there what does not fit into memory, and what belongs to the run beside its saved state."""

    def mend(self) -> None:  # noqa: B027 (in this process nothing is lost, and nothing is to be closed)
        """After `WorkerLost`: bring back the places that are gone. All clients then need `start` or `restore`."""

    def close(self) -> None:  # noqa: B027
        """Let go of other processes and machines; nothing can be asked afterwards."""

    @abc.abstractmethod
    def enrol(self) -> None:
        """Give everybody a first memory."""

    @abc.abstractmethod
    def restore(self, memory: Blocks) -> None:
        """Give everybody the memory that was saved, in place of `start`."""

    @abc.abstractmethod
    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        """The metric of each client's personal predictions on its points in `data`, NaN where it has none, `[N]`."""

    @abc.abstractmethod
    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        """What client k predicts for inputs `x[points, ...]`."""

    def reach_clients(self) -> None:
        """Complain where what clients keep is out of reach."""
        if not self.at_hand:
            raise InputError(
                "the clients of this run keep their models at the nodes of a federation: only its centers are here"
            )

    def blend_for(self, k: int, state: State) -> Blend:
        """What client k predicts with."""
        self.reach_clients()
        ids = np.array([k])
        site = Site(self.model, self.one, self.solver, [self.names[k]], self.seed, 0, self.dtype, work=Work.none(1))
        shared = rows_of(state, torch.as_tensor(ids, device=self.device))
        return blend_of(self.algorithm, site, self.memory.take(ids), shared)


class Simulation(Engine):
    """All clients of a federation in this process. For arguments see `Engine` and `Room`."""

    def __init__(
        self, algorithm: Algorithm, model: Model, solver: Solver, federation: Federation, *,
        seed: int, chunk: int | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32,
        absent: Absent | None = None, workers: int | None = None, memory: int | str | None = None,
        scratch: Path | None = None, rule: Rule | None = None, attack: Attack | None = None,
        liars: Set[str] = frozenset(), care: Care | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            algorithm, model, solver, federation, seed=seed, device=device, dtype=dtype, absent=absent, rule=rule,
            care=care,
        )  # fmt: skip
        room = Room(chunk, device, workers, memory, scratch)
        self.host = Host(
            algorithm,
            model,
            solver,
            federation.train,
            federation.names,
            seed=seed,
            dtype=dtype,
            room=room,
            attack=attack,
            liars=liars,
            before=federation.before,
            change_at=federation.change_at,
            care=care,
        )

    @property
    @override
    def memory(self) -> Vault:
        return self.host.memory

    @override
    def carry(self, job: str, ids: Ids, each: Reply, shared: Mapping[str, Tensor]) -> Answer:
        cost, replies, facts = self.host.do(job, ids, each, shared, self.t)
        self.cost += cost
        return self.believed(ids, facts, {name: replies.column(name) for name in replies})

    @override
    def use_folder(self, folder: Path) -> None:
        self.host.scratch = folder

    @override
    def enrol(self) -> None:
        self.host.enrol()

    @override
    def restore(self, memory: Blocks) -> None:
        self.host.restore(memory)

    @override
    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        self.reach_clients()
        return self.host.personal_scores(state, data)

    @override
    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        self.reach_clients()
        return self.host.predict_for(k, x, state)
