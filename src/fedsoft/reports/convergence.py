"""How centers and importance weights converge: the paper's Fig. 1, for pages and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedsoft.reports.cells import mean_of
from fedsoft.reports.center_usage import served_course
from fedsoft.reports.common_sections import MOST_BANDS, band, thin
from fedsoft.reports.numbers import factor, unit
from fedsoft.reports.page import Axis, Block, Figure, Level, Panel, RunRef, Series, Text
from fedsoft.reports.run_loader import Finished, Group, finished
from fedsoft.reports.withheld import withheld_centers
from fedsoft.runs.folder import RunFolder
from fedsoft.training.records import RoundRecord


def convergence(group: Group) -> list[Block]:
    """Return the error of all centers on each source, and the mean weights of the clients that have most of it."""
    runs = group.runs
    if not all(run.scored for run in runs):
        return served_course(group.first)
    if any(withheld_centers(run.spec, run.records) for run in runs):
        return [Text("Courses are left out: a center is not published (privacy.floor).")]
    averaged = len(runs) > 1 and group.one_to_one
    courses = Courses(runs if averaged else runs[:1], averaged)
    notes = courses.notes
    if not averaged and len(runs) > 1:
        notes = (*notes, "One seed, the first: the centers of different seeds cannot be matched one to one.")
    errors, weights = courses.errors, courses.weights
    alt = "Test error of every center over the rounds, one panel for each source"
    if len(errors) <= 2 and weights:
        alt += "; below, the mean importance weights u of the clients that have most of that source"
        return [Figure("convergence-figure", "Centers and importance weights over the rounds, as in the paper's Fig. 1",
                       f"{alt}.", (*errors, *weights), notes, courses.origin)]  # fmt: skip
    blocks: list[Block] = [
        Figure("convergence-figure", "Centers over the rounds", f"{alt}.", errors, notes, courses.origin)
    ]
    if weights:
        blocks.append(Figure("weights-figure", "Importance weights over the rounds",
                             "Mean importance weights u over the rounds, one panel for the clients that have most of "
                             "each source.", weights, notes, courses.origin))  # fmt: skip
    return blocks


def picture(folder: RunFolder) -> bytes | None:
    """Return the same of one run as PNG; None where there is nothing to draw: a line takes two points."""
    run = finished(folder)
    if len(run.records) < 2:
        return None
    figures = [block for block in convergence(Group("", (run,))) if isinstance(block, Figure)]
    if not figures:
        return None
    from fedsoft.reports.pictures import draw  # matplotlib takes half a second

    panels = tuple(panel for figure in figures for panel in figure.panels)
    return draw(replace(figures[0], panels=panels), run.spec.title, columns=len(run.scores.sources) or 2)


@dataclass(frozen=True)
class Courses:
    """Centers and weights over the rounds, a panel for each source.

    Arguments:
        runs: one, or one for each seed.
        averaged: draw means over the runs, centers matched by the source that they stand for.
        scaled: divide errors by the mean squared distance of the sources.
    """

    runs: Sequence[Finished]
    averaged: bool
    scaled: bool = False

    @property
    def errors(self) -> tuple[Panel, ...]:
        return tuple(self._error_panel(j) for j in range(len(self._sources)))

    @property
    def weights(self) -> tuple[Panel, ...]:
        """Empty where the method has no importance weights."""
        if not all(run.scored[0].weights for run in self.runs):
            return ()
        return tuple(self._weight_panel(j) for j in range(len(self._sources)))

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.averaged:
            return ()
        bands = len(self._centers) <= MOST_BANDS
        return ("Band: one standard deviation over seeds.",) if bands else (f"Mean over {len(self.runs)} seeds.",)

    @property
    def origin(self) -> tuple[RunRef, ...]:
        return tuple(run.ref for run in self.runs)

    @property
    def _sources(self) -> list[str]:
        return self.runs[0].scores.sources

    @property
    def _centers(self) -> list[str]:
        """The names of the centers: by source where seeds are averaged, by number otherwise."""
        if self.averaged:
            return [f"center of {name}" for name in self._sources]
        return [f"c{s}" for s in range(max(len(record.centers) for record in self.runs[0].scored))]

    def _lines(self, metric: str, value: Callable[[Finished, RoundRecord, int], float]) -> tuple[Series, ...]:
        """Return a line for each center: `value(run, record, number of the center)` over the rounds."""
        length = min(len(run.scored) for run in self.runs)
        chosen = thin(length)
        scored = [[run.scored[i] for i in chosen] for run in self.runs]
        rounds, names, series = [record.round for record in scored[0]], self._centers, []
        for i, name in enumerate(names):
            numbers = [(run.scores.alignment or []).index(i) if self.averaged else i for run in self.runs]
            courses = [[value(run, record, s) for record in records]
                       for run, records, s in zip(self.runs, scored, numbers, strict=True)]  # fmt: skip
            mean, low, high = band(courses, metric, len(names))
            series.append(Series(name, rounds, mean, low=low, high=high, colour=i))
        return tuple(series)

    def _error_panel(self, j: int) -> Panel:
        scores = self.runs[0].scores
        metric = scores.metric

        def error(run: Finished, record: RoundRecord, s: int) -> float:
            return _at(record.centers, s, j) / ((run.scores.distance or math.nan) if self.scaled else 1.0)

        levels, axis = [], Axis(f"test {unit(metric)}", log=metric == "mse")
        if self.scaled:
            levels, axis = [Level("half way", 0.25)], Axis("MSE / |θ₀ − θ₁|²")
        elif scores.oracle:
            level = mean_of([run.scores.oracle[j] for run in self.runs if run.scores.oracle])
            levels = [Level("oracle", factor(metric) * (level or math.nan))]
        return Panel(f"Source {self._sources[j]}", Axis("round"), axis, self._lines(metric, error), tuple(levels))

    def _weight_panel(self, j: int) -> Panel:
        alignment = self.runs[0].scores.alignment or []
        levels = []
        for source in range(len(self._sources)):
            share = mean_of([_at(run.scores.shares or [], j, source) for run in self.runs])
            colour = source if self.averaged else next((s for s, of in enumerate(alignment) if of == source), None)
            if share is not None:
                levels.append(Level("true share", share, colour))
        series = self._lines("share", lambda run, record, s: _at(record.weights, j, s))
        axis = Axis("mean u", low=-0.02, high=1.02)
        return Panel(f"Clients with mostly {self._sources[j]}", Axis("round"), axis, series, tuple(levels))


def _at(table: list[list[float]], i: int, j: int) -> float:
    """Return an entry of a table that may have grown over the rounds; NaN where it was not there yet."""
    return table[i][j] if i < len(table) and j < len(table[i]) else math.nan
