"""Messages of a sum as plain values for the head of a message, and back: bytes in base64, lists in order."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from fedsoft.errors import InputError
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

Plain = dict[str, Any]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _texts(data: Mapping[str, bytes]) -> Plain:
    return {name: _text(one) for name, one in data.items()}


def plain(message: Any) -> Plain:
    """Return a message as plain values; the numbers of `Masked` travel as a tensor beside them."""
    match message:
        case Keys():
            return {name: _text(value) for name, value in vars(message).items()}
        case Roster():
            return {name: plain(keys) for name, keys in message.keys.items()}
        case Shares():
            return {"sealed": _texts(message.sealed), "hashes": _texts(message.hashes)}
        case Delivery():
            return _texts(message.sealed)
        case Masked():
            seed = {"seed": plain(message.seed), "seed_hash": _text(message.seed_hash)}
            return {"broken": sorted(message.broken), **seed}
        case Missing():
            return {"present": sorted(message.present), "missing": sorted(message.missing)}
        case Confirmation():
            return {"signature": _text(message.signature)}
        case Confirmed():
            return {"signatures": _texts(message.signatures), "sealed": _texts(message.sealed)}
        case Unmasking():
            return {"seeds": _texts(message.seeds), "keys": _texts(message.keys)}
    raise TypeError(f"{type(message).__name__} is no message of a sum")


def keys(found: object) -> Keys:
    table = _table(found, {"sealing", "masking", "identity", "signature"})
    return Keys(**{name: _bytes(value) for name, value in table.items()})


def roster(found: object) -> Roster:
    return Roster({name: keys(one) for name, one in _table(found).items()})


def shares(found: object) -> Shares:
    table = _table(found, {"sealed", "hashes"})
    return Shares(_map(table["sealed"]), _map(table["hashes"]))


def delivery(found: object) -> Delivery:
    return Delivery(_map(found))


def masked(found: object, data: bytes) -> Masked:
    table = _table(found, {"broken", "seed", "seed_hash"})
    return Masked(data, shares(table["seed"]), _bytes(table["seed_hash"]), _names(table["broken"]))


def missing(found: object) -> Missing:
    table = _table(found, {"present", "missing"})
    return Missing(_names(table["present"]), _names(table["missing"]))


def confirmation(found: object) -> Confirmation:
    return Confirmation(_bytes(_table(found, {"signature"})["signature"]))


def confirmed(found: object) -> Confirmed:
    table = _table(found, {"signatures", "sealed"})
    return Confirmed(_map(table["signatures"]), _map(table["sealed"]))


def unmasking(found: object) -> Unmasking:
    table = _table(found, {"seeds", "keys"})
    return Unmasking(_map(table["seeds"]), _map(table["keys"]))


def _table(found: object, fields: set[str] | None = None) -> Plain:
    if not isinstance(found, dict) or (fields is not None and found.keys() != fields):
        raise InputError("a message of a sum is malformed")
    return found


def _bytes(found: object) -> bytes:
    try:
        return base64.b64decode(found if isinstance(found, str) else "!", validate=True)
    except (binascii.Error, ValueError):
        raise InputError("a message of a sum is malformed") from None


def _map(found: object) -> dict[str, bytes]:
    return {name: _bytes(value) for name, value in _table(found).items()}


def _names(found: object) -> frozenset[str]:
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InputError("a message of a sum is malformed")
    return frozenset(found)
