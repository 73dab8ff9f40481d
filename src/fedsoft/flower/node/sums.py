"""Sums at a node: replies stay here, and leave it added up, under masks. What a server asks for is checked first.

No two sums over the same reply tell it by their difference: what was opened, with which weights and over which nodes,
is on disk before it is told, over restarts.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from fedsoft.core.replies import Kind, weights_of
from fedsoft.errors import InputError
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.flower.request import Request
from fedsoft.flower.secagg import wire
from fedsoft.flower.secagg.messages import Missing
from fedsoft.flower.secagg.party import Book, Party
from fedsoft.flower.secagg.primitives import public_of
from fedsoft.flower.secagg.session import ProtocolError, Session
from fedsoft.flower.server.identity import fingerprint
from fedsoft.flower.sum_request import DATA, WEIGHTS, SumRequest, check_weights, sections_of, session_of
from fedsoft.flower.wire import WireMessage
from fedsoft.secure.coding import SHARES, coding_of
from fedsoft.secure.protection import Secure
from fedsoft.storage.atomic import write_json
from fedsoft.storage.files import read_json

FILE = "sums.json"
KEPT = 4  # asks whose replies are kept
OPEN = 64  # sums that may be under way


@dataclass
class Kept:
    """Replies that stay here.

    Arguments:
        chain: identifies them, see `chain_of`.
        job, clients: who did what.
        replies, kinds: one row for each client.
    """

    chain: str
    job: str
    clients: list[str]
    replies: Mapping[str, Tensor]
    kinds: Mapping[str, Kind]
    used: dict[str, Tensor] = field(default_factory=dict)  # weights by which an entry was opened, [R, m]


@dataclass(frozen=True)
class Identity:
    """What makes this node a party.

    Arguments:
        key: its private key, the one that Flower knows it by.
        peers: fingerprints of the nodes that its owner accepts; empty for any that the run names.
        log: the node's own.
    """

    key: ec.EllipticCurvePrivateKey
    peers: frozenset[str]
    log: Callable[[str], object]

    @property
    def name(self) -> str:
        return fingerprint(public_of(self.key))

    def accepts(self, party: str, public: bytes) -> bool:
        return fingerprint(public) == party and (not self.peers or party in self.peers)


class NodeSums:
    """The sums of one run at this node.

    Arguments:
        folder: of the run's memory.
        secure: what the run asks for.
        identity: of this node.
    """

    def __init__(self, folder: Path, secure: Secure, identity: Identity) -> None:
        self.folder, self.secure, self.identity = folder, secure, identity
        self.kept: OrderedDict[tuple[int, int, int], Kept] = OrderedDict()
        self.parties: OrderedDict[bytes, tuple[Party, list[Tensor]]] = OrderedDict()
        self.told: OrderedDict[str, WireMessage] = OrderedDict()
        self.seen = frozenset[str]()
        path = folder / FILE
        self.opened: dict[str, list[str]] = dict(read_json(path)) if path.exists() else {}  # by reply and entry

    def keep(self, request: Request, kept: Kept) -> None:
        """Keep the replies of a job; the same ones again change nothing."""
        place = request.attempt, request.round, request.ask
        if place in self.kept and self.kept[place].chain == kept.chain:
            return
        self.kept[place] = kept
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)

    def answer(self, request: Request, message: WireMessage) -> WireMessage:
        """Return what this node sends in one stage; the same message again gets the same answer."""
        again = _digest(request, message)
        if again not in self.told:
            try:
                self.told[again] = self._answer(request, message)
            except (ProtocolError, InputError) as error:
                raise Refused(Refusal.SUM, str(error)) from None
            while len(self.told) > 4 * OPEN:
                self.told.popitem(last=False)
        return self.told[again]

    def _answer(self, request: Request, message: WireMessage) -> WireMessage:
        asked, kept = SumRequest.read(request.sum), self._kept(request)
        weights = message.tensors.get(WEIGHTS)
        if weights is None or asked.entry not in kept.replies or (asked.by and asked.by not in kept.replies):
            raise InputError(f"a sum of '{asked.entry}' by '{asked.by}', which job '{kept.job}' did not reply")
        check_weights(weights, asked)
        me = self.identity.name
        own = [client for client, home in zip(asked.clients, asked.homes, strict=True) if home == me]
        if kept.clients != own:
            raise InputError("the clients of this node in the sum are not those that did the job")
        rows = kept.replies[asked.entry]
        sections = sections_of(kept.kinds[asked.entry], rows[0].numel(), asked)
        session = session_of(request, asked, weights, sections, self.secure)
        self._note(session)
        if asked.stage == "keys":
            return self._begin(session, self._values(kept, asked, weights))
        if session.context not in self.parties:
            raise ProtocolError("this node does not know of the sum")
        party, values = self.parties[session.context]
        if asked.stage == "shares":
            return WireMessage({"sum": wire.plain(party.share(wire.roster(asked.message)))}, {})
        if asked.stage == "numbers":
            sent = party.mask(wire.delivery(asked.message), values)
            data = torch.from_numpy(np.frombuffer(sent.data, dtype=np.uint8).copy())
            return WireMessage({"sum": wire.plain(sent)}, {DATA: data})
        missing = wire.missing(asked.message)
        self._check_opening(kept, asked, weights, missing)
        return WireMessage({"sum": wire.plain(party.unmask(missing))}, {})

    def _begin(self, session: Session, values: list[Tensor]) -> WireMessage:
        party = Party(session, self.identity.name, self.identity.key, self.identity.accepts, Book())
        self.parties[session.context] = party, values
        while len(self.parties) > OPEN:
            self.parties.popitem(last=False)
        return WireMessage({"sum": wire.plain(party.advertise())}, {})

    def _values(self, kept: Kept, asked: SumRequest, weights: Tensor) -> list[Tensor]:
        """Return the coded sums over the clients of this node."""
        rows, kind = kept.replies[asked.entry], kept.kinds[asked.entry]
        own = torch.tensor([asked.clients.index(client) for client in kept.clients])
        shares, more = weights[:, own], []
        if asked.by:
            shares = weights_of(kept.replies[asked.by], asked.count, shares[0]).clamp(0, 1)
            more = [SHARES.coded_sum(torch.ones(len(own), 1), shares).total.flatten()]
        found = coding_of(kind).coded_sum(rows.reshape(len(rows), -1), shares)
        return [found.total.flatten(), torch.tensor([found.clipped]), *more]

    def _check_opening(self, kept: Kept, asked: SumRequest, weights: Tensor, missing: Missing) -> None:
        """Raise where this sum, beside those opened before, would tell too much of a client here; else note it.

        The same sum again, over the same nodes, tells nothing new: a run that is resumed asks for it.
        """
        present = torch.tensor([home in missing.present for home in asked.homes])
        now, mark = weights * present, f"{kept.chain} {asked.entry}"
        told = hashlib.sha256(f"{asked.by} {asked.count} {now.tolist()}".encode()).hexdigest()
        before = self.opened.get(mark, [])
        if told in before:
            return
        used = kept.used.get(asked.entry)
        if before and (asked.by or used is None):
            raise ProtocolError(f"another sum of '{asked.entry}' of this reply was opened before")
        together = now if used is None else torch.cat([used, now])
        self.secure.check_weights(together, asked.homes)
        if not asked.by:  # beside weights of the clients' own, nothing else is opened of an entry
            kept.used[asked.entry] = together
        self.opened[mark] = [*before, told]
        write_json(self.folder / FILE, self.opened)

    def _kept(self, request: Request) -> Kept:
        place = request.attempt, request.round, request.ask
        if place not in self.kept or self.kept[place].job != request.job:
            raise ProtocolError(f"no replies of job '{request.job}' of round {request.round} are kept here")
        return self.kept[place]

    def _note(self, session: Session) -> None:
        """Write to the owner's log with whom this node sums."""
        parties = frozenset(session.parties)
        if strangers := sorted(parties - self.identity.peers) if self.identity.peers else []:
            raise ProtocolError(f"node {strangers[0]} is not in 'peers' of this node's file")
        if parties != self.seen:
            self.seen = parties
            self.identity.log(f"sums with {len(parties)} nodes: {', '.join(sorted(parties))}")


def _digest(request: Request, message: WireMessage) -> str:
    head, body = WireMessage(request.head(), message.tensors).packed()
    return hashlib.sha256(head.encode() + body).hexdigest()
