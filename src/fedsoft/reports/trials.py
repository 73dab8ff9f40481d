"""Show a tuning: a table, rows, a figure, and a file for `compare`."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from fedsoft.reports.numbers import metric_name, number, several
from fedsoft.reports.page import Axis, Figure, Panel, Series
from fedsoft.reports.pictures import draw
from fedsoft.reports.results import WIDTH, StudyResult
from fedsoft.reports.tables import grid
from fedsoft.studies.trials import Trial, Tuning


@dataclass(frozen=True, repr=False)
class TuningReport(StudyResult):
    """All trials of a tuning; `tuned` is what was found, as `compare` takes it."""

    tuning: Tuning
    scratch: object = None

    @property
    def name(self) -> str:
        return self.tuning.name

    @property
    def best(self) -> dict[str, Trial]:
        """The best trial of each method."""
        return self.tuning.best

    @property
    def tuned(self) -> list[str]:
        """The best settings of each method, for `compare`."""
        return [trial.setting() for trial in self.best.values()]

    @property
    def sentences(self) -> list[str]:
        edge = [label for label in self.best if self.tuning.at_the_edge(label)]
        lost = [t.label for t in self.tuning.trials if t.label not in self.best]
        edges = [f"the best of {', '.join(edge)} is at the edge of what was tried: try more"] if edge else []
        return edges + [f"{label}: every trial failed" for label in dict.fromkeys(lost)]

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"algorithm": trial.label, **trial.values}
            | {
                "held_out": None if math.isnan(trial.score) else trial.score,
                "best": self.best.get(trial.label) is trial,
            }
            | {"problem": trial.problem}
            for trial in self.tuning.trials
        ]

    def tables(self, width: int = WIDTH) -> list[Table]:
        return [table(self.tuning)]

    def to_dict(self) -> dict[str, Any]:
        return self.tuning.to_dict() | {"tuned": self.tuned}

    def files(self) -> dict[str, bytes]:
        texts = {"tuned.toml": self.tuning.to_toml(), "trials.json": json.dumps(self.tuning.to_dict(), indent=1) + "\n"}
        return {name: text.encode() for name, text in texts.items()}

    def png(self) -> bytes:
        """Return the error on held-out points over the learning rate, a line for each method and number of epochs."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for trial in self.tuning.trials:
            if math.isfinite(trial.score) and not trial.further:
                lines.setdefault(f"{trial.label}, epochs={trial.epochs}", []).append((trial.lr, trial.score))
        series = tuple(
            Series(label, [x for x, _ in sorted(points)], [y for _, y in sorted(points)])
            for label, points in lines.items()
        )
        across, up = Axis("learning rate", log=True), Axis(f"held-out {metric_name(self.tuning.metric)}")
        title = f"{self.tuning.base.label}: {several(len(self.tuning.seeds), 'seed')}"
        return draw(Figure("tuning", title, "", (Panel("", across, up, series),)), title)


def table(tuning: Tuning) -> Table:
    """Return one row for every trial, the best of each method marked."""
    title = (
        f"{tuning.base.label}: personal {metric_name(tuning.metric)} on held-out points, "
        f"{several(len(tuning.seeds), 'seed')}, same client work (*: best)"
    )
    more = list(dict.fromkeys(key for trial in tuning.trials for key in trial.further))
    view = grid(title, ("algorithm", "lr", "epochs", *more, "rounds", "held out", ""), left=("algorithm", ""))
    for trial in tuning.trials:
        best = tuning.best.get(trial.label) is trial
        edge = "at the edge of the grid" if best and tuning.at_the_edge(trial.label) else ""
        rounds = f"{statistics.mean(trial.rounds):.0f}" if trial.rounds else "-"
        score = "failed" if math.isnan(trial.score) else ("*" if best else "") + number(trial.score, tuning.metric)
        note = Text(trial.problem or edge, style="dim")
        others = [f"{trial.further[key]:g}" if key in trial.further else "" for key in more]
        values = (f"{trial.lr:g}", str(trial.epochs), *others, rounds, score)
        view.add_row(Text(trial.label), *values, note, style="bold" * best)
    return view
