"""The head of a message from the server to a node: built by the server, checked field by field by the node."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from fedsoft.errors import InputError
from fedsoft.flower.jobs import MARK

Number = Annotated[int, Field(ge=0, lt=2**31)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class Request(pydantic.BaseModel):
    """One request to a node.

    Arguments:
        kind: `hello` (which clients are here), `job`, `sum` of the replies to one, or `scores` of the personal models.
        experiment: a name for the run, under which the node keeps its clients' memory.
        attempt: counts the starts of the server.
        begun: whether the run has begun, so that the node must know its clients already.
        spec: the run as plain values.
        job, round, ask: the job, its round, and the number of the algorithm's ask within it.
        clients: who does it.
        chunk: how many clients are stacked together; default: the node's choice.
        past: marks of all jobs before, where replies leave as sums only; see `jobs`.
        sum: a stage of a sum, see `sum_request`.
    """

    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="forbid")

    kind: Literal["hello", "job", "sum", "scores"]
    experiment: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}$")]
    attempt: Number
    begun: bool = False
    spec: dict[str, Any]
    job: Annotated[str, Field(max_length=100)] = ""
    round: Number = 0
    ask: Number = 0
    clients: list[Name] = Field(default_factory=list)
    chunk: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    past: list[Annotated[str, Field(max_length=MARK)]] = Field(default_factory=list)
    sum: dict[str, Any] = Field(default_factory=dict)

    @staticmethod
    def read(head: dict[str, Any]) -> Request:
        """Read the head of a message; raises InputError for anything else."""
        try:
            found = Request(**head)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"][:2])
            raise InputError(f"the head of the message has a wrong '{where[:100]}': {first['msg']}") from None
        except TypeError as error:
            raise InputError(f"the head of the message is malformed: {error}") from None
        if len(set(found.clients)) != len(found.clients):
            raise InputError("the head of the message names a client twice")
        return found

    def head(self, clients: list[str] | None = None) -> dict[str, Any]:
        """Return the fields that were given, for some clients."""
        given = self.model_dump(exclude_unset=True)
        return given if clients is None else given | {"clients": clients}

    @property
    def about(self) -> dict[str, Any]:
        """Kind, job, ask and the stage of a sum, for logs."""
        found = {key: getattr(self, key) for key in ("kind", "job", "ask") if key in self.model_fields_set}
        return found | ({"stage": self.sum["stage"]} if "stage" in self.sum else {})
