"""What a leaderboard shows of a cell, by name, and how it is written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedsoft.errors import unknown
from fedsoft.leaderboard.data import Cell, Draw, FederationData, Result
from fedsoft.reports.numbers import count, duration, number, size

Kind = Literal["score", "share", "count", "bytes", "seconds"]
NOT_RUN = "not run"
NONE = "-"


@dataclass(frozen=True)
class Quantity:
    """A number of every run.

    Arguments:
        title: the head of its column.
        of: its value; None where a run has none.
        kind: how it is written.
    """

    title: str
    of: Callable[[Result], float | None]
    kind: Kind = "score"

    def values(self, cell: Cell) -> list[float]:
        """Return the values of the runs that have one."""
        return [value for run in cell.finished if (value := self.of(run)) is not None]

    def text(self, value: float, metric: str) -> str:
        """Write a value as tables have it."""
        if self.kind == "score":
            return number(value, metric)
        if self.kind == "share":
            return f"{value:.3f}"
        return {"count": count, "bytes": size, "seconds": duration}[self.kind](value)


QUANTITIES = {
    "centers": Quantity("best centers", lambda run: run.centers),
    "recovery": Quantity("error of u", lambda run: run.recovery, "share"),
    "training": Quantity("personal, training", lambda run: run.training),
    "personal": Quantity("personal", lambda run: run.personal),
    "worst_decile": Quantity("worst decile", lambda run: run.worst_decile),
    "newcomers": Quantity("newcomers", lambda run: run.newcomers),
    "rounds": Quantity("rounds", lambda run: run.rounds, "count"),
    "gradients": Quantity("gradients", lambda run: run.gradients, "count"),
    "evaluations": Quantity("evaluations", lambda run: run.evaluations, "count"),
    "bytes": Quantity("bytes, both ways", lambda run: run.bytes_down + run.bytes_up, "bytes"),
    "bytes_down": Quantity("bytes down", lambda run: run.bytes_down, "bytes"),
    "bytes_up": Quantity("bytes up", lambda run: run.bytes_up, "bytes"),
    "seconds": Quantity("seconds", lambda run: run.seconds, "seconds"),
}
SUMMARIES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "worst": max,
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else math.nan,
}


def quantity(name: str) -> Quantity:
    """Return a quantity by its name."""
    if name not in QUANTITIES:
        raise unknown("quantity of the leaderboard", name, QUANTITIES)
    return QUANTITIES[name]


def summary(cell: Cell | None, name: str, data: FederationData | None) -> str:
    """Write a quantity of a cell, such as `centers`, `centers:std` or `centers:±`, which is mean ± deviation."""
    name, _, how = name.partition(":")
    if cell is None or data is None or (not cell.runs and not cell.problem):
        return NOT_RUN
    if name in ("hash", "label"):
        return cell.hash if name == "hash" else f"`{cell.label}`"
    if name == "seeds":
        return f"{len(cell.runs)}"
    known = quantity(name)
    values = known.values(cell)
    if not values:
        return NONE
    if how == "±":
        parts = [statistics.fmean(values), *([statistics.stdev(values)] if len(values) > 1 else [])]
        return " ± ".join(known.text(value, data.metric) for value in parts)
    if (how or "mean") not in SUMMARIES:
        raise unknown("summary", how, [*SUMMARIES, "±"])
    worst = min if data.higher_is_better and known.kind == "score" else max
    return known.text((worst if how == "worst" else SUMMARIES[how or "mean"])(values), data.metric)


def yardsticks(data: FederationData) -> dict[str, Cell]:
    """Return what methods are compared with, as cells: the oracle, the noise floor, constant guesses."""
    draws = [data.draws[seed] for seed in sorted(data.draws)]
    found = {
        "oracle": [_stands(draw, centers=draw.oracle) for draw in draws if draw.oracle is not None],
        "noise-floor": [_stands(draw, centers=draw.noise_floor) for draw in draws if draw.noise_floor is not None],
    }
    for name in dict.fromkeys(name for draw in draws for name in draw.constants):
        found[name.replace(" ", "-")] = [
            _stands(draw, personal=draw.constants[name][0], worst_decile=draw.constants[name][1])
            for draw in draws
            if name in draw.constants
        ]
    return {name: Cell(label=name, runs=tuple(runs)) for name, runs in found.items() if runs}


def _stands(
    draw: Draw, *, centers: float | None = None, personal: float | None = None, worst_decile: float | None = None
) -> Result:
    return Result(seed=draw.seed, digest="", centers=centers, personal=personal, worst_decile=worst_decile)
