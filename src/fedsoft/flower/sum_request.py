"""One stage of one sum, as a server asks nodes for it: what is summed over whom, and with which weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.replies import Kind
from fedsoft.errors import InputError
from fedsoft.flower.request import Name, Number, Request
from fedsoft.flower.secagg.session import Session
from fedsoft.secure.coding import SHARES, WHOLE, Coding, coding_of
from fedsoft.secure.protection import Secure

STAGES = ("keys", "shares", "numbers", "unmask")
WEIGHTS, DATA = "weights", "data"  # names of tensors
MOST_SUMS = 1000  # of one ask


class SumRequest(pydantic.BaseModel):
    """What nodes are asked to sum.

    Arguments:
        stage: of the protocol.
        number: of the sum within its ask; attempt: of the sum.
        entry: of the replies; by: that of the clients' own weights, empty where the server sends weights.
        count: of sums.
        clients: of all nodes, in the order of the weights; homes: the key of the node of each.
        message: what the server passes on.
    """

    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="forbid")

    stage: Literal["keys", "shares", "numbers", "unmask"]
    number: Annotated[int, Field(ge=0, lt=MOST_SUMS)]
    attempt: Number
    entry: Name
    by: Annotated[str, Field(max_length=100)] = ""
    count: Annotated[int, Field(ge=1, lt=2**20)]
    clients: list[Name]
    homes: list[Name]
    message: dict[str, Any] = Field(default_factory=dict)

    @staticmethod
    def read(found: Mapping[str, Any]) -> SumRequest:
        """Read what a message says; raises InputError for anything else."""
        try:
            read = SumRequest(**found)
        except (pydantic.ValidationError, TypeError):
            raise InputError("the message asks for a sum in a form that is not known") from None
        if len(read.clients) != len(read.homes) or len(set(read.clients)) != len(read.clients):
            raise InputError("the message names clients of a sum twice, or without their nodes")
        return read


def session_of(
    request: Request, asked: SumRequest, weights: Tensor, sections: Sequence[tuple[Coding, int]], secure: Secure
) -> Session:
    """Return what all nodes must agree on: the run with all its settings, whom and what is summed, the weights."""
    about = [
        request.spec, request.job, asked.number, asked.entry, asked.by, asked.count, asked.clients, asked.homes,
        list(weights.shape),
    ]  # fmt: skip
    what = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    what.update(weights.contiguous().numpy().astype("<f8").tobytes())
    ask = request.ask * MOST_SUMS + asked.number
    parties = tuple(sorted(set(asked.homes)))
    return Session(
        request.experiment, request.round, ask, what.hexdigest(), parties, tuple(sections), secure.threshold,
        asked.attempt,
    )  # fmt: skip


def sections_of(kind: Kind, size: int, asked: SumRequest) -> list[tuple[Coding, int]]:
    """Return the parts of what a node sends: its sums, how many values were clipped, the sums of its own weights."""
    own = [(SHARES, asked.count)] if asked.by else []
    return [(coding_of(kind), asked.count * size), (WHOLE, 1), *own]


def check_weights(weights: Tensor, asked: SumRequest) -> None:
    """Raise for weights that are not shares of each client: `[count, m]`, or `[1, m]` beside those of clients."""
    wanted = (1 if asked.by else asked.count, len(asked.clients))
    if tuple(weights.shape) != wanted or weights.dtype != torch.float64 or not bool(torch.isfinite(weights).all()):
        raise InputError(f"weights of a sum should be {list(wanted)} of float64")
    if bool((weights.abs().sum(1) > 1 + 1e-9).any()) or (asked.by and bool((weights < 0).any())):
        raise InputError("weights of a sum should be shares, which sum to 1 at most")
