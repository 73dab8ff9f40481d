"""The server of a sum: passes messages on, and opens the sum of those who are there, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from torch import Tensor

from fedsoft.flower.secagg.messages import Delivery, Keys, Masked, Missing, Roster, Shares, Unmasking
from fedsoft.flower.secagg.party import KEY, SEED, Accepts, is_genuine, pair, seed_key, told
from fedsoft.flower.secagg.primitives import KeyPair, digest, joined
from fedsoft.flower.secagg.session import ProtocolError, Session


class Aggregator:
    """The server's side of one session. Every stage takes what came; who sent nothing is missing from there on.

    Arguments:
        session: what is summed.
        accepts: whether a public key is that of the node of a party.
    """

    def __init__(self, session: Session, accepts: Accepts) -> None:
        self.session, self.accepts = session, accepts
        self.keys: Mapping[str, Keys] = {}
        self.shares: Mapping[str, Shares] = {}
        self.masked: Mapping[str, Masked] = {}
        self.liars: set[str] = set()  # whose shares were not what they had hashed, or could not be opened

    def rosters(self, keys: Mapping[str, Keys]) -> dict[str, Roster]:
        """Return to every party the keys of its neighbours."""
        keys = {name: one for name, one in keys.items() if name in self.session.parties}
        wrong = {name for name, one in keys.items() if not is_genuine(self.session, name, one, self.accepts)}
        self.liars |= wrong
        self.keys = keys = {name: one for name, one in keys.items() if name not in wrong}
        self._check(len(keys), "sent keys")
        return {name: Roster({one: keys[one] for one in self._near(name, keys)}) for name in keys}

    def deliveries(self, shares: Mapping[str, Shares]) -> dict[str, Delivery]:
        """Return to every party what its neighbours sealed for it."""
        wrong = {name for name, one in shares.items() if name in self.keys and not self._is_complete(name, one)}
        self.liars |= wrong
        self.shares = {name: one for name, one in shares.items() if name in self.keys and name not in wrong}
        self._check(len(self.shares), "sent shares")
        return {
            name: Delivery({one: self.shares[one].sealed[name] for one in self._near(name, self.shares)})
            for name in self.shares
        }

    def missing(self, masked: Mapping[str, Masked]) -> Missing:
        """Return who is present and who is missing of those that sent shares."""
        masked = {name: one for name, one in masked.items() if name in self.shares}
        wrong = {name for name, one in masked.items() if len(one.data) != self.session.bytes}
        self.liars |= wrong | {name for one in masked.values() for name in one.broken}
        self.masked = {name: one for name, one in masked.items() if name not in wrong}
        self._check(len(self.masked), "sent numbers")
        return Missing(frozenset(self.masked), frozenset(self.shares) - frozenset(self.masked))

    def opened(self, unmaskings: Mapping[str, Unmasking]) -> list[Tensor]:
        """Return the sum of those who are present, one vector for each section, modulo 2^bits."""
        unmaskings = {name: one for name, one in unmaskings.items() if name in self.masked}
        self._check(len(unmaskings), "sent shares of masks")
        session, total = self.session, self.session.zeros()
        for one in self.masked.values():
            total = [a + b for a, b in zip(total, session.unpacked(one.data), strict=True)]
        for name in self.masked:
            seed = self._secret(SEED, name, unmaskings)
            if digest(b"the seed", session.context, name.encode(), seed) != self.shares[name].seed_hash:
                self._blame(name, "seed")
            total = [a - b for a, b in zip(total, session.mask(seed_key(session, seed)), strict=True)]
        for name in self.shares.keys() - self.masked.keys():
            partners = self._near(name, self.masked)
            if not partners:
                continue
            own = KeyPair.of(self._secret(KEY, name, unmaskings))
            if own.public != self.keys[name].masking:
                self._blame(name, "key")
            for one in partners:
                noise = session.mask(own.agreed(self.keys[one].masking, *pair(session, name, one)))
                sign = 1 if one < name else -1
                total = [a - sign * b for a, b in zip(total, noise, strict=True)]
        return total

    def _secret(self, kind: bytes, name: str, unmaskings: Mapping[str, Unmasking]) -> bytes:
        """Return a secret of a party from the shares that are what the party said they would be."""
        hashes = self.shares[name].seed_hashes if kind == SEED else self.shares[name].key_hashes
        good = []
        for holder, one in unmaskings.items():
            share = (one.seeds if kind == SEED else one.keys).get(name)
            if share is None:
                continue
            if told(self.session, kind, name, holder, share) == hashes.get(holder):
                good.append(share)
            else:
                self.liars.add(holder)
        enough = self.session.enough(name)
        if len(good) < enough:
            raise ProtocolError(
                f"{len(good)} good shares of a secret of '{name}', at least {enough} are needed", sorted(self.liars)
            )
        secret = joined(good[:enough])
        if secret is None:
            self._blame(name, kind.decode())
        return secret

    def _blame(self, name: str, what: str) -> NoReturn:
        self.liars.add(name)
        raise ProtocolError(f"'{name}' shared another {what} than it used: the sum cannot be opened", [name])

    def _is_complete(self, name: str, shares: Shares) -> bool:
        """Whether there is a share for every neighbour that is there."""
        near = set(self._near(name, self.keys))
        return shares.sealed.keys() == near and shares.seed_hashes.keys() == shares.key_hashes.keys() == near | {name}

    def _near(self, name: str, among: Mapping[str, object]) -> list[str]:
        return [one for one in self.session.neighbours(name) if one in among]

    def _check(self, count: int, did: str) -> None:
        if count < self.session.least:
            raise ProtocolError(
                f"{count} of {len(self.session.parties)} parties {did}, at least {self.session.least} should have: "
                "nothing is opened, the sum can be tried again"
            )
