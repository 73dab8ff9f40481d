"""Sums over nodes: the server passes messages on and opens what all of them add up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedsoft.errors import InputError
from fedsoft.flower.jobs import Past, mark_of_job
from fedsoft.flower.request import Request
from fedsoft.flower.secagg import wire
from fedsoft.flower.secagg.aggregator import Aggregator, Keyring
from fedsoft.flower.secagg.messages import Delivery, Roster, Stage
from fedsoft.flower.secagg.session import ProtocolError
from fedsoft.flower.server import sum_replies as replies
from fedsoft.flower.server.event_log import EventLog
from fedsoft.flower.server.exchange import SMALL, Transport
from fedsoft.flower.server.identity import fingerprint
from fedsoft.flower.server.reply_validator import open_reply
from fedsoft.flower.server.terms import QuorumError, Terms
from fedsoft.flower.sum_request import (
    WEIGHTS,
    ZEROS,
    SumRequest,
    coded_by,
    is_possible,
    mark_of,
    sections_of,
    sent_weights,
    session_of,
)
from fedsoft.flower.wire import WireMessage
from fedsoft.secure.coding import Coded
from fedsoft.secure.protection import Secure
from fedsoft.secure.sums import Weighed
from fedsoft.secure.weighing import Weighing

T = TypeVar("T")
LONG = 8  # times the length of the head that a reply of a client may have


@dataclass
class Ring:
    """Keys that nodes have agreed on, as the server has them.

    Arguments:
        number: of them.
        keyring: the keys.
        mail: shares of them, to be delivered.
    """

    number: int
    keyring: Keyring
    mail: Mapping[str, Delivery]


@dataclass
class SumExchange:
    """The way of sums to the nodes and back.

    Arguments:
        transport, terms, log: see `Exchange`.
        secure: what is asked of sums.
        rings: the keys for the next sum, by who agreed on them.
        keys: the number of the last ones.
        jobs: of the run, each with its round: marks by which nodes see that all of them have had the same.
    """

    transport: Transport
    terms: Terms
    log: EventLog
    secure: Secure
    rings: dict[frozenset[str], Ring] = field(default_factory=dict)
    keys: int = 0
    jobs: list[tuple[int, str]] = field(default_factory=list)

    @property
    def past(self) -> Past:
        return Past.of([mark for _, mark in self.jobs])

    def note(self, job: str, t: int, shared: Mapping[str, Tensor]) -> list[str]:
        """Note a job that will be sent; return the marks of those before it."""
        before = [mark for _, mark in self.jobs]
        self.jobs.append((t, mark_of_job(job, t, shared)))
        return before

    def go_to(self, t: int) -> None:
        """Forget the jobs of this round and later ones, which are repeated."""
        self.jobs = [one for one in self.jobs if one[0] < t]

    def stage(
        self, request: Request, asked: SumRequest, weights: Tensor, down: Mapping[int, Mapping[str, Any]], body: int
    ) -> dict[int, WireMessage]:
        """Send what is passed on to each node; return what comes back."""
        messages = {}
        for node, message in down.items():
            told = asked.model_copy(update=dict(message)).model_dump()
            request = request.model_copy(update={"sum": told})
            messages[node] = WireMessage(request.head(), {WEIGHTS: weights}).packed()
            self.log.message("down", node, request, messages[node])
        found, silent = {}, set(messages)
        for node, answer in self.transport.exchange(messages, self.terms.timeout):
            silent.discard(node)
            reply = answer if isinstance(answer, str) else open_reply(answer, LONG * len(asked.homes), SMALL + body)
            if not isinstance(answer, str):
                self.log.message("up", node, request, answer)
            if isinstance(reply, str):
                self.log.event("left a sum", node=node, reason=reply, request=request)
            else:
                found[node] = reply
        for node in sorted(silent):
            reason = f"no answer within {self.terms.timeout:g} s"
            self.log.event("left a sum", node=node, reason=reason, request=request)
        return found


@dataclass
class Asked:
    """One ask whose replies stay at the nodes.

    Arguments:
        exchange: the way there.
        request: of the job.
        clients: who did it; homes: the key of the node of each; points: their numbers; nodes: Flower's number of each
            key.
        shapes: of the replies.
        marks: of what was sent with the job, see `mark_of`.
        past: the run's jobs up to this one.
    """

    exchange: SumExchange
    request: Request
    clients: list[str]
    homes: list[str]
    points: list[int]
    nodes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    marks: frozenset[str]
    past: Past
    sums: int = field(default=0, init=False)

    def opened(self, entry: str, by: str, what: Weighing) -> tuple[list[Tensor], Tensor]:
        """Return the parts of a sum, see `sections_of`, and who of the clients is in it, `[m]`."""
        number, self.sums = self.sums, self.sums + 1
        for attempt in range(1 + self.exchange.terms.patience):
            asked = SumRequest(
                stage=Stage.KEYS, number=number, attempt=attempt, entry=entry, by=by, count=len(what.weights),
                clients=self.clients, homes=self.homes, points=self.points, coded=coded_by(what.coding),
                around=mark_of(what.around), keys=0,
            )  # fmt: skip
            try:
                return self._try(asked, sent_weights(what, by), what.noise is not None)
            except ProtocolError as error:
                self.exchange.log.event("failed sum", reason=str(error), request=self.request)
        raise QuorumError(
            f"a sum of '{entry}' of round {self.request.round} could not be opened: the run is saved as it was, resume "
            "it when its nodes are back"
        )

    def _try(self, asked: SumRequest, weights: Tensor, hidden: bool) -> tuple[list[Tensor], Tensor]:
        exchange, who = self.exchange, frozenset(self.homes)
        ring = exchange.rings.pop(who, None) or self._agree(asked, weights)
        asked = asked.model_copy(update={"keys": ring.number})
        sections = sections_of(torch.Size(self.shapes[asked.entry]).numel(), asked, hidden)
        session = session_of(self.request, asked, weights, sections, exchange.secure, self.past)
        server, after = Aggregator(session, ring.keyring), self._keyring(asked, 1)
        try:
            down = {party: wire.plain(one) for party, one in ring.mail.items()}
            up = self._stage(asked, Stage.NUMBERS, weights, down, replies.masked, session.bytes)
            missing = server.missing(up)
            told = self._stage(
                asked, Stage.CHECK, weights, dict.fromkeys(missing.present, wire.plain(missing)), replies.signed
            )
            down = {party: wire.plain(one) for party, one in server.confirmed(replies.first(told)).items()}
            rosters = after.rosters(replies.second(told)) if len(replies.second(told)) == len(who) else {}
            shares = self._stage(asked, Stage.UNMASK, weights, down, replies.unmasked, rosters=rosters)
            result = server.opened(replies.first(shares))
            if not hidden and not is_possible(result, session.sections, asked):
                raise ProtocolError("the sum is one that no clients can have: a node lies, and nobody can tell which")
            if len(replies.second(shares)) == len(who):  # else they agree anew
                exchange.rings[who] = Ring(ring.number + 1, after, after.deliveries(replies.second(shares)))
        finally:
            exchange.keys = max(exchange.keys, ring.number + 1)  # no number comes twice
            self._blame(ring.keyring, after)
        return result, torch.tensor([home in server.masked for home in self.homes])

    def _keyring(self, asked: SumRequest, more: int = 0) -> Keyring:
        agreement = asked.agreement(self.request, self.exchange.secure, more)
        return Keyring(agreement, lambda party, public: fingerprint(public) == party)

    def _agree(self, asked: SumRequest, weights: Tensor) -> Ring:
        """Have nodes agree on keys in messages of their own."""
        self.exchange.keys += 1
        asked = asked.model_copy(update={"keys": self.exchange.keys})
        keyring = self._keyring(asked)
        try:
            up = self._stage(
                asked, Stage.KEYS, weights, {party: {} for party in keyring.agreement.parties}, replies.keys
            )
            down = {party: wire.plain(one) for party, one in keyring.rosters(up).items()}
            mail = keyring.deliveries(self._stage(asked, Stage.SHARES, weights, down, replies.shares))
        finally:
            self._blame(keyring)
        return Ring(asked.keys, keyring, mail)

    def _stage(
        self, asked: SumRequest, stage: Stage, weights: Tensor, down: Mapping[str, Any],
        read: Callable[[WireMessage], T], body: int = 0, rosters: Mapping[str, Roster] | None = None,
    ) -> dict[str, T]:  # fmt: skip
        """Send what is passed on; return what could be read of what comes back, by party."""
        sent: dict[int, dict[str, Any]] = {self.nodes[one]: {"message": dict(text)} for one, text in down.items()}
        for party, roster in (rosters or {}).items():
            if party in down:
                sent[self.nodes[party]]["roster"] = wire.plain(roster)
        up = self.exchange.stage(self.request, asked.model_copy(update={"stage": stage}), weights, sent, body)
        found: dict[str, T] = {}
        for party in down:
            if (reply := up.get(self.nodes[party])) is not None:
                try:
                    found[party] = read(reply)
                except InputError as error:
                    self.exchange.log.event(
                        "left a sum", node=self.nodes[party], reason=str(error), request=self.request
                    )
        return found

    def _blame(self, *rings: Keyring) -> None:
        """Write to the log who lied, and where one of two did."""
        event = self.exchange.log.event
        for ring in rings:
            for party in sorted(ring.liars):
                event("lie in a sum", node=self.nodes.get(party), reason=party, request=self.request)
            for giver, holder in sorted(ring.doubts):
                reason = f"{giver} or {holder}: what one shared is not what the other has"
                event("lie in a sum", reason=reason, request=self.request)
            ring.liars.clear()
            ring.doubts.clear()


@dataclass(frozen=True)
class RemoteRows:
    """Replies under one name, at the nodes of those that made them."""

    asked: Asked
    name: str

    def gather(self) -> Tensor:
        raise InputError(f"'{self.name}' of single clients stays at their nodes")

    def weighted(self, weights: Tensor) -> Tensor:
        raise InputError(f"'{self.name}' leaves its nodes as coded sums only")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.asked.shapes[self.name]

    def knows(self, around: Tensor) -> bool:
        """Whether nodes have what rows are to be seen from."""
        return mark_of(around) in (*self.asked.marks, ZEROS)

    def coded(self, what: Weighing) -> Coded:
        """Have the protocol played once, with weights that the server knows."""
        parts, present = self.asked.opened(self.name, "", what)
        return self._found(parts, what, present)

    def weighed(self, by: str, what: Weighing) -> Weighed:
        """Have the protocol played once, with weights of the clients' own."""
        parts, present = self.asked.opened(self.name, by, what)
        found = self._found(parts, what, present)
        told = None if what.noise is not None else Coded(parts[2].view(-1, 1), found.counts, found.share)
        return Weighed(found, told)

    def _found(self, parts: list[Tensor], what: Weighing, present: Tensor) -> Coded:
        weights = what.weights.double().cpu()
        share = 1.0 if what.noise is not None else self._share(weights, present)
        counts = parts[1] if len(parts) > 1 else torch.zeros(1, dtype=torch.int64)
        return Coded(parts[0].view(len(weights), -1), counts, share)

    def _share(self, weights: Tensor, present: Tensor) -> Tensor:
        """Return which share of each sum's weights is there, `[S]`; raise where nothing is left of one."""
        whole = weights.abs().sum(1)
        share = torch.where(whole > 0, (weights.abs() * present).sum(1) / whole.clamp(min=1e-300), 1.0)
        if bool((share <= 0).any()):
            raise QuorumError("all clients of a sum are gone: the run is saved as it was, resume it when they are back")
        return share
