"""When an ask is over and what is believed, and the way to the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Protocol

from pydantic import Field

from fedsoft.checks import settings
from fedsoft.errors import FedsoftError


class QuorumError(FedsoftError):
    """Too few clients answered, again and again. The run stays as it was saved."""


@settings
class Rules:
    """When an ask is over, and what is believed.

    Arguments:
        timeout: seconds that clients have for one ask; those that answer later are dropped.
        quorum: the share of the asked clients that must answer; those that did not are asked again.
        patience: how often they are asked again before the run is given up (it can be taken up).
        assembly: seconds that all clients have to be there at the beginning of a run.
        norm: how many times the median norm a model may have; 0 for any.
    """

    timeout: Annotated[float, Field(gt=0)] = 600.0
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.5
    patience: Annotated[int, Field(ge=0)] = 2
    assembly: Annotated[float, Field(gt=0)] = 600.0
    norm: Annotated[float, Field(ge=0)] = 5.0


class Post(Protocol):
    """Carries messages to nodes and back."""

    def nodes(self) -> set[int]:
        """The nodes that are connected."""
        ...

    def exchange(
        self, letters: Mapping[int, tuple[str, bytes]], seconds: float
    ) -> Iterator[tuple[int, tuple[str, bytes] | str]]:
        """Send to nodes; what comes back until the time is over: a head and a body, or why there is none."""
        ...

    def late(self) -> list[int]:
        """The nodes whose answers came after the time of their ask was over, since last asked."""
        ...
