"""The server's side of a federation: carries the asks of an algorithm to nodes, and their replies back.

Clients are found by name: every node names those it holds. Replies are checked before they are used. A client that does
not answer in time, refuses, or is not accepted is dropped for this ask, and named in `federation.jsonl` in the run's
folder; `wire.jsonl` beside it lists every message. What clients keep stays with them: the run's saved state holds none
of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsoft.core.class_weights import BALANCED
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_metrics import ClientMetric
from fedsoft.core.contract import State, Training
from fedsoft.core.federation import Federation
from fedsoft.core.replies import Answer, Ids, Reply
from fedsoft.engine.base import Engine
from fedsoft.engine.client_store import Budget, ClientRows, ClientStore
from fedsoft.engine.cost import size_of
from fedsoft.engine.resources import Resources
from fedsoft.errors import InputError
from fedsoft.flower.request import Request
from fedsoft.flower.server.attempt import Attempt
from fedsoft.flower.server.event_log import EventLog
from fedsoft.flower.server.exchange import Content, Exchange, Transport
from fedsoft.flower.server.expected_replies import Expectation, Expected
from fedsoft.flower.server.identity import homes
from fedsoft.flower.server.node_registry import POINTS, NodeRegistry
from fedsoft.flower.server.reply_validator import ReplyValidator
from fedsoft.flower.server.score_replies import ScoreReplies, score_content
from fedsoft.flower.server.sums import Asked, RemoteRows, SumExchange
from fedsoft.flower.server.terms import QuorumError
from fedsoft.flower.submission import Submission
from fedsoft.flower.sum_request import least_clients, mark_of
from fedsoft.machine.resources import memory_size
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.exclusions import Exclusion
from fedsoft.safety.guards import Guards
from fedsoft.storage.tensorfile import Blocks


@dataclass
class _Tally:
    """What happened to clients in one round."""

    dropped: set[str] = field(default_factory=set)
    late: int = 0


class FlowerEngine(Engine):
    """All clients of a federation, at nodes that a `Transport` reaches. For other arguments see `Engine`.

    Arguments:
        transport: the way to the nodes.
        submission: the run as plain values, from which nodes build algorithm, model and solver, and its terms.
        notify: gets a sentence for each event.
    """

    saves_every_round = True

    def __init__(
        self, training: Training, federation: Federation, conditions: Conditions | None = None,
        resources: Resources | None = None, *, transport: Transport, submission: Submission,
        notify: Callable[[str], object] = print,
    ) -> None:  # fmt: skip
        resources = resources or Resources()
        if (conditions is not None and conditions.attack is not None) or federation.before is not None:
            raise InputError(
                "engine 'flower' has real clients: [attack] and data that changes are for 'local' and 'ray'"
            )
        if submission.spec.get("class_weights") == "balanced":
            raise InputError(BALANCED)
        super().__init__(training, federation, conditions, resources)
        spec, terms = submission.spec, submission.terms
        self.federation, self.transport, self.spec, self.terms = federation, transport, spec, terms
        self.chunk, self.budget = resources.chunk, Budget(memory_size(resources.memory))
        # Clients are not trusted here: their norms are checked even if the run does not ask for it. Not beside `clip`:
        # there one client could change who else is left out, and so a center by more than is stated.
        self.private = self.conditions.privacy is not None and self.conditions.privacy.clip > 0
        norm = 0.0 if self.private or self.secure else self.conditions.guard or terms.norm
        self.guards = Guards.of(norm, self.algorithm, self.model.size)
        self.validator = ReplyValidator(self.guards)
        sizes = dict(zip(self.names, self.sizes.tolist(), strict=True)) if len(federation.train.x) else {}
        self.log = EventLog(notify)
        most = int(spec["dataset"].get("most_points", POINTS))
        owners = homes(spec, self.names, submission.keys)
        self.registry = NodeRegistry(self.names, sizes, owners, most, transport, terms, self.log)
        self.exchange = Exchange(transport, terms, self.registry.sizes, self.log)
        secure = self.conditions.protection
        self.expected = Expected(training, federation, self.conditions.privacy, secure=secure)
        self.sums = None if secure is None else SumExchange(transport, terms, self.log, secure)
        self.folder: Path | None = None
        self.begun = False  # whether all nodes must have their clients' memory
        self.experiment = f"run-{secrets.token_hex(8)}"
        self.tally = _Tally()
        self.scored: tuple[State, dict[str, Tensor]] | None = None

    # --- the run ------------------------------------------------------------------------------------------------------

    @property
    @override
    def client_states(self) -> ClientRows:
        return ClientStore(0, self.budget)  # nothing: it stays with the clients

    @override
    def use_folder(self, folder: Path) -> None:
        """Nodes keep memory under the name of the experiment; every start of the server is a new attempt at it."""
        self.folder = self.log.folder = folder
        known = Attempt.following(folder)
        self.experiment, self.secret, self.log.attempt = known.experiment, known.secret, known.attempt
        self.registry.sizes |= known.sizes
        if self.sums is not None:
            self.sums.jobs = [*known.jobs]
        self._remember()

    def _remember(self) -> None:
        if self.folder is not None:
            jobs = () if self.sums is None else tuple(self.sums.jobs)
            Attempt(self.experiment, self.log.attempt, self.registry.sizes, self.secret, jobs).write(self.folder)

    @override
    def init_clients(self) -> None:
        self._assemble()
        self.begun = True

    @override
    def restore(self, saved: Blocks) -> None:
        """Nodes have their clients' memory, and go back to the beginning of the round that is asked for."""
        if saved.forms:
            raise InputError("this run was begun by another engine, which saved what its clients keep: use that one")
        self.begun = True
        self._assemble()

    @override
    def begin_round(self, state: State, t: int, last: bool = False) -> None:
        super().begin_round(state, t, last)
        self.tally, self.scored, self.log.t = _Tally(), None, t
        if self.sums is not None:
            self.sums.go_to(t)

    @override
    def round_notes(self) -> dict[str, Any]:
        return super().round_notes() | {"dropped": len(self.tally.dropped), "late": self.tally.late}

    # --- asking -------------------------------------------------------------------------------------------------------

    @override
    def send(self, job: str, ids: Ids, each: Reply, shared: Mapping[str, Tensor]) -> Answer:
        if not len(ids):
            return Answer(ids, {})
        right = self.expected.of(job, shared, each, self.t)
        self.released = self.released.plus(right.released)
        clients = [self.names[k] for k in ids]
        content = Content(
            {f"shared/{name}": value for name, value in shared.items()},
            {f"each/{name}": value for name, value in each.items()},
            {client: row for row, client in enumerate(clients)},
        )
        about: dict[str, Any] = {"job": job, "round": self.t, "ask": self.asks}
        if self.sums is not None:
            about["past"] = self.sums.note(job, self.t, shared)
            self._remember()
        sent = right if self.sums is None else replace(right, forms=())  # replies stay at the nodes, and are summed
        good = self._ask_enough(self._request("job", **about), clients, content, sent)
        places = {self.names[k]: int(k) for k in ids}
        found = sorted((places[client], client) for client in good)
        if self.sums is not None:
            marks = frozenset(mark_of(value) for value in shared.values() if value.ndim > 1)
            return self._to_be_summed(self._request("sum", **about), [k for k, _ in found], right, self.sums, marks)
        return self._gathered([k for k, _ in found], [good[client] for _, client in found])

    @override
    def least(self, ids: Ids) -> int:
        assert self.sums is not None
        return least_clients([self.registry.keys[self.names[k]] for k in ids], self.sums.secure)

    def _to_be_summed(
        self, request: Request, ids: list[int], right: Expectation, sums: SumExchange, marks: frozenset[str]
    ) -> Answer:
        """Return an answer that is not here: its rows can only be summed. `marks`: of what was sent, see `mark_of`."""
        if not ids:
            return Answer(np.array([], dtype=np.int64), {})
        clients, keys = [self.names[k] for k in ids], self.registry.keys
        homes = [keys[client] for client in clients]
        nodes = {keys[client]: self.registry.homes[client] for client in clients}
        shapes = {name: shape for name, _, shape in right.forms}
        points = [self.registry.sizes[client] for client in clients]
        asked = Asked(sums, request, clients, homes, points, nodes, shapes, marks, sums.past)
        return Answer(np.array(ids, dtype=np.int64), {name: RemoteRows(asked, name) for name in shapes})

    def _gathered(self, ids: list[int], rows: list[dict[str, Tensor]]) -> Answer:
        if not ids:
            return Answer(np.array([], dtype=np.int64), {})
        store = ClientStore(len(ids), self.budget, folder=self.folder, device=self.device)
        store.put(np.arange(len(ids)), {name: torch.stack([row[name] for row in rows]) for name in rows[0]})
        self.cost.bytes_up += sum(size_of(row) for row in rows)
        return Answer(np.array(ids, dtype=np.int64), {name: store.column(name) for name in store})

    def _ask_enough(
        self, request: Request, clients: list[str], content: Content, right: Expectation
    ) -> dict[str, dict[str, Tensor]]:
        """Return the rows of clients that answered and are accepted. Ask the others again while there are too few."""
        good: dict[str, dict[str, Tensor]] = {}
        bad: dict[str, str] = {}
        for _ in range(1 + self.terms.patience):
            accepted, bad = self._ask_once(
                request, [client for client in clients if client not in good], content, right
            )
            good |= accepted
            if len(good) >= self.terms.quorum * len(clients):
                break
            reason = f"{len(good)} of {len(clients)} clients answered '{request.job}'"
            self.log.event("too few", clients=[*bad], reason=reason)
        else:
            raise QuorumError(
                f"{len(good)} of {len(clients)} clients answered '{request.job}' of round {self.t}, at least "
                f"{self.terms.quorum:.0%} should: the run is saved as it was, resume it when they are back"
            )
        self.tally.dropped |= set(bad)
        return good

    def _ask_once(
        self, request: Request, clients: list[str], content: Content, right: Expectation
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, str]]:
        """Ask some clients once; return the accepted rows, and why others have none."""
        self.registry.meet(self._request("hello"))
        groups, nowhere = self.registry.groups(clients)
        bad = dict.fromkeys(nowhere, "no node holds it")
        replies, seen = [], set()
        for node, reply, cost in self.exchange.send(request, groups, content, right):
            seen.add(node)
            if isinstance(reply, str):
                bad |= dict.fromkeys(groups[node], reply)
            else:
                replies.append(reply)
                self.cost += cost
        for node in groups.keys() - seen:
            bad |= dict.fromkeys(groups[node], f"no answer within {self.terms.timeout:g} s")
        known = None if self.clusters is None else dict(zip(self.names, self.clusters.tolist(), strict=True))
        forms, sizes = right.forms, self.registry.sizes
        good, unlikely = self.validator.sift(replies, forms, right.kinds, sizes, known, content.centers)
        bad |= {client: why.text for client, why in unlikely.items()}
        self.excluded += [Exclusion.of(client, why) for client, why in unlikely.items()]
        homes = self.registry.homes
        for client, why in bad.items():
            self.log.event("dropped", clients=[client], reason=why, node=homes.get(client), request=request)
        for node in self.transport.late():
            self.tally.late += 1
            late = [client for client, home in homes.items() if home == node]
            self.log.event("late", clients=late, node=node, reason="its answer came after the time was over")
        return good, bad

    def _request(self, kind: Literal["hello", "job", "sum", "scores"], **about: Any) -> Request:
        if self.chunk is not None:
            about["chunk"] = self.chunk
        return Request(
            kind=kind, experiment=self.experiment, attempt=self.log.attempt, begun=self.begun, spec=self.spec, **about
        )

    def _assemble(self) -> None:
        self.registry.assemble(self._request("hello"))
        if not self.private:  # else clients would depend on each other
            self.registry.check_sizes()
        self.sizes = torch.tensor([self.registry.sizes[name] for name in self.names], device=self.device)
        self._remember()

    # --- scores -------------------------------------------------------------------------------------------------------

    @override
    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        """Clients score themselves, on training and held-out points at once."""
        privacy = self.conditions.privacy
        if privacy is not None and privacy.covers_scores(self.secure):  # scores have no noise: nobody is asked
            return torch.full((len(self.names),), torch.nan, dtype=torch.float64)
        return self._scored(state)["train" if data is self.federation.train else "held_out"]

    @override
    def use_metrics(self, metrics: Sequence[ClientMetric]) -> None:
        """Nodes read the names of metrics in the run; functions of a user's own never reach them."""
        if [metric.name for metric in metrics] != list(self.spec.get("metrics", [])):
            raise InputError("metrics: nodes compute those that the run file names, and no function of your own")
        super().use_metrics(metrics)

    @override
    def personal_metrics(self, state: State, data: ClientData, metrics: Sequence[ClientMetric]) -> Tensor:
        privacy = self.conditions.privacy
        if not metrics or (privacy is not None and privacy.covers_scores(self.secure)):
            return torch.full((len(self.names), len(metrics)), torch.nan, dtype=torch.float64)
        if tuple(metrics) != self.metrics:
            raise InputError("metrics: nodes compute those that the run file names, and no others afterwards")
        return self._scored(state)["train_metrics" if data is self.federation.train else "held_out_metrics"]

    @override
    def personal_predictions(self, state: State, data: ClientData) -> Tensor:
        raise InputError("clients keep their personal models at their nodes: predict there")

    def _scored(self, state: State) -> dict[str, Tensor]:
        if self.scored is None or self.scored[0] is not state:
            self.scored = (state, self._scores(state))
        return self.scored[1]

    def _scores(self, state: State) -> dict[str, Tensor]:
        replies = ScoreReplies(self.model.metric, self.metrics)
        found = replies.blank(len(self.names))
        self.registry.meet(self._request("hello"))
        groups, _ = self.registry.groups(self.names)
        request, content = self._request("scores", round=self.t), score_content(state, self.names)
        for node, reply, _ in self.exchange.send(request, groups, content, replies.expected):
            reason = reply if isinstance(reply, str) else replies.wrong(reply)
            if reason or isinstance(reply, str):
                self.log.event("unscored", node=node, clients=groups[node], reason=reason)
                continue
            rows = torch.tensor([content.rows[client] for client in reply.clients])
            for name in found:
                found[name][rows] = reply.tensors[name]
        return found

    @override
    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        raise InputError(f"client '{self.names[k]}' keeps its personal model at its node: predict there")
