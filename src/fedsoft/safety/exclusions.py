"""Replies that are not accepted, with the reason as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Diverged = Literal["stop", "drop"]
"""When a client's training diverges (values not finite): `stop` the run, or `drop` the client for this ask."""


class Reason(StrEnum):
    """Why a reply is not accepted."""

    NOT_FINITE = "not finite"
    OUT_OF_RANGE = "out of range"
    NORM = "norm"
    SHAPE = "shape"


@dataclass(frozen=True)
class Refusal:
    """Why one reply is not accepted; `text` names the part of the reply and the numbers."""

    reason: Reason
    text: str


@dataclass(frozen=True)
class Exclusion:
    """A client whose reply was not accepted in a round."""

    client: str
    reason: Reason
    text: str

    @staticmethod
    def of(client: str, refusal: Refusal) -> Exclusion:
        return Exclusion(client, refusal.reason, refusal.text)
