"""What was measured, as files: one for each federation, in the folder `data` of the leaderboard."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from fedsoft.errors import InputError, StoreError, unknown
from fedsoft.storage.atomic import write_folder
from fedsoft.storage.files import read_json, reason

FORMAT = "fedsoft-leaderboard-1"
DIGITS = 6  # of a number in a file; the digest of a run is of all of them
Budget = Literal["work", "bytes", "converged"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
PRESET = "preset"  # the method whose cost is everybody's budget: the federation's own run, untuned


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run.

    Arguments:
        seed: of the federation and of the run.
        digest: of everything that was computed: centers, every client's scores, the cost of every round.
        problem: why there are no numbers: training diverged.
        centers: the best center of each source, mean over sources.
        center_count: how many centers there are.
        recovery: mean |u - true share|.
        training, personal: personal models on the clients' training and held-out points; worst_decile: of the latter.
        newcomers: models of clients that did not take part, on their held-out points.
        rounds, gradients, evaluations, bytes_down, bytes_up: the cost; all but rounds per client.
        seconds: it took, on the machine that made it.
        settled: whether centers no longer improved at the end; None where that is not known.
    """

    seed: int
    digest: str
    problem: str = ""
    centers: float | None = None
    center_count: int = 0
    recovery: float | None = None
    training: float | None = None
    personal: float | None = None
    worst_decile: float | None = None
    newcomers: float | None = None
    rounds: int = 0
    gradients: float = 0.0
    evaluations: float = 0.0
    bytes_down: float = 0.0
    bytes_up: float = 0.0
    seconds: float = 0.0
    settled: bool | None = None

    @property
    def rounded(self) -> Result:
        """Return the same with as many digits as files have."""
        return replace(self, **{key: _short(value) for key, value in asdict(self).items()})


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What all runs with a seed share.

    Arguments:
        seed: of the federation.
        work, bytes: what the federation's own run spends, which is everybody's budget.
        distance: mean |theta_s - theta_r|^2 between the oracle models of two sources.
        oracle: a model trained on the points of its source alone, mean over sources.
        noise_floor: the error that no model can beat.
        constants: a constant guess by its name: mean and worst decile on the clients' held-out points.
    """

    seed: int
    work: int
    bytes: int
    distance: float | None = None
    oracle: float | None = None
    noise_floor: float | None = None
    constants: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The settings of a method, and what was tried.

    Arguments:
        label: the method with its settings, as `compare` reads it.
        seeds: of the trials; none of them is reported on.
        trials: for each setting the mean held-out score of each seed; None where a trial failed or was given up.
        edge: whether the best is at the edge of what was tried.
        problem: why the method cannot be run here.
    """

    label: str
    seeds: tuple[int, ...] = ()
    trials: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    edge: bool = False
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method on a federation under a budget: one run for each seed.

    Arguments:
        label: the method with its settings, as `compare` reads it.
        runs: in the order of their seeds.
        rounds: of every run, where the budget is `converged`.
        problem: why there are none.
    """

    label: str
    runs: tuple[Result, ...] = ()
    rounds: int | None = None
    problem: str = ""

    @property
    def hash(self) -> str:
        """Return a digest of the digests of all runs."""
        return hashlib.sha256(" ".join(run.digest for run in self.runs).encode()).hexdigest()[:12]

    @property
    def finished(self) -> tuple[Result, ...]:
        """Return the runs that did not diverge."""
        return tuple(run for run in self.runs if not run.problem)

    def with_run(self, run: Result) -> Cell:
        """Return the cell with one more run, or with another one of the same seed."""
        runs = {one.seed: one for one in self.runs} | {run.seed: run.rounded}
        return replace(self, runs=tuple(runs[seed] for seed in sorted(runs)))


@dataclass(frozen=True, kw_only=True)
class FederationData:
    """Everything that was measured on a federation.

    Arguments:
        name: of the federation.
        base: digest of what it is: data, model, solver, the share of newcomers.
        metric, higher_is_better: what the numbers are.
        sources: how many there are, where that is known.
        clients, newcomers: how many take part, and how many come later.
        environment: where the runs were made.
        draws: by seed.
        spent: the work of the federation's own run under the seeds that are tuned on.
        tuned: by method.
        cells: by `METHOD/BUDGET`.
    """

    name: str
    base: str
    metric: str = ""
    higher_is_better: bool = False
    sources: int = 0
    clients: int = 0
    newcomers: int = 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    draws: Mapping[int, Draw] = field(default_factory=dict)
    spent: Mapping[int, int] = field(default_factory=dict)
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    cells: Mapping[str, Cell] = field(default_factory=dict)

    def with_cell(self, name: str, cell: Cell) -> FederationData:
        return replace(self, cells={**self.cells, name: cell})

    def to_text(self) -> str:
        """Return the text of a file: a line for each quantity of a cell."""
        plain = {"format": FORMAT} | asdict(self)
        plain["draws"] = {str(seed): asdict(draw) for seed, draw in self.draws.items()}
        plain["cells"] = {name: _columns(cell) for name, cell in self.cells.items()}
        return _pretty(plain) + "\n"

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> FederationData:
        """Read what `to_text` gave; raise ValueError for anything else."""
        if values.get("format") != FORMAT:
            raise ValueError(f"its format is {values.get('format')!r}, should be '{FORMAT}'")
        cells = {name: {**cell, "runs": _rows(cell["runs"])} for name, cell in values["cells"].items()}
        rest = {key: value for key, value in values.items() if key != "format"}
        return _adapter().validate_python({**rest, "cells": cells})


@dataclass(frozen=True)
class CellName:
    """`FEDERATION/METHOD/BUDGET`; the budget is `work` where none is given."""

    federation: str
    method: str
    budget: Budget = "work"

    @staticmethod
    def read(text: str) -> CellName:
        parts = text.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise InputError(f"cell '{text}' is not allowed: should be FEDERATION/METHOD or FEDERATION/METHOD/BUDGET")
        for budget in BUDGETS:
            if budget == (parts[2] if len(parts) == 3 else "work"):
                return CellName(parts[0], parts[1], budget)
        raise unknown("budget", parts[2], BUDGETS)

    @property
    def key(self) -> str:
        return f"{self.method}/{self.budget}"

    def __str__(self) -> str:
        return f"{self.federation}/{self.method}/{self.budget}"


@dataclass(frozen=True)
class Board:
    """The files of all federations, read when they are asked for."""

    folder: Path

    @property
    def names(self) -> list[str]:
        return sorted(path.stem for path in self._data.glob("*.json"))

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def read(self, federation: str) -> FederationData | None:
        """Return what was measured on a federation; None where nothing was."""
        path = self._data / f"{federation}.json"
        if not path.exists():
            return None
        try:
            return FederationData.from_dict(read_json(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"'{path}' cannot be read: {reason(error)}") from None

    def cell(self, name: CellName) -> Cell | None:
        """Return a cell; None where it was not run."""
        data = self.read(name.federation)
        return None if data is None else data.cells.get(name.key)

    def write(self, data: FederationData) -> None:
        write_folder(self._data, {f"{data.name}.json": data.to_text().encode()})


@cache
def _adapter() -> TypeAdapter[FederationData]:
    return TypeAdapter(FederationData)


def _short(value: Any) -> Any:
    """Return a number with few digits; None for one that JSON does not have."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _columns(cell: Cell) -> dict[str, Any]:
    """Return a cell with a list for each quantity of its runs."""
    runs = {one.name: [getattr(run, one.name) for run in cell.runs] for one in fields(Result)}
    return {**{key: value for key, value in asdict(cell).items() if key != "runs"}, "hash": cell.hash, "runs": runs}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _pretty(value: Any, depth: int = 0) -> str:
    """Return JSON with a line for every entry of a table, and lists on one line."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    pad = " " * (depth + 1)
    lines = [f"{pad}{json.dumps(str(key), ensure_ascii=False)}: {_pretty(each, depth + 1)}"
             for key, each in value.items()]  # fmt: skip
    return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"
