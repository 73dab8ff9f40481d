"""One party of a sum: what it sends in each stage, and what it refuses.

Its numbers leave it once, under one mask from a seed of its own and one with each neighbour. For each
other party it tells a share of the seed or one of the key, never both, and only for a list of who is there that enough
of its neighbours have signed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from fedsoft.flower.secagg.messages import (
    Confirmation,
    Confirmed,
    Delivery,
    Keys,
    Masked,
    Missing,
    Roster,
    Shares,
    Stage,
    Unmasking,
)
from fedsoft.flower.secagg.primitives import (
    KeyPair,
    derived,
    digest,
    draw,
    is_key,
    is_signed,
    opened,
    public_of,
    sealed,
    shared,
    signed,
)
from fedsoft.flower.secagg.session import Agreement, ProtocolError, Session

SEED, KEY = b"seed", b"key"

Accepts = Callable[[str, bytes], bool]
"""(party, public key of a node): whether it is the key of the node of this party."""


class Stages:
    """Each stage comes once, and in order. After one that failed nothing more is done.

    Arguments:
        order: of them.
    """

    def __init__(self, *order: Stage) -> None:
        self.order, self.done, self.failed = order, 0, False

    @contextlib.contextmanager
    def __call__(self, stage: Stage) -> Iterator[None]:
        if self.failed or stage not in self.order[self.done : self.done + 1]:
            did = "failed" if self.failed else f"done {self.done} of its stages"
            raise ProtocolError(f"stage '{stage}' is not due: this party has {did}")
        self.failed = True
        yield
        self.failed, self.done = False, self.done + 1


class Book:
    """The sums that a party has helped to open: no other sum over the same reply, which would tell their difference."""

    def __init__(self) -> None:
        self.opened: set[str] = set()

    def check(self, session: Session) -> None:
        """Raise for a sum that was opened."""
        if session.sum in self.opened:
            raise ProtocolError(f"the sum '{session.sum}' was opened before: it is not opened again")


class Member:
    """One party and the keys that it has agreed on with others.

    Arguments:
        agreement: what it agrees to.
        name: its own.
        identity: the private key of its node.
        accepts: whether a public key is that of the node of a party, by its owner's own list or by the run's file.
    """

    def __init__(self, agreement: Agreement, name: str, identity: ec.EllipticCurvePrivateKey, accepts: Accepts) -> None:
        if name not in agreement.parties:
            raise ProtocolError(f"party '{name}' is not in this session")
        self.agreement, self.name, self.identity, self.accepts = agreement, name, identity, accepts
        self.sealing, self.key_secret = KeyPair.of(draw()), draw()
        self.masking = KeyPair.of(self.key_secret)
        self.own = b""
        self.roster: Mapping[str, Keys] = {}
        self.held: dict[str, bytes] = {}  # shares of the keys of others
        self.partners: frozenset[str] = frozenset()  # with whom it has masks
        self.broken: frozenset[str] = frozenset()  # whose shares could not be opened
        self.used = False  # for a sum
        self.stages = Stages(Stage.KEYS, Stage.SHARES, Stage.NUMBERS)

    def advertise(self) -> Keys:
        """Return the keys of this agreement."""
        with self.stages(Stage.KEYS):
            text = statement(self.agreement, self.name, self.sealing.public, self.masking.public)
            return Keys(self.sealing.public, self.masking.public, public_of(self.identity), signed(self.identity, text))

    def share(self, roster: Roster) -> Shares:
        """Return shares of the key for masks for all neighbours whose keys are those of their nodes."""
        with self.stages(Stage.SHARES):
            self._check(roster.keys)
            self.roster = dict(roster.keys)
            shares, self.own = self.dealt(KEY, self.agreement.context, self.key_secret, [*self.roster])
            return shares

    def receive(self, delivery: Delivery) -> None:
        """Keep the shares of those who will have masks with this party."""
        with self.stages(Stage.NUMBERS):
            broken = set[str]()
            if strangers := sorted(delivery.sealed.keys() - self.roster.keys()):
                raise ProtocolError(f"shares of '{strangers[0]}', who told no keys", strangers)
            for name, text in delivery.sealed.items():
                found = self.read(KEY, self.agreement.context, name, text)
                if found is None:
                    broken.add(name)
                else:
                    self.held[name] = found
            # Who sent no shares that can be opened has no mask with this party: it could not be taken away again.
            self.partners, self.broken = frozenset(self.held), frozenset(broken)
            if len(self.partners) + 1 < self.agreement.enough(self.name):
                raise ProtocolError(
                    f"shares of {len(self.partners)} neighbours of '{self.name}' can be opened, at least "
                    f"{self.agreement.enough(self.name) - 1} should be", sorted(broken),
                )  # fmt: skip

    def _check(self, keys: Mapping[str, Keys]) -> None:
        agreement = self.agreement
        if strangers := sorted(keys.keys() - set(agreement.neighbours(self.name))):
            raise ProtocolError(f"'{strangers[0]}' is no neighbour of '{self.name}'", strangers)
        for name, one in keys.items():
            if not is_genuine(agreement, name, one, self.accepts):
                raise ProtocolError(f"the keys of '{name}' are not signed by its node for this sum", [name])
        mine = [self.sealing.public, self.masking.public]
        if len({*mine, *(key for one in keys.values() for key in (one.sealing, one.masking))}) < 2 * len(keys) + 2:
            raise ProtocolError("two parties have the same key", [*keys])
        holders, enough = agreement.holders(self.name), agreement.enough(self.name)
        if len(keys) + 1 < enough:
            raise ProtocolError(f"{len(keys) + 1} of {len(holders)} holders are there, at least {enough} should be")

    def dealt(self, kind: bytes, context: bytes, secret: bytes, to: Sequence[str]) -> tuple[Shares, bytes]:
        """Return shares of a secret, sealed for those who are there, and one's own."""
        holders = self.agreement.holders(self.name)
        parts = shared(secret, self.agreement.enough(self.name), len(holders))
        dealt = dict(zip(holders, parts, strict=True))
        hashes = {one: told(kind, context, self.name, one, dealt[one]) for one in (*to, self.name)}
        return Shares({one: self._sealed(kind, context, one, dealt[one]) for one in to}, hashes), dealt[self.name]

    def _sealed(self, kind: bytes, context: bytes, to: str, share: bytes) -> bytes:
        about = digest(b"shares", kind, context, self.name.encode(), to.encode())
        return sealed(self.sealing.agreed(self.roster[to].sealing, b"sealing", about), share, about)

    def read(self, kind: bytes, context: bytes, giver: str, text: bytes) -> bytes | None:
        """Return a share that was sealed for this party; None where it cannot be opened."""
        about = digest(b"shares", kind, context, giver.encode(), self.name.encode())
        return opened(self.sealing.agreed(self.roster[giver].sealing, b"sealing", about), text, about)

    @property
    def seen(self) -> bytes:
        """A hash of all keys that this party was shown, where everybody is shown all."""
        if not self.agreement.complete:
            return b""
        mine = {self.name: (self.sealing.public, self.masking.public)}
        keys = mine | {name: (one.sealing, one.masking) for name, one in self.roster.items()}
        return digest(b"keys", *(part for name in sorted(keys) for part in (name.encode(), *keys[name])))


