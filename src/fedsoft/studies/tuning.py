"""Choose learning rate and local epochs of every method on held-out client points, under the same client work.

Trials run with seeds of their own. They are compared only by the mean over clients of the error of personal models on
held-out points: test sets and the truth are not used.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tomli_w

from fedsoft import plugins
from fedsoft.errors import InputError
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.compare import UNSCORED, capped, parse_algorithms, total, variant
from fedsoft.studies.process_pool import Outcome, ProcessPool, folders

SEEDS = (1000, 1001)  # far from those of any table
RATES = (0.3, 1.0, 3.0, 10.0)  # times the preset's


@dataclass(frozen=True)
class Grid:
    """Learning rates and numbers of local epochs; every combination is tried."""

    rates: tuple[float, ...]
    epochs: tuple[int, ...]

    @staticmethod
    def around(
        base: RunSpec, rates: Sequence[float] | None = None, epochs: Sequence[int] | None = None,
        factors: Sequence[float] = RATES,
    ) -> Grid:  # fmt: skip
        """Return what is given. Default: multiples of the preset's rate; one epoch, and as many as the preset has."""
        local = base.solver.settings
        for key in ("lr", "epochs"):
            if key not in local:
                raise InputError(f"local solver '{base.solver.name}' has no '{key}' to tune: choose adam or sgd")
        chosen = [_round(local["lr"] * factor) for factor in factors] if rates is None else rates
        counts = [1, local["epochs"]] if epochs is None else epochs
        return Grid(tuple(dict.fromkeys(map(float, chosen))), tuple(dict.fromkeys(counts)))

    @property
    def points(self) -> list[tuple[float, int]]:
        return [(rate, count) for count in self.epochs for rate in self.rates]


@dataclass(frozen=True)
class Trial:
    """One method with one rate and one number of epochs, over the tuning seeds.

    Arguments:
        label: the method as given.
        scores: mean held-out error of personal models for each seed; NaN where the run failed.
        problem: why it failed.
    """

    label: str
    lr: float
    epochs: int
    scores: tuple[float, ...]
    rounds: tuple[int, ...]
    runs: tuple[str, ...]
    problem: str = ""

    @property
    def score(self) -> float:
        """Return the mean over seeds; NaN where a seed failed."""
        return statistics.fmean(self.scores)

    def setting(self) -> str:
        """Return the method with its rate and epochs, as `compare` reads it."""
        name, settings = parse_algorithms(self.label)[0]
        return label_of(name, settings | {"solver.lr": self.lr, "solver.epochs": self.epochs})


@dataclass(frozen=True)
class Tuning:
    """All trials of a tuning."""

    base: RunSpec
    metric: str
    higher_is_better: bool
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]

    @property
    def best(self) -> dict[str, Trial]:
        """Return the best trial of each method; a method of which every trial failed is left out."""
        found: dict[str, Trial] = {}
        sign = -1 if self.higher_is_better else 1
        for trial in self.trials:
            if math.isfinite(trial.score):
                held = found.get(trial.label)
                if held is None or sign * trial.score < sign * held.score:
                    found[trial.label] = trial
        return found

    @property
    def name(self) -> str:
        """Return a name made from the content."""
        content = [self.base.hash, list(self.seeds), [trial.setting() for trial in self.trials]]
        return f"tune-{self.base.label}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]}"

    def at_the_edge(self, label: str) -> bool:
        """Return whether the best rate of a method is the smallest or the largest that was tried."""
        rates = sorted({trial.lr for trial in self.trials if trial.label == label})
        return len(rates) > 2 and self.best[label].lr in (rates[0], rates[-1])

    def to_toml(self) -> str:
        """Return a file for `compare --algorithms FILE --budget work`: first the preset, whose work is the budget."""
        own, local = self.base.algorithm.name, self.base.solver.settings
        others = [t for t in self.best.values() if (t.label, t.lr, t.epochs) != (own, local["lr"], local["epochs"])]
        return tomli_w.dumps({"preset": self.base.label, "algorithms": [own, *(t.setting() for t in others)]})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rows = [
            {
                "algorithm": t.label, "lr": t.lr, "epochs": t.epochs,
                "held_out": [None if math.isnan(v) else v for v in t.scores], "rounds": list(t.rounds),
                "runs": list(t.runs), "problem": t.problem,
                "best": self.best.get(t.label) is t,
            }
            for t in self.trials
        ]  # fmt: skip
        plain = json.dumps(
            {"preset": self.base.label, "metric": self.metric, "seeds": list(self.seeds), "trials": rows}
        )
        return json.loads(plain.replace("NaN", "null"))


