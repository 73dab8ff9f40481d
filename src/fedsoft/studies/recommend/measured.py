"""What was measured, as files: one for each trial, so that a study that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from fedsoft.evaluation.paired import mean_of
from fedsoft.storage.atomic import write_folder
from fedsoft.storage.files import read_json

TEST = "test"
Values = tuple[float | None, ...]  # a number for each client, None where it has none


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thing to train and measure.

    Arguments:
        candidate: its key.
        seed: of the run and of the split.
        part: `test`, or the number of the fold that is held out.
        settings: that were tuned.
        rounds: of the run.
    """

    candidate: str
    seed: int
    part: str
    settings: Mapping[str, Any]
    rounds: int

    @property
    def name(self) -> str:
        """Return a name made from the content."""
        content = [self.candidate, self.seed, self.part, sorted(self.settings.items()), self.rounds]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
        return f"{self.candidate}-s{self.seed}-{self.part}-{digest}"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of a task.

    Arguments:
        values: for each metric a number for each client, on the points that were held out.
        course: for each metric its mean over clients, now and then on the way.
        gradients, bytes_down, bytes_up: per client.
        seconds: it took.
        problem: why there are no values.
        newcomers: for each number of points, and each metric, a number for each newcomer that had enough.
    """

    values: dict[str, Values] = field(default_factory=dict)
    course: dict[str, tuple[float, ...]] = field(default_factory=dict)
    gradients: float = 0.0
    bytes_down: float = 0.0
    bytes_up: float = 0.0
    seconds: float = 0.0
    problem: str = ""
    newcomers: dict[int, dict[str, Values]] = field(default_factory=dict)

    def array(self, metric: str) -> np.ndarray:
        """Return the values of a metric, NaN where there is none."""
        return as_array(self.values[metric])

    def mean(self, metric: str) -> float:
        return mean_of(self.array(metric)) if metric in self.values else math.nan


def as_array(values: Sequence[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values])


def as_values(found: Sequence[float] | np.ndarray) -> Values:
    """Return numbers for JSON, which has no NaN, with as many digits as matter."""
    return tuple(float(f"{value:.7g}") if math.isfinite(value) else None for value in np.asarray(found).tolist())


class Journal:
    """Measurements in a folder, each in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, task: Task, metric: str) -> Measured | None:
        """Return what was measured before; None where this metric was not, or where the file is damaged."""
        try:
            found = _adapter().validate_python(read_json(self.folder / f"{task.name}.json"))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.problem or metric in found.values else None

    def write(self, task: Task, found: Measured) -> None:
        text = _adapter().dump_json(found).decode()
        write_folder(self.folder, {f"{task.name}.json": f"{text}\n".encode()})


@cache
def _adapter() -> TypeAdapter[Measured]:
    return TypeAdapter(Measured)
