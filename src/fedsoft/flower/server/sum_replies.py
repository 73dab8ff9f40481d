"""What nodes answer in the stages of a sum, read from their messages; raises InputError for what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from fedsoft.errors import InputError
from fedsoft.flower.secagg import wire
from fedsoft.flower.secagg.messages import Confirmation, Keys, Masked, Shares, Unmasking
from fedsoft.flower.sum_request import DATA
from fedsoft.flower.wire import WireMessage

T = TypeVar("T")
U = TypeVar("U")


def keys(reply: WireMessage) -> Keys:
    return wire.keys(reply.head.get("sum"))


def shares(reply: WireMessage) -> Shares:
    return wire.shares(reply.head.get("sum"))


def masked(reply: WireMessage) -> Masked:
    return wire.masked(reply.head.get("sum"), _data(reply))


def signed(reply: WireMessage) -> tuple[Confirmation, Keys | None]:
    return wire.confirmation(reply.head.get("sum")), _next(reply, wire.keys)


def unmasked(reply: WireMessage) -> tuple[Unmasking, Shares | None]:
    return wire.unmasking(reply.head.get("sum")), _next(reply, wire.shares)


def _next(reply: WireMessage, read: Callable[[object], T]) -> T | None:
    """Return what a node sends beside, for the next keys; None where that cannot be read."""
    try:
        return read(reply.head.get("next"))
    except InputError:
        return None


def first(told: Mapping[str, tuple[T, U]]) -> dict[str, T]:
    return {party: one for party, (one, _) in told.items()}


def second(told: Mapping[str, tuple[T, U | None]]) -> dict[str, U]:
    """Return what was sent beside, as far as it could be read."""
    return {party: other for party, (_, other) in told.items() if other is not None}


def _data(reply: WireMessage) -> bytes:
    data = reply.tensors.get(DATA)
    if data is None or data.dtype != torch.uint8:
        raise InputError("numbers of a sum are missing")
    return data.numpy().tobytes()
