"""What a recommendation rests on, candidate by candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsoft.evaluation.paired import Difference, mean_of, paired
from fedsoft.evaluation.spread import Directed, Spread
from fedsoft.studies.recommend.candidates import BY_KEY, Candidate
from fedsoft.studies.recommend.rule import Decision


@dataclass(frozen=True)
class Cost:
    """What a candidate takes, per client: gradients of points, and bytes each way."""

    gradients: float
    bytes_down: float
    bytes_up: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One candidate. Arrays have a number for each seed and client, `[seeds, clients]`, NaN where there is none.

    Arguments:
        key: of the candidate.
        settings: that were found, for each seed.
        rounds: for each seed.
        settled: whether it had come to rest with every seed.
        edges: settings whose best value is at the edge of what was tried, though that was widened.
        trials: how many settings were tried.
        cut: whether time was up before its search was over.
        tuned: the metric on points that were tuned on.
        test: metrics by name on test points; none where time was up.
        newcomers: the same for newcomers, by their number of points.
        problem: why there is none.
    """

    key: str
    settings: tuple[Mapping[str, Any], ...]
    rounds: tuple[int, ...]
    settled: bool
    edges: tuple[str, ...]
    trials: int
    cut: bool
    tuned: np.ndarray
    test: Mapping[str, np.ndarray] = field(default_factory=dict)
    newcomers: Mapping[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    cost: Cost | None = None
    problem: str = ""

    @property
    def candidate(self) -> Candidate:
        return BY_KEY[self.key]

    @property
    def S(self) -> int | None:
        """The number of centers with the first seed, where it was chosen."""
        return self.settings[0].get("S") if self.settings else None


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer, and everything that it rests on.

    Arguments:
        label: of what was run.
        metric, higher_is_better: what was tuned and decided by.
        beside: other metrics that were measured, and whether higher is better.
        seeds: one split each.
        clients, newcomers: how many there are with the first seed.
        rows: the candidates, the simplest first.
        decision: by points that were tuned on.
        folds: how many the decision rests on.
        left_out: candidates that there was no time for at all.
        seconds: spent on all trials; budget: that there were.
        folder: that holds runs and trials.
        runs: the run of each candidate with the first seed, trained on all training points.
        allow: code outside of fedsoft that these runs name.
        is_own: whether the metric is the model's own.
    """

    label: str
    metric: str
    higher_is_better: bool
    beside: Mapping[str, bool]
    seeds: tuple[int, ...]
    clients: int
    newcomers: int
    rows: tuple[Row, ...]
    decision: Decision
    folds: int
    left_out: tuple[str, ...]
    seconds: float
    budget: float | None
    folder: Path
    runs: Mapping[str, Path]
    allow: tuple[str, ...] = ()
    is_own: bool = True

    def row(self, key: str) -> Row:
        return next(row for row in self.rows if row.key == key)

    @property
    def recommended(self) -> Row:
        return self.row(self.decision.recommended)

    def higher(self, metric: str) -> bool:
        return self.higher_is_better if metric == self.metric else self.beside[metric]

    def score(self, row: Row, metric: str | None = None) -> float:
        """Return the mean over clients on test points."""
        return mean_of(row.test.get(metric or self.metric, np.array([])).ravel())

    def worst_decile(self, row: Row) -> float | None:
        """Return the mean over seeds of the metric of the tenth of clients that fare worst."""
        found = [Spread.of(torch.from_numpy(values), _Way(self.higher_is_better))
                 for values in row.test.get(self.metric, [])]  # fmt: skip
        known = [one.worst_decile for one in found if one is not None]
        return sum(known) / len(known) if known else None

    def gain(self, first: Row, second: Row, metric: str | None = None) -> Difference | None:
        """Return by how much one candidate beats another on test points, client by client."""
        name = metric or self.metric
        if name not in first.test or name not in second.test:
            return None
        return paired(first.test[name], second.test[name], higher_is_better=self.higher(name))

    def newcomer_gain(self, first: Row, second: Row, points: int) -> Difference | None:
        """Return the same for newcomers with `points` points."""
        one, two = (row.newcomers.get(points, {}).get(self.metric) for row in (first, second))
        if one is None or two is None:
            return None
        return paired(one, two, higher_is_better=self.higher_is_better)

    def newcomer_score(self, row: Row, points: int) -> float:
        return mean_of(row.newcomers.get(points, {}).get(self.metric, np.array([])).ravel())

    @property
    def counts(self) -> list[int]:
        """The numbers of points that newcomers were served with."""
        return sorted({points for row in self.rows for points in row.newcomers})


@dataclass(frozen=True)
class _Way(Directed):
    """Which way is better."""

    better: bool

    @property
    def higher_is_better(self) -> bool:
        return self.better
