"""How the methods of a federation stand to each other under a budget, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fedsoft.evaluation.failures import RunEnd, failed
from fedsoft.leaderboard.data import PRESET, Budget, Cell, FederationData, Result
from fedsoft.reports.regressions import CENTERS, PERSONAL, ToFirst, compared

REFERENCE = "fedsoft"
ONE_MODEL = "fedavg"


@dataclass(frozen=True)
class Standings:
    """The cells of a federation under one budget."""

    data: FederationData
    budget: Budget

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Return the cells that have runs, by method: the federation's own run first, then in order of their names."""
        found = {name.rpartition("/")[0]: cell for name, cell in self.data.cells.items()
                 if name.endswith(f"/{self.budget}") and cell.runs}  # fmt: skip
        return {name: found[name] for name in sorted(found, key=lambda name: (name != PRESET, name))}

    @property
    def impossible(self) -> dict[str, str]:
        """Return why methods have no cell here."""
        return {name.rpartition("/")[0]: cell.problem for name, cell in self.data.cells.items()
                if name.endswith(f"/{self.budget}") and cell.problem}  # fmt: skip

    @property
    def reference(self) -> str | None:
        """Return the method that others are compared with: tuned FedSoft, or the federation's own run."""
        return next((name for name in (REFERENCE, PRESET) if name in self.cells), None)

    @cached_property
    def differences(self) -> list[ToFirst]:
        """Return how methods differ from the reference, by centers and by personal models."""
        if self.reference is None:
            return []
        order = [self.reference, *(name for name in self.cells if name != self.reference)]
        values = {name: {measure: self.values(name, of) for measure, of in MEASURES.items()} for name in order}
        return compared(values, self.data.higher_is_better, self._scale())

    def values(self, method: str, of: Callable[[Result], float | None]) -> dict[int, float]:
        """Return a number of each run by seed, of those that did not diverge."""
        return {run.seed: value for run in self.cells[method].finished if (value := of(run)) is not None}

    def _scale(self) -> dict[int, float] | None:
        if self.data.metric != "mse":
            return None
        found = {seed: draw.distance for seed, draw in self.data.draws.items() if draw.distance}
        return found if found and len(found) == len(self.data.draws) else None

    @cached_property
    def failures(self) -> dict[str, int]:
        """Return how many runs of each method failed; see `evaluation.failures`."""
        one_model = self.values(ONE_MODEL, _centers) if ONE_MODEL in self.cells else {}
        return {
            name: sum(failed([self._end(run, self.data.sources > 1 and several(cell), one_model) for run in cell.runs]))
            for name, cell in self.cells.items()
        }

    def _end(self, run: Result, several: bool, one_model: Mapping[int, float]) -> RunEnd:
        draw = self.data.draws.get(run.seed)
        constants = [self._error(mean) for mean, _ in draw.constants.values()] if draw is not None else []
        known = None if draw is None else draw.noise_floor if draw.oracle is None else draw.oracle
        return RunEnd(
            diverged=bool(run.problem), centers=self._error(run.centers), several=several,
            personal=self._error(run.personal), oracle=self._error(known) or 0.0,
            one_model=self._error(one_model.get(run.seed)),
            constant=min((one for one in constants if one is not None), default=None),
        )  # fmt: skip

    def _error(self, value: float | None) -> float | None:
        if value is None:
            return None
        return 1 - value if self.data.higher_is_better else value


def several(cell: Cell) -> bool:
    """Return whether a method has several centers, which some of its runs may have failed to part."""
    return any(run.center_count > 1 for run in cell.runs)


def _centers(run: Result) -> float | None:
    return run.centers


MEASURES: dict[str, Callable[[Result], float | None]] = {CENTERS: _centers, PERSONAL: lambda run: run.personal}