class Party:
    """One party in one sum.

    Arguments:
        member: the party and its keys.
        session: what it agrees to.
        book: of all sums of this party.
    """

    def __init__(self, member: Member, session: Session, book: Book) -> None:
        book.check(session)
        if session.agreement != member.agreement:
            raise ProtocolError("this sum is not under the keys that were agreed on")
        if member.used:
            raise ProtocolError("the keys of this sum were used before: others should be agreed on")
        member.used = True
        self.member, self.session, self.book = member, session, book
        self.seed, self.own = draw(), b""
        self.told: Missing | None = None
        self.stages = Stages(Stage.NUMBERS, Stage.CHECK, Stage.UNMASK)

    def mask(self, values: Sequence[Tensor]) -> Masked:
        """Return the coded numbers of this party under masks."""
        with self.stages(Stage.NUMBERS):
            member, session = self.member, self.session
            seed, self.own = member.dealt(SEED, session.context, self.seed, sorted(member.partners))
            total = [a + b for a, b in zip(values, session.mask(seed_key(session, self.seed)), strict=True)]
            for name in member.partners:
                key = member.masking.agreed(member.roster[name].masking, *pair(session, member.name, name))
                sign = 1 if member.name < name else -1
                total = [a + sign * b for a, b in zip(total, session.mask(key), strict=True)]
            return Masked(session.packed(total), seed, hash_of_seed(session, member.name, self.seed), member.broken)

    def confirm(self, missing: Missing) -> Confirmation:
        """Return a signature under the list of who is there and who is not; no other list is helped from here on."""
        name, agreement, near = self.member.name, self.session.agreement, self.member.partners
        told = missing.present | missing.missing
        if missing.present & missing.missing or not near | {name} <= told <= set(agreement.parties):
            raise ProtocolError("the lists of who is present and who is missing do not cover all parties once")
        if name not in missing.present or len(missing.present) < agreement.least:
            raise ProtocolError(
                f"{len(missing.present)} of {len(agreement.parties)} parties are present: at least {agreement.least} "
                f"should be, with '{name}'"
            )
        with self.stages(Stage.CHECK):
            self.told = missing
            return Confirmation(signed(self.member.identity, listed(self.session, missing, self.member.seen)))

    def unmask(self, confirmed: Confirmed) -> Unmasking:
        """Return a share of each neighbour: of its seed where it is present, of its key where it is missing."""
        with self.stages(Stage.UNMASK):
            member, missing = self.member, self.told
            assert missing is not None
            self.book.check(self.session)
            text = listed(self.session, missing, member.seen)
            good = [
                name for name in confirmed.signatures.keys() & member.roster.keys()
                if is_signed(member.roster[name].identity, confirmed.signatures[name], text)
            ]  # fmt: skip
            enough = member.agreement.enough(member.name)
            if len(good) + 1 < enough:
                raise ProtocolError(
                    f"{len(good) + 1} parties have signed the same list of who is there, at least {enough} should have"
                )
            self.book.opened.add(self.session.sum)
        seeds = {member.name: self.own}
        for name in member.partners & missing.present & confirmed.sealed.keys():
            share = member.read(SEED, self.session.context, name, confirmed.sealed[name])
            if share is not None:
                seeds[name] = share
        return Unmasking(seeds, {name: member.held[name] for name in member.partners & missing.missing})


