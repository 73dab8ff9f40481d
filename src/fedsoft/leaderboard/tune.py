"""Tune a method of the leaderboard on seeds that are not reported, under the work of the federation's own run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedsoft.errors import InputError
from fedsoft.leaderboard.data import Tuned
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.methods import Method
from fedsoft.studies.trials import Grid, Point, Trial, Tuning
from fedsoft.studies.tuning import WIDER, beyond, is_allowed, moved, runs_at

GIVE_UP = 1.25  # times the error of the best trial with the first seed, from which the other seeds are not tried


@dataclass
class Search:
    """The trials of one method so far; the same search as that of `fedsoft tune`, in this process.

    Arguments:
        base: the federation's own run.
        method: that is tuned.
        spent: the work of that run under each seed.
        held_out: plays a run; the mean held-out score of personal models, NaN where training failed.
        metric, higher_is_better: of that score.
    """

    base: RunSpec
    method: Method
    spent: dict[int, int]
    held_out: Callable[[RunSpec], float]
    metric: str
    higher_is_better: bool
    trials: dict[Point, Trial] = field(default_factory=dict)

    @property
    def found(self) -> Tuning:
        return Tuning(
            self.base, self.metric, self.higher_is_better, tuple(self.spent), tuple(self.trials.values())
        )  # fmt: skip

    def tune(self, grid: Grid) -> Tuned:
        """Try learning rates with epochs, then other settings one by one, then what lies beyond the edge."""
        label, ranges = self.method.label, grid.ranges(self.method)
        try:
            self._add([Point(label, *place) for place in grid.points])
        except InputError as error:  # the method does not fit this model
            return Tuned(label=label, seeds=tuple(self.spent), problem=str(error))
        for key, values in ranges.items():
            if label in self.found.best:
                self._add([moved(self.found.best[label], key, value) for value in values])
        for key in ("lr", *ranges):
            for _ in range(WIDER):
                further = beyond(self.found, label, key) if label in self.found.best else None
                if further is not None and is_allowed(self.base, self.method, further):
                    self._add([further])
        found = self.found
        trials = {trial.setting(): tuple(map(_known, trial.scores)) for trial in found.trials}
        if label not in found.best:
            return Tuned(label=label, seeds=tuple(self.spent), trials=trials, problem="every trial diverged")
        best = found.best[label]
        return Tuned(
            label=best.setting(), seeds=tuple(self.spent), trials=trials, edge=found.at_the_edge(label)
        )  # fmt: skip

    def _add(self, points: Sequence[Point]) -> None:
        for point in points:
            if point in self.trials:
                continue
            scores: list[float] = []
            for spec in runs_at(self.base, self.method, point, self.spent):
                scores.append(math.nan if self._given_up(scores) else self.held_out(spec))
            self.trials[point] = Trial(
                point.label, point.lr, point.epochs, tuple(scores), (), (), further=dict(point.further)
            )

    def _given_up(self, scores: Sequence[float]) -> bool:
        """Whether the first seed already says that this is not the best."""
        if not scores:
            return False
        best = self.found.best.get(self.method.label)
        error = 1 - scores[0] if self.higher_is_better else scores[0]
        if not math.isfinite(error) or best is None:
            return not math.isfinite(error)
        least = 1 - best.scores[0] if self.higher_is_better else best.scores[0]
        return error > GIVE_UP * least if least > 0 else False


def _known(score: float) -> float | None:
    return float(f"{score:.6g}") if math.isfinite(score) else None
