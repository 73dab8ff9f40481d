"""One stage of one sum, as a server asks nodes for it: what is summed over whom, with which weights, and how coded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pydantic
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.replies import Kind
from fedsoft.errors import InputError
from fedsoft.flower.jobs import Past
from fedsoft.flower.request import Name, Number, Request
from fedsoft.flower.secagg.messages import Stage
from fedsoft.flower.secagg.session import Agreement, Session
from fedsoft.secure.coding import LEVELS, WHOLE, Coding, weights_coding
from fedsoft.secure.leverage import shares_of, whole_weights
from fedsoft.secure.protection import Secure
from fedsoft.secure.weighing import Reaches, Weighing

WEIGHTS, DATA = "weights", "data"  # names of tensors
MOST_SUMS = 1000  # of one ask
ZEROS = "zeros"


class Coded(pydantic.BaseModel):
    """How numbers are coded, see `Coding`; the seed of the rounding is a matter of each node, and told to nobody."""

    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="forbid")

    bits: Annotated[int, Field(ge=4, le=64)]
    reach: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    levels: Annotated[int, Field(ge=1, le=LEVELS)]
    clients: Annotated[int, Field(ge=0, lt=2**31)]
    step: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def coding(self) -> Coding:
        """Raise where numbers of so many clients do not fit."""
        found = Coding(**self.model_dump())
        if not found.unit > 0:
            raise InputError(f"{self.bits} bits do not hold sums over {self.clients} clients")
        return found


class SumRequest(pydantic.BaseModel):
    """What nodes are asked to sum.

    Arguments:
        stage: of the protocol.
        number: of the sum within its ask; attempt: of the sum.
        entry: of the replies; by: that of the clients' own weights, empty where the server sends weights.
        count: of sums.
        clients: of all nodes, in the order of the weights; homes: the key of the node of each; points: their numbers.
        coded: how numbers are coded.
        around: a hash of what is subtracted from rows, one of the tensors that were sent with the job; empty for none.
        keys: their number. The next ones, of the same nodes, are agreed on beside the last two stages of this sum.
        message: what the server passes on; roster: for the next keys.
    """

    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="forbid")

    stage: Annotated[Stage, Field(strict=False)]
    number: Annotated[int, Field(ge=0, lt=MOST_SUMS)]
    attempt: Number
    entry: Name
    by: Annotated[str, Field(max_length=100)] = ""
    count: Annotated[int, Field(ge=1, lt=2**20)]
    clients: list[Name]
    homes: list[Name]
    points: list[Annotated[int, Field(ge=1, lt=2**41)]]
    coded: Coded
    around: Annotated[str, Field(max_length=100)] = ""
    keys: Number
    message: dict[str, Any] = Field(default_factory=dict)
    roster: dict[str, Any] = Field(default_factory=dict)

    @staticmethod
    def read(found: Mapping[str, Any]) -> SumRequest:
        """Read what a message says; raises InputError for anything else."""
        try:
            read = SumRequest(**found)
        except (pydantic.ValidationError, TypeError):
            raise InputError("the message asks for a sum in a form that is not known") from None
        if not len(read.clients) == len(set(read.clients)) == len(read.homes) == len(read.points):
            raise InputError("the message names clients of a sum twice, or without their nodes and numbers of points")
        return read

    def agreement(self, request: Request, secure: Secure, more: int = 0) -> Agreement:
        """Return the keys that this sum is under, or so many after them."""
        parties = tuple(sorted(set(self.homes)))
        return Agreement(request.experiment, f"{request.attempt} {self.keys + more}", parties, secure.threshold)


def coded_by(coding: Coding) -> Coded:
    return Coded(**{name: value for name, value in vars(coding).items() if name != "seed"})


def mark_of(around: Tensor | None) -> str:
    """Return what names a tensor that rows are seen from."""
    if around is None:
        return ""
    flat = around.detach().cpu().double().contiguous()
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest() if bool(flat.any()) else ZEROS


def session_of(
    request: Request,
    asked: SumRequest,
    weights: Tensor,
    sections: Sequence[tuple[Coding, int]],
    secure: Secure,
    past: Past,
) -> Session:
    """Return what all nodes must agree on: the run with its settings and jobs, whom and what is summed, the weights."""
    about = [
        request.spec, request.job, asked.number, asked.entry, asked.by, asked.count, asked.clients, asked.homes,
        asked.points, asked.coded.model_dump(), asked.around, list(weights.shape), past.digest,
    ]  # fmt: skip
    what = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    what.update(weights.contiguous().numpy().astype("<f8").tobytes())
    ask = request.ask * MOST_SUMS + asked.number
    return Session(
        asked.agreement(request, secure), request.round, ask, what.hexdigest(), tuple(sections), asked.attempt
    )


def sections_of(size: int, asked: SumRequest, hidden: bool) -> list[tuple[Coding, int]]:
    """Return the parts of what a node sends: its sums, counts of values, the sums of its own weights.

    `hidden`: whether clients hide their rows; then sums of weights are among the others, and nothing is counted.
    """
    coding = asked.coded.coding()
    if hidden:
        return [(coding, asked.count * (size + bool(asked.by)))]
    own = [(weights_coding(len(asked.clients)), asked.count)] if asked.by else []
    return [(coding, asked.count * size), (WHOLE, coding.levels), *own]


def is_possible(parts: Sequence[Tensor], sections: Sequence[tuple[Coding, int]], asked: SumRequest) -> bool:
    """Whether parts of a sum, see `sections_of`, can come from clients that all did what they should."""
    m, (coding, numbers), counts = len(asked.clients), sections[0], parts[1]
    fine = bool(counts.min() >= 0 and counts.max() <= numbers * m)
    if not coding.clients:
        fine &= bool(coding.decoded(parts[0]).abs().max() <= coding.reach + coding.error(m))
    if asked.by:
        weights, error = sections[2][0].decoded(parts[2]), sections[2][0].error(m)
        fine &= bool(weights.min() >= -error and weights.max() <= 1 + error)
    return fine


def check_weights(weights: Tensor, asked: SumRequest, hidden: bool) -> Tensor:
    """Return weights as whole numbers, `[count, m]`, or `[1, m]` beside those of clients; raise for others.

    Where clients hide their rows, all of them are in every sum: with fewer there would be less noise. Else they are the
    shares of equal clients, or of their points, to the last bit: see `leverage.whole_weights`.
    """
    wanted = (1 if asked.by else asked.count, len(asked.clients))
    if tuple(weights.shape) != wanted or weights.dtype != torch.float64 or not bool(torch.isfinite(weights).all()):
        raise InputError(f"weights of a sum should be {list(wanted)} of float64")
    if hidden:
        if not bool((weights == 1).all()):
            raise InputError("weights of a sum that clients hide should be 1")
        return weights
    whole = whole_weights(weights, torch.tensor(asked.points))
    if not torch.equal(weights, shares_of(whole)):
        raise InputError("weights of a sum should be shares, which sum to 1")
    return whole


def check_coding(asked: SumRequest, kind: Kind, size: int) -> None:
    """Raise for numbers that are coded in another way than all nodes would: only how far they reach is left open."""
    coding, about = asked.coded.coding(), (kind, size, asked.count, len(asked.clients), 0)
    if coding not in (Reaches().coding("", *about), Reaches({"": coding.reach}).coding("", *about)):
        raise InputError(f"'{asked.entry}' is not coded as {asked.count} sums over {len(asked.clients)} clients are")


def least_clients(homes: Sequence[str], secure: Secure) -> int:
    """Return how many clients a sum has at least: those of the smallest nodes, as many as the threshold asks for.

    >>> least_clients(["a", "a", "a", "b", "c"], Secure())
    2
    """
    sizes = sorted(homes.count(home) for home in set(homes))
    return sum(sizes[: secure.least(len(sizes))])


def sent_weights(what: Weighing, by: str) -> Tensor:
    """Return the weights that nodes are told."""
    return (what.weights[:1] if by else what.weights).double().cpu()
