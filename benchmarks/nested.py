"""Nested tuning on splits: settings are chosen on points that training clients hold back, then measured on others.

Whatever was measured is saved, and not measured again.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.core.federation import Federation
from fedsoft.evaluation.paired import mean_of, paired
from fedsoft.studies.recommend.measured import TEST, Journal, Measured, Task
from fedsoft.studies.recommend.split import Split

METRICS = {"accuracy": True, "log_loss": False}  # and whether higher is better
Settings = dict[str, Any]


@dataclass(frozen=True)
class Nested(abc.ABC):
    """One split of one federation, with what was measured on it."""

    split: Split
    journal: Journal

    @abc.abstractmethod
    def grid(self, key: str) -> Sequence[Settings]:
        """Return the settings of a candidate to choose from."""

    @abc.abstractmethod
    def rounds(self, key: str) -> int:
        """Return how long a candidate is trained."""

    @abc.abstractmethod
    def train(self, key: str, settings: Settings, part: str) -> Measured:
        """Train a candidate for a part, and measure on the points that are held out there."""

    def data(self, part: str) -> Federation:
        """Return the clients with all their training points, or with a fold of them held out."""
        return self.split.final if part == TEST else self.split.tuning(int(part))

    def measured(self, key: str, part: str, settings: Settings) -> Measured:
        """Return what was measured before, or measure it now."""
        task = Task(candidate=key, seed=self.split.seed, part=part, settings=settings, rounds=self.rounds(key))
        found = self.journal.read(task, "accuracy")
        if found is None:
            found = self.train(key, settings, part)
            self.journal.write(task, found)
            where = f"{self.journal.folder.name} {self.split.seed} {part}"
            print(f"{where} {key} {settings}: {found.seconds:.1f} s", flush=True)
        return found

    def chosen(self, key: str, metric: str) -> Settings:
        """Return the settings that are best on a third of the training points, which were held back."""
        sign = 1 if METRICS[metric] else -1

        def score(settings: Settings) -> float:
            mean = self.measured(key, "0", settings).mean(metric)
            return sign * mean if mean == mean else -np.inf

        grid = self.grid(key)
        return grid[0] if len(grid) == 1 else max(grid, key=score)

    def tested(self, key: str, metric: str) -> Measured:
        """Return what the settings that were chosen by a metric reach on points that nothing was chosen on."""
        return self.measured(key, TEST, self.chosen(key, metric))


@dataclass(frozen=True)
class Column:
    """What one candidate reaches by one metric that it was tuned by, `[splits, clients]`."""

    values: np.ndarray

    @property
    def mean(self) -> float:
        return mean_of(self.values.ravel())

    @staticmethod
    def of(rows: Sequence[tuple[Sequence[str], np.ndarray]]) -> Column:
        """Make a column for each client of any split from names and values."""
        place = {name: k for k, name in enumerate(sorted({name for names, _ in rows for name in names}))}
        table = np.full((len(rows), len(place)), np.nan)
        for row, (names, values) in zip(table, rows, strict=True):
            row[[place[name] for name in names]] = values
        return Column(table)


def best_of(columns: Mapping[str, Column], keys: Sequence[str], metric: str) -> str:
    """Return the candidate with the best mean."""
    return (max if METRICS[metric] else min)(keys, key=lambda key: columns[key].mean)


def saved(folder: Path, wanted: Mapping[str, int]) -> list[int]:
    """Return the splits on which all candidates are measured, with so many settings tuned of each."""
    found: dict[int, dict[tuple[str, str], int]] = {}
    for path in folder.glob("*.json"):
        key, seed, part, _ = path.stem.rsplit("-", 3)
        counts = found.setdefault(int(seed.removeprefix("s")), {})
        counts[key, part] = counts.get((key, part), 0) + 1
    return sorted(
        seed for seed, counts in found.items()
        if all((count == 1 or counts.get((key, "0"), 0) >= count) and counts.get((key, TEST), 0)
               for key, count in wanted.items())
    )  # fmt: skip


def compared(own: Column, rival: Column | None, metric: str) -> list[str]:
    """Return two cells: the mean, and how far it is ahead of a rival's with the 95 % interval over clients."""
    factor, digits = (100, 1) if metric == "accuracy" else (1, 3)
    gain = None if rival is None else paired(own.values, rival.values, higher_is_better=METRICS[metric])
    mean = f"{factor * own.mean:.{digits}f}"
    if gain is None:
        return [mean, ""]
    ahead, low, high = (f"{factor * value:+.{digits}f}" for value in (gain.mean, gain.low, gain.high))
    return [mean, f"{ahead} ({low} to {high})"]
