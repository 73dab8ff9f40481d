"""Sums at a node: replies stay here, and leave it added up, under masks. What a server asks for is checked first."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from fedsoft.core.replies import Kind, weights_of
from fedsoft.errors import InputError
from fedsoft.flower.jobs import Past, mark_of_job
from fedsoft.flower.node.openings import Kept, Openings, name_of
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.flower.request import Request
from fedsoft.flower.secagg import wire
from fedsoft.flower.secagg.messages import Stage
from fedsoft.flower.secagg.party import Book, Member, Party
from fedsoft.flower.secagg.primitives import public_of
from fedsoft.flower.secagg.session import Agreement, ProtocolError, Session
from fedsoft.flower.server.identity import fingerprint
from fedsoft.flower.sum_request import (
    DATA,
    WEIGHTS,
    ZEROS,
    SumRequest,
    check_coding,
    check_weights,
    least_clients,
    mark_of,
    sections_of,
    session_of,
)
from fedsoft.flower.wire import WireMessage
from fedsoft.safety.privacy import Privacy
from fedsoft.secure.coding import weights_coding
from fedsoft.secure.distributed import Mechanism
from fedsoft.secure.protection import LEAST, Secure
from fedsoft.secure.weighing import Noise, Weighing

KEPT = 4  # asks whose replies are kept
OPEN = 64  # sums that may be under way
TOLD = 16  # answers that are kept, to be given again
AGREEMENTS = 8  # on keys, that are kept


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
        secret: by which clients draw their noise, and round.
        privacy: the noise that clients of the run add, if any.
        least: how many nodes a sum must be of.
        most: how many sums with noise are opened: what the run states is of so many.
    """

    def __init__(
        self, folder: Path, secure: Secure, identity: Identity, secret: str, privacy: Privacy | None = None,
        least: int = LEAST, most: int = 0,
    ) -> None:  # fmt: skip
        self.secure, self.identity, self.secret, self.least = secure, identity, secret, least
        self.privacy = privacy if privacy is not None and privacy.clip else None
        self.kept: OrderedDict[tuple[int, int, int], Kept] = OrderedDict()
        self.members: OrderedDict[bytes, Member] = OrderedDict()
        self.parties: OrderedDict[bytes, Party] = OrderedDict()
        self.told: OrderedDict[str, WireMessage] = OrderedDict()
        self.seen = frozenset[str]()
        self.openings = Openings(folder, secure, least, hidden=self.privacy is not None, most=most)

    def keep(self, request: Request, kept: Kept) -> None:
        """Keep the replies of a job; the same ones again change nothing."""
        place = request.attempt, request.round, request.ask
        if place in self.kept and self.kept[place].chain == kept.chain:
            return
        self.kept[place] = kept
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)

    def past_of(self, request: Request, past: Past, each: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Past:
        """Return the run's jobs up to this one, as the server tells of them to all nodes; refuse what it may not."""
        if each:
            raise Refused(Refusal.SUM, f"{sorted(each)} are sent for each client: all should have the same")
        try:
            past.check(request.past)
        except InputError as error:
            raise Refused(Refusal.SUM, str(error)) from None
        return Past.of([*request.past, mark_of_job(request.job, request.round, shared)])

    def answer(self, request: Request, message: WireMessage) -> WireMessage:
        """Return what this node sends in one stage; the same message again gets the same answer."""
        again = _digest(request, message)
        if again not in self.told:
            try:
                self.told[again] = self._answer(request, message)
            except (ProtocolError, InputError) as error:
                raise Refused(Refusal.SUM, str(error)) from None
            while len(self.told) > TOLD:
                self.told.popitem(last=False)
        return self.told[again]

    def _answer(self, request: Request, message: WireMessage) -> WireMessage:
        asked = SumRequest.read(request.sum)
        agreement = asked.agreement(request, self.secure)
        self._note(agreement)
        if asked.stage is Stage.KEYS:
            return self._sent(self._member(agreement, new=True).advertise())
        if asked.stage is Stage.SHARES:
            return self._sent(self._member(agreement).share(wire.roster(asked.message)))
        answer = self._summed(request, asked, message.tensors.get(WEIGHTS), self._member(agreement))
        following = asked.agreement(request, self.secure, 1)
        if asked.stage is Stage.CHECK:
            answer.head["next"] = wire.plain(self._member(following, new=True).advertise())
        elif asked.stage is Stage.UNMASK and asked.roster:
            answer.head["next"] = wire.plain(self._member(following).share(wire.roster(asked.roster)))
        return answer

    def _summed(self, request: Request, asked: SumRequest, weights: Tensor | None, member: Member) -> WireMessage:
        """Answer in a stage of one sum."""
        kept, hidden = self._kept(request), self.privacy is not None
        if weights is None or asked.entry not in kept.replies or (asked.by and asked.by not in kept.replies):
            raise InputError(f"a sum of '{asked.entry}' by '{asked.by}', which job '{kept.job}' did not reply")
        if kept.kinds[asked.entry] is Kind.CHOICE:
            raise InputError(f"'{asked.entry}' is what clients weigh by: it is not summed by itself")
        whole, size = check_weights(weights, asked, hidden), kept.replies[asked.entry][0].numel()
        about = zip(asked.clients, asked.points, asked.homes, strict=True)
        own = [(client, points) for client, points, home in about if home == self.identity.name]
        if [*zip(kept.clients, kept.points, strict=True)] != own:
            raise InputError("the clients of this node in the sum, or their points, are not those that did the job")
        if not hidden:
            check_coding(asked, kept.kinds[asked.entry], size)
        session = session_of(request, asked, weights, sections_of(size, asked, hidden), self.secure, kept.past)
        if asked.stage is Stage.NUMBERS:
            return self._numbers(session, member, asked, self._values(kept, asked, weights))
        if session.context not in self.parties:
            raise ProtocolError("this node does not know of the sum")
        party = self.parties[session.context]
        if asked.stage is Stage.CHECK:
            missing = wire.missing(asked.message)
            self.openings.check(kept, asked, whole, missing)
            return self._sent(party.confirm(missing))
        return self._sent(party.unmask(wire.confirmed(asked.message)))

    def _sent(self, message: object) -> WireMessage:
        return WireMessage({"sum": wire.plain(message)}, {})

    def _member(self, agreement: Agreement, *, new: bool = False) -> Member:
        """Return this node under some keys; `new`: which are to be agreed on."""
        if new and agreement.context not in self.members:
            name, key = self.identity.name, self.identity.key
            self.members[agreement.context] = Member(agreement, name, key, self.identity.accepts)
            while len(self.members) > AGREEMENTS:
                self.members.popitem(last=False)
        if agreement.context not in self.members:
            raise ProtocolError("this node does not know of the keys of the sum")
        return self.members[agreement.context]

    def _numbers(self, session: Session, member: Member, asked: SumRequest, values: list[Tensor]) -> WireMessage:
        member.receive(wire.delivery(asked.message))
        party = self.parties[session.context] = Party(member, session, Book())
        while len(self.parties) > OPEN:
            self.parties.popitem(last=False)
        sent = party.mask(values)
        data = torch.from_numpy(np.frombuffer(sent.data, dtype=np.uint8).copy())
        return WireMessage({"sum": wire.plain(sent)}, {DATA: data})

    def _values(self, kept: Kept, asked: SumRequest, weights: Tensor) -> list[Tensor]:
        """Return the coded sums over the clients of this node, and what else `sections_of` says."""
        rows, seed = kept.replies[asked.entry], self._seed(kept, f"{asked.entry} {name_of(asked, weights)}")
        coding = replace(asked.coded.coding(), seed=seed)
        own = torch.tensor([asked.clients.index(client) for client in kept.clients])
        shares, told, more = weights[:, own].expand(asked.count, -1), None, []
        if asked.by:
            told = weights_of(kept.replies[asked.by], asked.count, None).nan_to_num().clamp(0, 1)
            fine = weights_coding(len(asked.clients), self._seed(kept, f"weights {asked.by} {weights.tolist()}"))
            more = [fine.coded_sum(torch.ones(len(own), 1), told * shares).total.flatten()]
        around, noise, keys = self._around(kept, asked), None, None
        if self.privacy is not None:
            noise = self._noise(self.privacy, kept, asked, around)
            keys = self._keys(kept, asked, weights)
        found = Weighing(coding, shares, told, around, noise, keys).sum(rows.reshape(len(rows), -1))
        return [found.total.flatten()] if noise is not None else [found.total.flatten(), found.counts, *more]

    def _seed(self, kept: Kept, what: str) -> int:
        """Return the seed of random rounding, the same for the same numbers, which nobody else knows.

        With few bits a sum would else tell of some clients on which side of a known number they are.
        """
        found = hashlib.sha256(f"rounding {self.secret} {kept.chain} {what}".encode())
        return int.from_bytes(found.digest()[:8]) % 2**62

    def _around(self, kept: Kept, asked: SumRequest) -> Tensor | None:
        """Return what rows are seen from: one of the tensors that came with the job."""
        if not asked.around:
            return None
        size = kept.replies[asked.entry][0].numel()
        if asked.around == ZEROS:
            return torch.zeros(asked.count, size, dtype=torch.float64)
        for tensor in kept.shared.values():
            if tensor.numel() == asked.count * size and mark_of(tensor) == asked.around:
                return tensor.double().reshape(asked.count, size)
        raise InputError(f"'{asked.entry}' should be seen from what was not sent with job '{kept.job}'")

    def _noise(self, privacy: Privacy, kept: Kept, asked: SumRequest, around: Tensor | None) -> Noise:
        """Return the noise of each client; raise where it would not hide them as the run says."""
        size = kept.replies[asked.entry][0].numel()
        own = bool(asked.by)
        found = Mechanism(privacy.clip, privacy.noise, asked.count, size, asked.coded.clients, own)
        if not kept.kinds[asked.entry].has_parameters or around is None:
            raise InputError(f"privacy.clip: '{asked.entry}' has no noise, and is not summed")
        if asked.coded.coding() != found.coding():
            raise InputError("privacy.clip: numbers should be coded as its noise asks for")
        return found.noise_of(least_clients(asked.homes, self.secure))

    def _keys(self, kept: Kept, asked: SumRequest, weights: Tensor) -> Tensor:
        """Return the keys of the clients' noise: the same for the same sum of the same replies, and no other."""
        about = f"{self.secret} {kept.chain} {asked.entry} {name_of(asked, weights)}"
        keys = [hashlib.sha256(f"{about} {client}".encode()).digest()[:16] for client in kept.clients]
        return torch.from_numpy(np.frombuffer(b"".join(keys), dtype="<i8").reshape(-1, 2).copy())

    def _kept(self, request: Request) -> Kept:
        place = request.attempt, request.round, request.ask
        if place not in self.kept or self.kept[place].job != request.job:
            raise ProtocolError(f"no replies of job '{request.job}' of round {request.round} are kept here")
        return self.kept[place]

    def _note(self, agreement: Agreement) -> None:
        """Write to the owner's log with whom this node sums."""
        parties = frozenset(agreement.parties)
        if strangers := sorted(parties - self.identity.peers) if self.identity.peers else []:
            raise ProtocolError(f"node {strangers[0]} is not in 'peers' of this node's file")
        if len(parties) < self.least:
            raise ProtocolError(f"a sum of {len(parties)} nodes: policy.nodes asks for {self.least}")
        if parties != self.seen:
            self.seen = parties
            self.identity.log(f"sums with {len(parties)} nodes: {', '.join(sorted(parties))}")


def _digest(request: Request, message: WireMessage) -> str:
    head, body = WireMessage(request.head(), message.tensors).packed()
    return hashlib.sha256(head.encode() + body).hexdigest()
