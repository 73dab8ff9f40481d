"""What is logged about one round, as types: in memory, in `rounds.jsonl` and in reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from fedsoft.clusters.evidence import Evidence
from fedsoft.evaluation.values import CenterUsage
from fedsoft.safety.exclusions import Exclusion
from fedsoft.safety.privacy import Spent


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One round of a run. Fields that do not apply to a run, or were not measured in this round, are None or empty.

    Arguments:
        round: counted from 1, as on screen: the record of round 1 is the first.
        last: whether it was played as the last one.
        seconds: it took.
        gradients, evaluations, bytes_down, bytes_up: the cost, summed over clients.
        selected, answered: how many clients were asked to train, and how many replies were used.
        phase: of algorithms that have phases.
        dropped, late: clients without a reply and late replies, where clients are at nodes.
        excluded, excluded_more: clients whose replies were not accepted, and how many are not named.
        changed: clients whose mixture changed.
        use, effective, apart: of each center: its share of the points, its effective number of clients, and its
            distance to the nearest other one; see `collapse.use_of`.
        centers: the metric of every center on every source; best: of the best center of each source.
        weights: for each source the mean u of the clients that have most of it.
        served: what clients make of each center, where the sources are not known.
        held_out: means over clients of metrics of their personal models on held-out points, where a callback asks.
        joined, left: clients that were not in the round before, and those that were and are no more.
        privacy: what was spent up to here.
        evidence: how well a learned prior explains the clients, where the algorithm has one.
        variation: what the differences between clients cost in loss per point, see `clusters.variation`.
        notes: what else the algorithm reports, as plain values that fit into JSON.
    """

    round: int
    last: bool
    seconds: float
    gradients: int
    evaluations: int = 0
    bytes_down: int
    bytes_up: int
    selected: int | None = None
    answered: int | None = None
    phase: str | None = None
    dropped: int | None = None
    late: int | None = None
    excluded: list[Exclusion] = field(default_factory=list)
    excluded_more: int = 0
    changed: list[str] = field(default_factory=list)
    use: list[float] = field(default_factory=list)
    effective: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    centers: list[list[float]] = field(default_factory=list)
    weights: list[list[float]] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    served: list[CenterUsage] = field(default_factory=list)
    held_out: dict[str, float] = field(default_factory=dict)
    joined: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    privacy: Spent | None = None
    evidence: Evidence | None = None
    variation: list[list[float]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Both ways."""
        return self.bytes_down + self.bytes_up

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without fields that say nothing."""
        return _adapter().dump_python(self, exclude_defaults=True)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> RoundRecord:
        """Read what `to_dict` gave; raises ValueError for a field that is missing or of another type."""
        return _adapter().validate_python(values)


@cache
def _adapter() -> TypeAdapter[RoundRecord]:
    return TypeAdapter(RoundRecord)


@dataclass(frozen=True)
class Totals:
    """What rounds took together."""

    rounds: int
    seconds: float
    gradients: int
    evaluations: int
    bytes_down: int
    bytes_up: int

    @staticmethod
    def of(records: Sequence[RoundRecord]) -> Totals:
        return Totals(
            len(records),
            sum(record.seconds for record in records),
            sum(record.gradients for record in records),
            sum(record.evaluations for record in records),
            sum(record.bytes_down for record in records),
            sum(record.bytes_up for record in records),
        )

    @property
    def bytes(self) -> int:
        """Both ways."""
        return self.bytes_down + self.bytes_up
