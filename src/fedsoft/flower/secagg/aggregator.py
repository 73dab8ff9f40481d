"""The server of sums: passes messages on, and opens the sum of those who are there, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

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
    Unmasking,
)
from fedsoft.flower.secagg.party import KEY, SEED, Accepts, hash_of_seed, is_genuine, pair, seed_key, told
from fedsoft.flower.secagg.primitives import KeyPair, joined
from fedsoft.flower.secagg.session import Agreement, ProtocolError, Session


class Keyring:
    """The server's side of an agreement on keys. Who sends nothing in a stage is missing from there on.

    Arguments:
        agreement: who agrees on what.
        accepts: whether a public key is that of the node of a party.
    """

    def __init__(self, agreement: Agreement, accepts: Accepts) -> None:
        self.agreement, self.accepts = agreement, accepts
        self.keys: Mapping[str, Keys] = {}
        self.shares: Mapping[str, Shares] = {}
        self.liars: set[str] = set()  # whose messages were not what they should have been
        self.doubts: set[tuple[str, str]] = set()  # (who shared, who holds): one of them lies, nobody can tell which

    def rosters(self, keys: Mapping[str, Keys]) -> dict[str, Roster]:
        """Return to every party the keys of its neighbours."""
        keys = {name: one for name, one in keys.items() if name in self.agreement.parties}
        wrong = {name for name, one in keys.items() if not is_genuine(self.agreement, name, one, self.accepts)}
        self.liars |= wrong
        self.keys = keys = {name: one for name, one in keys.items() if name not in wrong}
        check(self.agreement, len(keys), "sent keys")
        return {name: Roster({one: keys[one] for one in self.near(name, keys)}) for name in keys}

    def deliveries(self, shares: Mapping[str, Shares]) -> dict[str, Delivery]:
        """Return to every party what its neighbours sealed for it."""
        wrong = {name for name, one in shares.items() if name in self.keys and not self._is_complete(name, one)}
        self.liars |= wrong
        self.shares = {name: one for name, one in shares.items() if name in self.keys and name not in wrong}
        check(self.agreement, len(self.shares), "sent shares")
        return {
            name: Delivery({one: self.shares[one].sealed[name] for one in self.near(name, self.shares)})
            for name in self.shares
        }

    def near(self, name: str, among: Mapping[str, object]) -> list[str]:
        return [one for one in self.agreement.neighbours(name) if one in among]

    def _is_complete(self, name: str, shares: Shares) -> bool:
        """Whether there is a share for every neighbour that is there."""
        near = set(self.near(name, self.keys))
        return shares.sealed.keys() == near and shares.hashes.keys() == near | {name}


class Aggregator:
    """The server's side of one sum.

    Arguments:
        session: what is summed.
        keyring: of those who agreed on keys.
    """

    def __init__(self, session: Session, keyring: Keyring) -> None:
        self.session, self.keyring, self.liars = session, keyring, keyring.liars
        self.masked: Mapping[str, Masked] = {}

    def missing(self, masked: Mapping[str, Masked]) -> Missing:
        """Return who is present and who is missing of those that agreed on keys."""
        there = self.keyring.shares
        masked = {name: one for name, one in masked.items() if name in there}
        wrong = {name for name, one in masked.items() if not self._is_complete(name, one)}
        self.liars |= wrong
        self.masked = {name: one for name, one in masked.items() if name not in wrong}
        check(self.session.agreement, len(self.masked), "sent numbers")
        if broken := sorted((of, name) for name, one in self.masked.items() for of in one.broken if of in self.masked):
            self.keyring.doubts |= set(broken)
            raise ProtocolError(
                f"shares of '{broken[0][0]}' could not be opened by '{broken[0][1]}', as that says: their masks do not "
                "cancel", broken[0],
            )  # fmt: skip
        return Missing(frozenset(self.masked), frozenset(there) - frozenset(self.masked))

    def confirmed(self, confirmations: Mapping[str, Confirmation]) -> dict[str, Confirmed]:
        """Return to every party what its neighbours have signed, and the shares of their seeds."""
        good = {name: one for name, one in confirmations.items() if name in self.masked}
        check(self.session.agreement, len(good), "signed who is there")
        return {
            name: Confirmed(
                {one: good[one].signature for one in self.keyring.near(name, good)},
                {one: self.masked[one].seed.sealed[name] for one in self.keyring.near(name, self.masked)
                 if name in self.masked[one].seed.sealed},
            )
            for name in good
        }  # fmt: skip

    def opened(self, unmaskings: Mapping[str, Unmasking]) -> list[Tensor]:
        """Return the sum of those who are present, one vector for each section, modulo 2^bits."""
        unmaskings = {name: one for name, one in unmaskings.items() if name in self.masked}
        session, total, keys = self.session, self.session.zeros(), self.keyring.keys
        check(session.agreement, len(unmaskings), "sent shares of masks")
        for one in self.masked.values():
            total = [a + b for a, b in zip(total, session.unpacked(one.data), strict=True)]
        for name, one in self.masked.items():
            told_ones = {holder: sent.seeds[name] for holder, sent in unmaskings.items() if name in sent.seeds}
            seed = self._secret(SEED, name, session.context, one.seed.hashes, told_ones)
            if hash_of_seed(session, name, seed) != one.seed_hash:
                self._blame(name, "seed")
            total = [a - b for a, b in zip(total, session.mask(seed_key(session, seed)), strict=True)]
        for name, shares in self.keyring.shares.items():
            partners = [one for one in self.keyring.near(name, self.masked) if name not in self.masked[one].broken]
            if name in self.masked or not partners:
                continue
            told_ones = {holder: sent.keys[name] for holder, sent in unmaskings.items() if name in sent.keys}
            own = KeyPair.of(self._secret(KEY, name, session.agreement.context, shares.hashes, told_ones))
            if own.public != keys[name].masking:
                self._blame(name, "key")
            for one in partners:
                noise = session.mask(own.agreed(keys[one].masking, *pair(session, name, one)))
                sign = 1 if one < name else -1
                total = [a - sign * b for a, b in zip(total, noise, strict=True)]
        return total

    def _secret(
        self, kind: bytes, name: str, context: bytes, hashes: Mapping[str, bytes], shares: Mapping[str, bytes]
    ) -> bytes:
        """Return a secret of a party from the shares that are what the party said they would be."""
        good = []
        for holder, share in shares.items():
            if told(kind, context, name, holder, share) == hashes.get(holder):
                good.append(share)
            elif holder == name:
                self.liars.add(name)
            else:
                self.keyring.doubts.add((name, holder))
        enough = self.session.agreement.enough(name)
        if len(good) < enough:
            raise ProtocolError(
                f"{len(good)} good shares of a secret of '{name}', at least {enough} are needed", [name]
            )
        secret = joined(good[:enough])
        if secret is None:
            self._blame(name, kind.decode())
        return secret

    def _blame(self, name: str, what: str) -> NoReturn:
        self.liars.add(name)
        raise ProtocolError(f"'{name}' shared another {what} than it used: the sum cannot be opened", [name])

    def _is_complete(self, name: str, masked: Masked) -> bool:
        """Whether numbers have the right length, and there is a share of the seed for every neighbour that is there."""
        near = set(self.keyring.near(name, self.keyring.shares)) - masked.broken
        sealed, hashes = masked.seed.sealed.keys(), masked.seed.hashes.keys()
        return len(masked.data) == self.session.bytes and sealed == near and hashes == near | {name}


def check(agreement: Agreement, count: int, did: str) -> None:
    """Raise where too few did something."""
    if count < agreement.least:
        raise ProtocolError(
            f"{count} of {len(agreement.parties)} parties {did}, at least {agreement.least} should have: "
            "nothing is opened, the sum can be tried again"
        )
