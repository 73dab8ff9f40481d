"""What is tried to tune methods, and what came of it."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tomli_w

from fedsoft import plugins
from fedsoft.errors import InputError
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.methods import Method, with_settings

RATES = (0.3, 1.0, 3.0, 10.0)  # times the preset's


@dataclass(frozen=True)
class Grid:
    """The settings that a search tries.

    Arguments:
        rates, epochs: learning rates and numbers of local epochs; every combination is tried.
        further: settings of algorithms and the values to try; default: what each algorithm declares.
        widen: whether learning rates are widened where the best is at the edge.
    """

    rates: tuple[float, ...]
    epochs: tuple[int, ...]
    further: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    widen: bool = False

    @staticmethod
    def around(
        base: RunSpec, rates: Sequence[float] | None = None, epochs: Sequence[int] | None = None,
        factors: Sequence[float] = RATES, further: Mapping[str, Sequence[float]] | None = None,
    ) -> Grid:  # fmt: skip
        """Return what is given. Default: multiples of the preset's rate; one epoch, and as many as the preset has."""
        local = base.solver.settings
        for key in ("lr", "epochs"):
            if key not in local:
                raise InputError(f"local solver '{base.solver.name}' has no '{key}' to tune: choose adam or sgd")
        chosen = [rounded(local["lr"] * factor) for factor in factors] if rates is None else rates
        counts = [1, local["epochs"]] if epochs is None else epochs
        more = {key: tuple(sorted(values)) for key, values in (further or {}).items()}
        return Grid(tuple(dict.fromkeys(map(float, chosen))), tuple(dict.fromkeys(counts)), more, rates is None)

    @property
    def points(self) -> list[tuple[float, int]]:
        return [(rate, count) for count in self.epochs for rate in self.rates]

    def ranges(self, method: Method, allow: Iterable[str] = ()) -> dict[str, tuple[float, ...]]:
        """Return the settings of a method that are tuned besides rate and epochs, and the values to try first."""
        allowed = [*allow, method.name]
        known = plugins.parameters(plugins.find("algorithms", method.name, allowed))
        declared = plugins.tunable("algorithms", method.name, allowed)
        given = {key: values for key, values in self.further.items() if key in known}
        return {key: values for key, values in (declared | given).items() if key not in method.chosen}


class Point(NamedTuple):
    """One trial: a method with settings."""

    label: str
    lr: float
    epochs: int
    further: tuple[tuple[str, float], ...] = ()

    def settings(self) -> dict[str, Any]:
        return {**dict(self.further), "solver.lr": self.lr, "solver.epochs": self.epochs}


@dataclass(frozen=True)
class Trial:
    """One method with one rate and one number of epochs, over the tuning seeds.

    Arguments:
        label: the method as given.
        scores: mean held-out error of personal models for each seed; NaN where the run failed.
        problem: why it failed.
        further: other settings of the algorithm.
    """

    label: str
    lr: float
    epochs: int
    scores: tuple[float, ...]
    rounds: tuple[int, ...]
    runs: tuple[str, ...]
    problem: str = ""
    further: Mapping[str, float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """Return the mean over seeds; NaN where a seed failed."""
        return statistics.fmean(self.scores)

    def setting(self) -> str:
        """Return the method with its settings, as `compare` reads it."""
        return with_settings(self.label, {**self.further, "solver.lr": self.lr, "solver.epochs": self.epochs})

    @property
    def values(self) -> dict[str, float]:
        """Return everything that was tuned."""
        return {"lr": self.lr, "epochs": self.epochs, **self.further}


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

    def edge(self, label: str, key: str) -> int:
        """Return -1 or 1 where the best value of a setting is the smallest or the largest that was tried, else 0."""
        tried = sorted({trial.values[key] for trial in self.trials if trial.label == label and key in trial.values})
        best = self.best[label].values.get(key)
        least = 2 if key == "lr" else 3  # of two rates the better one is at the edge, too
        if best is None or len(tried) < least or best not in (tried[0], tried[-1]):
            return 0
        return -1 if best == tried[0] else 1

    def at_the_edge(self, label: str) -> bool:
        """Return whether the best rate, or another setting, is the smallest or the largest that was tried."""
        return any(self.edge(label, key) for key in self.best[label].values if key != "epochs")

    def to_toml(self) -> str:
        """Return a file for `compare --algorithms FILE --budget work`: the preset's work is the budget of all."""
        own, local = self.base.algorithm.name, self.base.solver.settings
        preset = (own, {"lr": local["lr"], "epochs": local["epochs"]})
        others = [t.setting() for t in self.best.values() if (t.label, t.values) != preset]
        first = [t.label for t in self.best.values() if (t.label, t.values) == preset]
        listed = [*first, *others, *([own] if not first else [])]  # the untuned preset last: it is no yardstick
        return tomli_w.dumps({"preset": self.base.label, "algorithms": listed, "budget_of": own})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rows = [
            {
                "algorithm": t.label, "lr": t.lr, "epochs": t.epochs, "further": dict(t.further),
                "held_out": [None if math.isnan(v) else v for v in t.scores], "rounds": list(t.rounds),
                "runs": list(t.runs), "problem": t.problem,
                "best": self.best.get(t.label) is t,
            }
            for t in self.trials
        ]  # fmt: skip
        return {"preset": self.base.label, "metric": self.metric, "seeds": list(self.seeds), "trials": rows}


def rounded(value: float) -> float:
    """Return a value with three digits, as it is written in a list."""
    return float(f"{value:.3g}")
