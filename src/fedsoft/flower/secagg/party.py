"""One party of a sum: what it sends in each stage, and what it refuses.

Its numbers leave it once, under one mask from a seed of its own and one with each neighbour. For each other party it
tells a share of the seed or one of the key, never both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum

from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from fedsoft.flower.secagg.messages import Delivery, Keys, Masked, Missing, Roster, Shares, Unmasking
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
from fedsoft.flower.secagg.session import ProtocolError, Session

SEED, KEY = b"seed", b"key"

Accepts = Callable[[str, bytes], bool]
"""(party, public key of a node): whether it is the key of the node of this party."""


class Stage(IntEnum):
    """What a party has done. After a stage that failed it does nothing more."""

    FAILED, NOTHING, ADVERTISED, SHARED, MASKED, UNMASKED = range(-1, 5)


class Book:
    """The sums that a party has helped to open: no other sum over the same reply, which would tell their difference."""

    def __init__(self) -> None:
        self.opened: set[str] = set()

    def check(self, session: Session) -> None:
        """Raise for a sum that was opened."""
        if session.sum in self.opened:
            raise ProtocolError(f"the sum '{session.sum}' was opened before: it is not opened again")


class Party:
    """One party in one session.

    Arguments:
        session: what it agrees to.
        name: its own.
        identity: the private key of its node.
        accepts: whether a public key is that of the node of a party, by its owner's own list or by the run's file.
        book: of all sums of this party.
    """

    def __init__(
        self, session: Session, name: str, identity: ec.EllipticCurvePrivateKey, accepts: Accepts, book: Book
    ) -> None:
        book.check(session)
        if name not in session.parties:
            raise ProtocolError(f"party '{name}' is not in this session")
        self.session, self.name, self.identity, self.accepts, self.book = session, name, identity, accepts, book
        self.sealing, self.key_secret, self.seed = KeyPair.of(draw()), draw(), draw()
        self.masking = KeyPair.of(self.key_secret)
        self.own: tuple[bytes, bytes] = (b"", b"")
        self.roster: Mapping[str, Keys] = {}
        self.held: dict[str, tuple[bytes, bytes]] = {}  # shares of others: of their seed and of their key
        self.partners: frozenset[str] = frozenset()  # with whom it has masks
        self.stage = Stage.NOTHING

    def advertise(self) -> Keys:
        """Return the keys of this session."""
        with self._stage(Stage.ADVERTISED):
            return self._advertised()

    def share(self, roster: Roster) -> Shares:
        """Return shares of both secrets for all neighbours whose keys are those of their nodes."""
        with self._stage(Stage.SHARED):
            return self._shared(roster)

    def mask(self, delivery: Delivery, values: Sequence[Tensor]) -> Masked:
        """Return the coded numbers of this party under masks."""
        with self._stage(Stage.MASKED):
            return self._masked(delivery, values)

    def _advertised(self) -> Keys:
        text = statement(self.session, self.name, self.sealing.public, self.masking.public)
        return Keys(self.sealing.public, self.masking.public, public_of(self.identity), signed(self.identity, text))

    def _shared(self, roster: Roster) -> Shares:
        session, keys = self.session, dict(roster.keys)
        near = session.neighbours(self.name)
        if strangers := sorted(keys.keys() - set(near)):
            raise ProtocolError(f"'{strangers[0]}' is no neighbour of '{self.name}'", strangers)
        for name, one in keys.items():
            if not is_genuine(session, name, one, self.accepts):
                raise ProtocolError(f"the keys of '{name}' are not signed by its node for this sum", [name])
        if len({key for one in keys.values() for key in (one.sealing, one.masking)}) < 2 * len(keys):
            raise ProtocolError("two parties have the same key", [*keys])
        holders, enough = session.holders(self.name), session.enough(self.name)
        if len(keys) + 1 < enough:
            raise ProtocolError(f"{len(keys) + 1} of {len(holders)} holders are there, at least {enough} should be")
        self.roster = keys
        dealt = {
            kind: dict(zip(holders, shared(secret, enough, len(holders)), strict=True))
            for kind, secret in ((SEED, self.seed), (KEY, self.key_secret))
        }
        self.own = dealt[SEED][self.name], dealt[KEY][self.name]
        there = [*keys, self.name]
        return Shares(
            {to: sealed(self._sealing(to), dealt[SEED][to] + dealt[KEY][to], about(session, self.name, to))
             for to in keys},
            {to: told(session, SEED, self.name, to, dealt[SEED][to]) for to in there},
            {to: told(session, KEY, self.name, to, dealt[KEY][to]) for to in there},
            digest(b"the seed", session.context, self.name.encode(), self.seed),
        )  # fmt: skip

    def _masked(self, delivery: Delivery, values: Sequence[Tensor]) -> Masked:
        session, broken = self.session, set[str]()
        if strangers := sorted(delivery.sealed.keys() - self.roster.keys()):
            raise ProtocolError(f"shares of '{strangers[0]}', who told no keys", strangers)
        for name, text in delivery.sealed.items():
            found = opened(self._sealing(name, back=True), text, about(session, name, self.name))
            if found is None or len(found) % 2:
                broken.add(name)
            else:
                self.held[name] = found[: len(found) // 2], found[len(found) // 2 :]
        self.partners = frozenset(delivery.sealed)  # also those whose shares are broken: they have the mask, too
        if len(self.held) + 1 < session.enough(self.name):
            raise ProtocolError(f"only {len(self.held)} neighbours of '{self.name}' sent shares", sorted(broken))
        total = [value + noise for value, noise in zip(values, session.mask(seed_key(session, self.seed)), strict=True)]
        for name in sorted(self.partners):
            noise = session.mask(self.masking.agreed(self.roster[name].masking, *pair(session, self.name, name)))
            sign = 1 if self.name < name else -1
            total = [value + sign * one for value, one in zip(total, noise, strict=True)]
        return Masked(session.packed(total), frozenset(broken))

    def unmask(self, missing: Missing) -> Unmasking:
        """Return a share of each neighbour: of its seed where it is present, of its key where it is missing."""
        session, near = self.session, self.partners
        if missing.present & missing.missing or not near | {self.name} <= missing.present | missing.missing:
            raise ProtocolError("the lists of who is present and who is missing do not cover everybody once")
        if self.name not in missing.present or len(missing.present) < session.least:
            raise ProtocolError(
                f"{len(missing.present)} of {len(session.parties)} parties are present: at least {session.least} "
                f"should be, with '{self.name}'"
            )
        with self._stage(Stage.UNMASKED):
            self.book.check(session)
            self.book.opened.add(session.sum)
        return Unmasking(
            {self.name: self.own[0]} | {name: self.held[name][0] for name in self.held.keys() & missing.present},
            {name: self.held[name][1] for name in self.held.keys() & missing.missing},
        )

    @contextlib.contextmanager
    def _stage(self, stage: Stage) -> Iterator[None]:
        """Do the next stage; each comes once, and in order."""
        if self.stage != stage - 1:
            raise ProtocolError(f"stage {stage.name.lower()} is not due: this party has {self.stage.name.lower()}")
        self.stage = Stage.FAILED
        yield
        self.stage = stage

    def _sealing(self, other: str, *, back: bool = False) -> bytes:
        """Return the key for shares to another party, or back from it."""
        ends = (other, self.name) if back else (self.name, other)
        return self.sealing.agreed(self.roster[other].sealing, b"sealing", about(self.session, *ends))


def statement(session: Session, name: str, sealing: bytes, masking: bytes) -> bytes:
    """Return what a node signs."""
    return digest(b"keys", session.context, name.encode(), sealing, masking)


def is_genuine(session: Session, name: str, keys: Keys, accepts: Accepts) -> bool:
    """Whether keys can be used, and are signed for this sum by the node of their party."""
    text = statement(session, name, keys.sealing, keys.masking)
    fine = accepts(name, keys.identity) and is_signed(keys.identity, keys.signature, text)
    return fine and is_key(keys.sealing) and is_key(keys.masking)


def about(session: Session, giver: str, holder: str) -> bytes:
    """Return what sealed shares are about."""
    return digest(b"shares", session.context, giver.encode(), holder.encode())


def told(session: Session, kind: bytes, giver: str, holder: str, share: bytes) -> bytes:
    """Return the hash by which a share is recognised. It hides the share, which is as good as random."""
    return digest(b"share", kind, session.context, giver.encode(), holder.encode(), share)


def pair(session: Session, one: str, other: str) -> tuple[bytes, ...]:
    """Return what the common mask of two parties is derived for."""
    return (b"mask", session.context, *(name.encode() for name in sorted((one, other))))


def seed_key(session: Session, seed: bytes) -> bytes:
    """Return the key of a party's own mask."""
    return derived(seed, b"own mask", session.context)
