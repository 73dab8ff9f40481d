"""The messages of a sum, in their order. All of them pass through the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class Stage(StrEnum):
    """The stages of a sum, in their order."""

    KEYS = "keys"
    SHARES = "shares"
    NUMBERS = "numbers"
    CHECK = "check"
    UNMASK = "unmask"


def size_of(message: Any) -> int:
    """Return the bytes of what a message says, without names of its fields."""
    if isinstance(message, bytes | str):
        return len(message)
    if isinstance(message, Mapping):
        return sum(size_of(key) + size_of(value) for key, value in message.items())
    if isinstance(message, tuple | list | frozenset):
        return sum(size_of(one) for one in message)
    return sum(size_of(getattr(message, one.name)) for one in fields(message))


# --- to agree on keys -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keys:
    """1, up: the public keys of a party, for shares and for masks, signed by the key of its node."""

    sealing: bytes
    masking: bytes
    identity: bytes  # the public key of the node, as OpenSSH writes it
    signature: bytes


@dataclass(frozen=True)
class Roster:
    """1, down: the keys of a party's neighbours, as far as they are there."""

    keys: Mapping[str, Keys]


@dataclass(frozen=True)
class Shares:
    """2, up: shares of a secret for each holder, sealed, and what they must hash to when they are told.

    Here the secret is that of the key for masks; in `Masked` it is a seed.
    """

    sealed: Mapping[str, bytes]
    hashes: Mapping[str, bytes]


@dataclass(frozen=True)
class Delivery:
    """2, down: what the neighbours of a party sealed for it."""

    sealed: Mapping[str, bytes]


# --- to sum under them ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masked:
    """3, up: the party's numbers under masks, shares of the seed of its own mask, a hash of it, and neighbours whose
    shares could not be opened."""

    data: bytes
    seed: Shares
    seed_hash: bytes
    broken: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Missing:
    """3, down: whose numbers came, and whose did not."""

    present: frozenset[str]
    missing: frozenset[str]


@dataclass(frozen=True)
class Confirmation:
    """4, up: the signature of a node under the list that it was told."""

    signature: bytes


@dataclass(frozen=True)
class Confirmed:
    """4, down: the signatures of a party's neighbours, and the shares of their seeds that they sealed for it."""

    signatures: Mapping[str, bytes]
    sealed: Mapping[str, bytes]


@dataclass(frozen=True)
class Unmasking:
    """5, up: shares of the seeds of those who are present, and of the keys of those who are missing."""

    seeds: Mapping[str, bytes]
    keys: Mapping[str, bytes]
