"""What is measured of each method of a comparison, as lists over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedsoft.evaluation.spread import Spread
from fedsoft.reports.metrics import KINDS, metric_names
from fedsoft.reports.metrics import held_out as metric_held_out
from fedsoft.reports.run_loader import Group
from fedsoft.training.records import Totals

MOST_SOURCES = 4  # with more than that, tables show the mean over sources


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One method: every value as a list over seeds; `diverged`: the seeds that did not come to their end, and why."""

    algorithm: str
    runs: list[str]
    seeds: list[int]
    best_center: list[list[float]] | None
    recovery: list[float | None]
    personal_train: list[float | None]
    personal_held_out: list[float | None]
    worst_decile: list[float | None]
    # further metrics: mean and worst decile on held-out points
    metrics: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    rounds: list[int]
    gradients_per_client: list[float]
    evaluations_per_client: list[float]
    bytes_down_per_client: list[float]
    bytes_up_per_client: list[float]
    seconds: list[float]
    diverged: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def of(group: Group, diverged: dict[int, str] | None = None) -> Measured:
        best = [scores.of_best for scores in group.scores]

        def each(cost: Callable[[Totals], float]) -> list[float]:
            return [cost(run.totals) / run.clients for run in group.runs]

        def personal(spreads: Sequence[Spread | None], value: Callable[[Spread], float]) -> list[float | None]:
            return [None if spread is None else value(spread) for spread in spreads]

        held_out = [scores.personal_held_out for scores in group.scores]
        return Measured(
            algorithm=group.label,
            runs=[run.folder.name for run in group.runs],
            seeds=group.seeds,
            best_center=[one for one in best if one is not None] if None not in best else None,
            recovery=group.recoveries,
            personal_train=personal([scores.personal_train for scores in group.scores], lambda s: s.mean),
            personal_held_out=personal(held_out, lambda s: s.mean),
            worst_decile=personal(held_out, lambda s: s.worst_decile),
            metrics={
                name: {
                    "held_out": metric_held_out(group, name),
                    "worst_decile": metric_held_out(group, name, KINDS["worst decile"]),
                }
                for name in metric_names([group])
            },
            rounds=[len(run.records) for run in group.runs],
            gradients_per_client=each(lambda t: t.gradients),
            evaluations_per_client=each(lambda t: t.evaluations),
            bytes_down_per_client=each(lambda t: t.bytes_down),
            bytes_up_per_client=each(lambda t: t.bytes_up),
            seconds=[run.totals.seconds for run in group.runs],
            diverged=diverged or {},
        )

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "diverged" or value}

    def metric(self, name: str, kind: str) -> list[float | None]:
        """Return a further metric over seeds: its mean (`held_out`) or `worst_decile`."""
        found = self.metrics.get(name)
        return [None] * len(self.seeds) if found is None else found[kind]

    def best_on(self, j: int | None) -> list[float | None]:
        """Return the best center of source j over seeds, or its mean over sources for None."""
        found = self.best_center or [None] * len(self.seeds)
        return [None if best is None else statistics.mean(best) if j is None else best[j] for best in found]


def shown_sources(groups: Sequence[Group]) -> list[str]:
    """Return the sources, where all methods have the same few of them."""
    found = [group.first.scores.sources for group in groups]
    return found[0] if all(names == found[0] for names in found) and len(found[0]) <= MOST_SOURCES else []
