"""What a run came to, in numbers that need none of its clients' points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from fedsoft.evaluation.values import Scores
from fedsoft.onboarding.usual import Usual


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Arguments:
        rounds: after how many rounds it was measured.
        train, held_out: the metric of each client's personal model on its own points; None where it has none.
        shares: the true share of each source among each client's training points, where it is known.
        usual: what new clients are compared with; None where the run has no centers, or its points are at nodes.
        scores: the sums over clients; in a run's folder a file of its own.
        ended_by: the callback that ended the run, or nothing.
    """

    rounds: int
    train: list[float | None]
    held_out: list[float | None]
    shares: list[list[float]] | None
    usual: Usual | None
    scores: Scores
    ended_by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the scores."""
        return {key: value for key, value in asdict(self).items() if key != "scores"}

    @staticmethod
    def from_dict(values: Mapping[str, Any], scores: Scores) -> Outcome:
        """Read what `to_dict` gave; raises ValueError for a field that is missing or of another type."""
        usual = values.get("usual")
        read = None if usual is None else Usual.from_dict(usual)
        return _adapter().validate_python({**values, "scores": scores, "usual": read})


@cache
def _adapter() -> TypeAdapter[Outcome]:
    return TypeAdapter(Outcome)