def first_runs(base: RunSpec, seeds: Sequence[int]) -> list[RunSpec]:
    """Return the runs of the preset itself: what they spend is the budget of every trial."""
    check_held_out(base)
    own = variant(base, base.algorithm.name, {})
    return [replace(own, score_every=UNSCORED).with_seed(seed) for seed in seeds]


def trial_runs(
    base: RunSpec, labels: Iterable[str], grid: Grid, spent: dict[int, int]
) -> dict[tuple[str, float, int], list[RunSpec]]:
    """Return the runs of every trial, one for each seed, with the work `spent` under that seed as budget."""
    made = {}
    for label in labels:
        name, settings = parse_algorithms(label)[0]
        for rate, count in grid.points:
            spec = variant(base, name, settings | {"solver.lr": rate, "solver.epochs": count})
            spec = replace(spec, score_every=UNSCORED)
            made[label, rate, count] = [capped(spec.with_seed(s), "work", work) for s, work in spent.items()]
    return made


def judge(
    base: RunSpec, wanted: dict[tuple[str, float, int], list[RunSpec]], outcome: Callable[[RunSpec], Outcome]
) -> Tuning:
    """Score all trials from runs that have ended."""
    trials, metric, higher = [], "", False
    seeds: tuple[int, ...] = ()
    for (label, rate, count), specs in wanted.items():
        scores, rounds, names, problem = [], [], [], ""
        seeds = tuple(spec.seed for spec in specs)
        for spec in specs:
            ended = outcome(spec)
            found = None if ended.folder is None else held_out_score(ended.folder)
            problem = problem or str(ended.ending)
            scores.append(math.nan if found is None else found[0])
            if ended.folder is not None and found is not None:
                metric, higher = found[1], found[2]
                rounds.append(len(ended.folder.records()))
                names.append(ended.folder.name)
        trials.append(Trial(label, rate, count, tuple(scores), tuple(rounds), tuple(names), problem))
    return Tuning(base, metric, higher, seeds, tuple(trials))


def tune(base: RunSpec, algorithms: str, seeds: Sequence[int], grid: Grid, pool: ProcessPool) -> Tuning | None:
    """Try the whole grid for every method; None when stopped (what is done is saved)."""
    labels = [label_of(name, settings) for name, settings in parse_algorithms(algorithms)]
    first = first_runs(base, seeds)
    outcomes = pool.run(first, more=len(labels) * len(grid.points) * len(first))
    if outcomes is None:
        return None
    spent = {folder.spec().seed: total(folder, "work") for folder in folders(outcomes, ["the preset"] * len(first))}
    wanted = trial_runs(base, labels, grid, spent)
    done = pool.run([spec for specs in wanted.values() for spec in specs])
    if done is None:
        return None
    by_id = {outcome.spec.id: outcome for outcome in done}
    return judge(base, wanted, lambda spec: by_id[spec.id])


def held_out_score(folder: RunFolder) -> tuple[float, str, bool] | None:
    """Return the mean over clients on held-out points, the metric, and whether higher is better."""
    scores = folder.scores()
    if scores is None or scores.personal_held_out is None:
        return None
    return scores.personal_held_out.mean, scores.metric, scores.higher_is_better


def check_held_out(base: RunSpec) -> None:
    """Raise where no points are held out."""
    known = plugins.parameters(plugins.find("datasets", base.dataset.name, base.allow))
    if "held_out" in known and base.dataset.settings.get("held_out") == 0:
        raise InputError("dataset.held_out = 0 leaves nothing to tune on: set it above 0, for instance 0.25")


def label_of(name: str, settings: dict[str, Any]) -> str:
    """Return a method as it is written in a list."""
    given = ", ".join(f"{key}={_text(value)}" for key, value in settings.items())
    return f"{name}({given})" if given else name


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _round(value: float) -> float:
    return float(f"{value:.3g}")
