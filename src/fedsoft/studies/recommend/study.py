"""Tune every candidate with the same care, see that each has converged, decide, and report on other points."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedsoft.core.federation import Federation
from fedsoft.errors import FedsoftError, InputError
from fedsoft.evaluation.paired import paired
from fedsoft.runs.run_options import RunOptions, federation_of
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.recommend.assemble import Tables
from fedsoft.studies.recommend.candidates import CANDIDATES, FIRST, Candidate, chosen
from fedsoft.studies.recommend.clock import Clock
from fedsoft.studies.recommend.item import Item
from fedsoft.studies.recommend.measure import Judge, Trainer
from fedsoft.studies.recommend.measured import TEST, Journal, Measured, Task
from fedsoft.studies.recommend.outcome import Recommendation
from fedsoft.studies.recommend.rule import Decision, Standing, decide
from fedsoft.studies.recommend.search import Settings
from fedsoft.studies.recommend.split import FOLDS, Split
from fedsoft.training.settled import at_rest

MORE_ROUNDS = 4  # times those of the run, for a candidate that still improves
RUNS, TRIALS = "runs", "trials"


@dataclass(frozen=True)
class Progress:
    """How far a study is: trials that were measured, what is under way, and seconds spent."""

    trials: int
    stage: str
    now: str
    seconds: float


def recommend(
    base: RunSpec, seeds: Sequence[int], out: Path, options: RunOptions, *, metric: str | None = None,
    budget: float | None = None, only: Sequence[str] | None = None, on_progress: Callable[[Progress], object] = id,
) -> Recommendation:  # fmt: skip
    """Carry out everything that is not saved already.

    Arguments:
        base: data, model, solver, rounds, and how many clients take part in a round; its algorithm does not matter.
        seeds: a split each; everything is chosen anew for each of them.
        out: the folder that holds the study's own, which is named after its content.
        options: what may be used of the machine, and what was made in Python.
        metric: what to tune and decide by; default: the model's own.
        budget: seconds for all trials together; default: as many as it takes.
        only: keys of candidates; default: all.
        on_progress: called after every trial.
    """
    candidates = chosen(only)
    if not seeds:
        raise InputError("seeds: none is given, should be at least one")
    splits = {seed: Split.of(federation_of(base.with_seed(seed), options.given), seed) for seed in seeds}
    first = splits[seeds[0]]
    trainer = Trainer.of(base, first.final, options, metric)
    folder = out / study_name(base, seeds, first.final)
    if not trainer.judge.takes_constants:
        candidates = [one for one in candidates if one.algorithm is not None]
    study = _Study(trainer, splits, folder, Clock(budget), on_progress)
    return study.run(candidates)


def study_name(base: RunSpec, seeds: Sequence[int], federation: Federation) -> str:
    """Return the name of a study's folder, made from the content: the same call finds it again.

    Trials are measured by several metrics, so that a study by another metric goes on with them.
    """
    content = [base.hash, list(seeds), federation.fingerprint]
    return f"recommend-{base.label}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]}"


class _Study:
    """A study under way."""

    def __init__(
        self, trainer: Trainer, splits: dict[int, Split], folder: Path, clock: Clock,
        on_progress: Callable[[Progress], object],
    ) -> None:  # fmt: skip
        self.trainer, self.splits, self.folder, self.clock = trainer, splits, folder, clock
        self.on_progress, self.journal, self.trials, self.stage = on_progress, Journal(folder / TRIALS), 0, "tuning"
        self.tables = Tables(splits, trainer.judge)
        self.parts: dict[tuple[int, int], Federation] = {}
        metric = trainer.judge.metric
        self.metric, self.higher = metric.name, metric.higher_is_better
        self.items: list[Item] = []

    def run(self, candidates: Sequence[Candidate]) -> Recommendation:
        """Go through all stages."""
        base = self.trainer.base
        self.items = [
            Item(one, seed, one.searches(base, len(split.final), self.trainer.parameters), base.rounds)
            for seed, split in self.splits.items()
            for one in candidates
        ]
        self._tune()
        tried = [item for item in self.items if item.first is not None]
        if not tried:
            raise FedsoftError(next((item.problem for item in self.items if item.problem), "no trial succeeded"))
        self.stage = "more rounds"
        for item in tried:
            self._settle(item)
        self.stage = "deciding"
        folds = self._affordable_folds(tried)
        for item in tried:
            self._fold(item, folds)
        decision = self._decided(tried, folds)
        self.stage = "reporting"
        order = [decision.recommended, decision.best, decision.several, decision.one, *FIRST]
        for item in sorted(tried, key=lambda item: item.candidate.key not in order):
            if item.candidate.key in order or self.clock.budget is None or self.clock.total < self.clock.budget:
                item.final = self._last(item)
        return self._outcome(decision, folds)

    # --- tuning -------------------------------------------------------------------------------------------------------

    def _tune(self) -> None:
        """Have all searches take turns: whoever has spent the least is next."""
        for item in self.items:
            item.asked = item.search.trials()
            item.advance(None)
        order = [*FIRST, *(one.key for one in CANDIDATES if one.key not in FIRST)]
        while waiting := [item for item in self.items if item.upcoming is not None]:
            item = min(waiting, key=lambda item: (self.clock.spent.get(item.who, 0.0), order.index(item.candidate.key)))
            few = sum(bool(one.search.tried) for one in self.items) < 2
            must = not item.search.tried and (item.candidate.key in FIRST or few)
            if not must and not self.clock.allows(item.who):
                item.cut, item.upcoming = True, None
                continue
            assert item.upcoming is not None
            found = self._measure(item, "0", item.upcoming, item.rounds)
            item.problem = found.problem
            item.advance(self._score(found))
        for item in self.items:
            if math.isfinite(item.search.score):
                item.first, item.problem = self._measure(item, "0", item.search.best, item.rounds, count=False), ""

    def _score(self, found: Measured) -> float:
        """Return the mean over clients, larger is better; minus infinity where there is none."""
        mean = found.mean(self.metric)
        return (mean if self.higher else -mean) if math.isfinite(mean) else -math.inf

    def _settle(self, item: Item) -> None:
        """Give a candidate twice the rounds as long as it gains by that, up to four times as many.

        Without time for it, what counts is whether it still improved in its last rounds.
        """
        assert item.first is not None
        item.settled = item.candidate.algorithm is None
        while not item.settled:
            rest, rounds = bool(at_rest(item.first.course.get(self.metric, ()), self.higher)), 2 * item.rounds
            if rounds > MORE_ROUNDS * self.trainer.base.rounds or not self.clock.allows(item.who, 2.0):
                item.settled = rest
                return
            found = self._measure(item, "0", item.search.best, rounds)
            if gains(item.first, found, self.trainer.judge, rest):
                item.first, item.rounds = found, rounds
            else:
                item.settled = True

    # --- decision -----------------------------------------------------------------------------------------------------

    def _affordable_folds(self, tried: Sequence[Item]) -> int:
        """Return on how many folds there is time to measure the best settings."""
        more = sum(self.clock.expected(item.who) for item in tried)
        return FOLDS if self.clock.fits((FOLDS - 1) * more) else 1

    def _fold(self, item: Item, folds: int) -> None:
        """Measure the best settings on the other folds, too; where training fails on one of them, the next best."""
        while True:
            assert item.first is not None
            others = [self._measure(item, str(fold), item.search.best, item.rounds) for fold in range(1, folds)]
            item.folds, item.final = [item.first, *others], None
            if not item.failure or not self._retreat(item):
                return

    def _retreat(self, item: Item) -> bool:
        """Go back to the next best settings of those that were tried; return whether there are any."""
        item.search.discard()
        if not math.isfinite(item.search.score):
            return False
        item.rounds = self.trainer.base.rounds
        item.first = self._measure(item, "0", item.search.best, item.rounds)
        self._settle(item)
        return True

    def _decided(self, tried: Sequence[Item], folds: int) -> Decision:
        """Decide on something that can be trained on all training points."""
        while True:
            decision = self._decide(tried)
            own = [item for item in tried if item.candidate.key == decision.recommended]
            for item in own:
                item.final = self._last(item)
            broken = [item for item in own if item.failure]
            for item in broken:
                if self._retreat(item):
                    self._fold(item, folds)
            if not broken:
                return decision

    def _decide(self, tried: Sequence[Item]) -> Decision:
        found = []
        for key in dict.fromkeys(item.candidate.key for item in tried):
            own = [item for item in tried if item.candidate.key == key]
            settled, failed = all(item.settled for item in own), any(item.failure for item in own)
            found.append(Standing(key, self.tables.tuned(own), settled, failed))
        decision = decide(found, self.higher)
        if decision is None:
            raise FedsoftError(f"no candidate has a value of {self.metric}: is it defined for these clients?")
        return decision

    # --- what is measured ---------------------------------------------------------------------------------------------

    def _last(self, item: Item) -> Measured:
        """Train on all training points and measure on test points."""
        return item.final or self._measure(item, TEST, item.search.best, item.rounds)

    def _measure(self, item: Item, part: str, settings: Settings, rounds: int, *, count: bool = True) -> Measured:
        """Return what was measured before, or measure it now."""
        task = item.task(part, settings, rounds)
        split, found = self.splits[item.seed], self.journal.read(task, self.metric)
        if found is None:
            if part == TEST:
                found = self.trainer_of(item.seed).final(item.candidate, settings, split, rounds, self._run(task))
            else:
                data = self._part(item.seed, int(part))
                found = self.trainer_of(item.seed).measure(item.candidate, settings, data, rounds)
            self.journal.write(task, found)
        if count:
            self.clock.count(item.who, found.seconds)
            self.trials += 1
            self.on_progress(Progress(self.trials, self.stage, item.candidate.key, self.clock.total))
        return found

    def trainer_of(self, seed: int) -> Trainer:
        return replace(self.trainer, base=self.trainer.base.with_seed(seed))

    def _part(self, seed: int, fold: int) -> Federation:
        if (seed, fold) not in self.parts:
            self.parts = {(seed, fold): self.splits[seed].tuning(fold), **dict(list(self.parts.items())[:FOLDS])}
        return self.parts[seed, fold]

    def _run(self, task: Task) -> Path:
        """Return the folder of a run that is trained on all training points."""
        return self.folder / RUNS / task.name

    # --- what comes of it ---------------------------------------------------------------------------------------------

    def _outcome(self, decision: Decision, folds: int) -> Recommendation:
        judge, splits = self.trainer.judge, self.splits
        first = next(iter(splits.values()))
        rows = [self.tables.row([item for item in self.items if item.candidate.key == one.key]) for one in CANDIDATES
                if any(item.candidate.key == one.key and item.first is not None for item in self.items)]  # fmt: skip
        lost = [item.candidate.key for item in self.items if item.first is None]
        return Recommendation(
            label=self.trainer.base.label, metric=self.metric, higher_is_better=self.higher,
            beside={one.name: one.higher_is_better for one in judge.beside}, is_own=judge.is_own,
            seeds=tuple(splits), clients=len(first.final),
            newcomers=len(first.newcomers), rows=tuple(rows), decision=decision, folds=folds,
            left_out=tuple(dict.fromkeys(lost)), seconds=self.clock.total, budget=self.clock.budget,
            folder=self.folder, runs=self._runs(), allow=tuple(sorted(self.trainer.base.allow)),
        )  # fmt: skip

    def _runs(self) -> dict[str, Path]:
        seed, found = next(iter(self.splits)), {}
        for item in self.items:
            if item.seed == seed and item.final is not None and item.candidate.algorithm is not None:
                found[item.candidate.key] = self._run(item.last_task)
        return found


def gains(before: Measured, after: Measured, judge: Judge, rest: bool) -> bool:
    """Return whether more rounds helped: clearly so, or, for what had not come to rest, at all."""
    name, higher = judge.metric.name, judge.metric.higher_is_better
    if name not in after.values:
        return False
    found = paired(after.array(name), before.array(name), higher_is_better=higher)
    return found is not None and (found.is_clear or (not rest and found.mean > 0))