def statement(agreement: Agreement, name: str, sealing: bytes, masking: bytes) -> bytes:
    """Return what a node signs for its keys."""
    return digest(b"keys", agreement.context, name.encode(), sealing, masking)


def listed(session: Session, missing: Missing, seen: bytes) -> bytes:
    """Return what a node signs for a list of who is there, and for the keys that it was shown."""
    names = (sorted(one) for one in (missing.present, missing.missing))
    return digest(b"present", session.context, seen, *(digest(*(name.encode() for name in one)) for one in names))


def is_genuine(agreement: Agreement, name: str, keys: Keys, accepts: Accepts) -> bool:
    """Whether keys can be used, and are signed for this agreement by the node of their party."""
    text = statement(agreement, name, keys.sealing, keys.masking)
    fine = accepts(name, keys.identity) and is_signed(keys.identity, keys.signature, text)
    return fine and is_key(keys.sealing) and is_key(keys.masking)


def told(kind: bytes, context: bytes, giver: str, holder: str, share: bytes) -> bytes:
    """Return the hash by which a share is recognised. It hides the share, which is as good as random."""
    return digest(b"share", kind, context, giver.encode(), holder.encode(), share)


def hash_of_seed(session: Session, name: str, seed: bytes) -> bytes:
    """Return the hash by which a seed is recognised."""
    return digest(b"the seed", session.context, name.encode(), seed)


def pair(session: Session, one: str, other: str) -> tuple[bytes, ...]:
    """Return what the common mask of two parties is derived for."""
    return (b"mask", session.context, *(name.encode() for name in sorted((one, other))))


def seed_key(session: Session, seed: bytes) -> bytes:
    """Return the key of a party's own mask."""
    return derived(seed, b"own mask", session.context)
