"""Sums over nodes: the server passes messages on and opens what all of them add up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedsoft.core.replies import Kind
from fedsoft.errors import InputError
from fedsoft.flower.request import Request
from fedsoft.flower.secagg import wire
from fedsoft.flower.secagg.aggregator import Aggregator
from fedsoft.flower.secagg.session import ProtocolError
from fedsoft.flower.server.event_log import EventLog
from fedsoft.flower.server.exchange import SMALL, Transport
from fedsoft.flower.server.identity import fingerprint
from fedsoft.flower.server.reply_validator import open_reply
from fedsoft.flower.server.terms import QuorumError, Terms
from fedsoft.flower.sum_request import DATA, STAGES, WEIGHTS, SumRequest, sections_of, session_of
from fedsoft.flower.wire import WireMessage
from fedsoft.secure.coding import Coded, Coding
from fedsoft.secure.protection import Secure
from fedsoft.secure.sums import Weighed

LONG = 8  # times the length of the head that a reply of a client may have


@dataclass(frozen=True)
class SumExchange:
    """The way of sums to the nodes and back.

    Arguments:
        transport, terms, log: see `Exchange`.
        secure: what is asked of sums.
    """

    transport: Transport
    terms: Terms
    log: EventLog
    secure: Secure

    def stage(
        self, request: Request, asked: SumRequest, weights: Tensor, down: Mapping[int, Mapping[str, Any]], body: int
    ) -> dict[int, WireMessage]:
        """Send what is passed on to each node; return what comes back."""
        messages = {}
        for node, message in down.items():
            told = asked.model_copy(update={"message": dict(message)}).model_dump()
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
        clients: who did it; homes: the key of the node of each; nodes: Flower's number of each key.
        kinds, shapes: of the replies.
    """

    exchange: SumExchange
    request: Request
    clients: list[str]
    homes: list[str]
    nodes: Mapping[str, int]
    kinds: Mapping[str, Kind]
    shapes: Mapping[str, tuple[int, ...]]
    sums: int = field(default=0, init=False)

    def opened(self, entry: str, by: str, count: int, weights: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the parts of a sum, see `sections_of`, and who of the clients is in it, `[m]`."""
        number, self.sums = self.sums, self.sums + 1
        for attempt in range(1 + self.exchange.terms.patience):
            asked = SumRequest(
                stage="keys", number=number, attempt=attempt, entry=entry, by=by, count=count, clients=self.clients,
                homes=self.homes,
            )  # fmt: skip
            try:
                return self._try(asked, weights)
            except ProtocolError as error:
                self.exchange.log.event("failed sum", reason=str(error), request=self.request)
        raise QuorumError(
            f"a sum of '{entry}' of round {self.request.round} could not be opened: the run is saved as it was, resume "
            "it when its nodes are back"
        )

    def _try(self, asked: SumRequest, weights: Tensor) -> tuple[list[Tensor], Tensor]:
        size = torch.Size(self.shapes[asked.entry]).numel()
        sections = sections_of(self.kinds[asked.entry], size, asked)
        session = session_of(self.request, asked, weights, sections, self.exchange.secure)
        server = Aggregator(session, lambda party, public: fingerprint(public) == party)
        steps: Sequence[tuple[Callable[[WireMessage], Any], Callable[[dict[str, Any]], Any]]] = [
            (lambda reply: wire.keys(reply.head.get("sum")), server.rosters),
            (lambda reply: wire.shares(reply.head.get("sum")), server.deliveries),
            (lambda reply: wire.masked(reply.head.get("sum"), _data(reply)), server.missing),
            (lambda reply: wire.unmasking(reply.head.get("sum")), server.opened),
        ]
        down: dict[str, Any] = {party: {} for party in session.parties}
        result: Any = None
        for stage, (read, step) in zip(STAGES, steps, strict=True):
            sent = {self.nodes[party]: message for party, message in down.items()}
            body = session.bytes if stage == "numbers" else 0
            now = asked.model_copy(update={"stage": stage})
            up = self.exchange.stage(self.request, now, weights, sent, body)
            read_ones = {party: self._read(up[self.nodes[party]], read) for party in down if self.nodes[party] in up}
            result = step({party: one for party, one in read_ones.items() if one is not None})
            if stage == "numbers":
                down = dict.fromkeys(result.present, wire.plain(result))
            elif stage != "unmask":
                down = {party: wire.plain(message) for party, message in result.items()}
        for party in sorted(server.liars):
            self.exchange.log.event("lie in a sum", node=self.nodes.get(party), reason=party, request=self.request)
        present = torch.tensor([home in server.masked for home in self.homes])
        return result, present

    def _read(self, reply: WireMessage, read: Callable[[WireMessage], Any]) -> Any:
        try:
            return read(reply)
        except InputError:
            return None


def _data(reply: WireMessage) -> bytes:
    data = reply.tensors.get(DATA)
    if data is None or data.dtype != torch.uint8:
        raise InputError("numbers of a sum are missing")
    return data.numpy().tobytes()


@dataclass(frozen=True)
class RemoteRows:
    """Replies under one name, at the nodes of those that made them."""

    asked: Asked
    name: str

    def gather(self) -> Tensor:
        raise InputError(f"'{self.name}' of single clients stays at their nodes")

    def weighted(self, weights: Tensor) -> Tensor:
        raise InputError(f"'{self.name}' leaves its nodes as coded sums only")

    def coded(self, weights: Tensor, coding: Coding) -> tuple[Coded, tuple[int, ...]]:
        """Have the protocol played once, with weights that the server knows."""
        used = weights.double().cpu()
        parts, present = self.asked.opened(self.name, "", len(used), used)
        total = parts[0].view(len(used), -1)
        return Coded(total, int(parts[1]), self._share(used, present)), self.asked.shapes[self.name]

    def weighed(self, by: str, count: int, shares: Tensor, coding: Coding) -> Weighed:
        """Have the protocol played once, with weights of the clients' own."""
        known = shares.double().cpu()[None]
        parts, present = self.asked.opened(self.name, by, count, known)
        share = self._share(known, present)
        rows = Coded(parts[0].view(count, -1), int(parts[1]), share)
        return Weighed(rows, Coded(parts[2].view(count, 1), 0, share), self.asked.shapes[self.name])

    def _share(self, weights: Tensor, present: Tensor) -> Tensor:
        """Return which share of each sum's weights is there, `[S]`; raise where nothing is left of one."""
        whole = weights.abs().sum(1)
        share = torch.where(whole > 0, (weights.abs() * present).sum(1) / whole.clamp(min=1e-300), 1.0)
        if bool((share <= 0).any()):
            raise QuorumError("all clients of a sum are gone: the run is saved as it was, resume it when they are back")
        return share
