"""From what was measured to tables: a column for each client, the same with every seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsoft.studies.recommend.item import Item
from fedsoft.studies.recommend.measure import Judge
from fedsoft.studies.recommend.measured import Measured, as_array
from fedsoft.studies.recommend.outcome import Cost, Row
from fedsoft.studies.recommend.split import Split


@dataclass(frozen=True)
class Tables:
    """Makes tables of the clients of all seeds."""

    splits: Mapping[int, Split]
    judge: Judge

    def tuned(self, items: Sequence[Item]) -> np.ndarray:
        """Return for each seed and client the mean over folds on points that were tuned on."""
        by_seed, metric = {}, self.judge.metric.name
        for item in items:
            values = np.stack([one.array(metric) for one in item.folds if metric in one.values])
            known = np.isfinite(values)
            total = np.where(known, values, 0.0).sum(0)
            by_seed[item.seed] = np.where(known.any(0), total / np.maximum(known.sum(0), 1), math.nan)
        return self._aligned({seed: (self.splits[seed].final.names, one) for seed, one in by_seed.items()})

    def _aligned(self, found: Mapping[int, tuple[Sequence[str], np.ndarray]]) -> np.ndarray:
        """Return values of clients by name as `[seeds, clients]`, the same column for a name with every seed."""
        splits = self.splits.values()
        names = dict.fromkeys(name for one in splits for part in (one.final, one.newcomers) for name in part.names)
        place = {name: k for k, name in enumerate(names)}
        table = np.full((len(self.splits), len(place)), math.nan)
        for row, seed in enumerate(self.splits):
            if seed in found:
                own, values = found[seed]
                table[row, [place[name] for name in own]] = values
        return table

    def row(self, items: Sequence[Item]) -> Row:
        known = [item for item in items if item.first is not None]
        finals = {item.seed: item.final for item in known if item.final is not None and not item.final.problem}
        first = next(iter(finals.values()), None)
        metrics = [one.name for one in self.judge.metrics] if finals else []
        cost = None if first is None else Cost(first.gradients, first.bytes_down, first.bytes_up)
        return Row(
            key=known[0].candidate.key, settings=tuple(item.search.best for item in known),
            rounds=tuple(item.rounds for item in known), settled=all(item.settled for item in known),
            edges=tuple(dict.fromkeys(edge for item in known for edge in item.search.edges)),
            trials=sum(len(item.search.tried) for item in known), cut=any(item.cut for item in items),
            tuned=self.tuned(known), cost=cost, newcomers=self._newcomers(finals),
            test={name: self._aligned({seed: (self.splits[seed].final.names, one.array(name))
                                       for seed, one in finals.items()}) for name in metrics},
            problem=next((item.failure for item in known if item.failure), ""),
        )  # fmt: skip

    def _newcomers(self, finals: dict[int, Measured]) -> dict[int, dict[str, np.ndarray]]:
        found: dict[int, dict[str, np.ndarray]] = {}
        for points in sorted({points for one in finals.values() for points in one.newcomers}):
            having = {seed: one.newcomers[points] for seed, one in finals.items() if points in one.newcomers}
            names = {}
            for seed in having:
                joining = self.splits[seed].joining(points)
                names[seed] = () if joining is None else joining.names
            found[points] = {
                one.name: self._aligned({seed: (names[seed], as_array(v[one.name])) for seed, v in having.items()})
                for one in self.judge.metrics
            }
        return found
