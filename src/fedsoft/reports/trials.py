"""Show a tuning as a table in the terminal."""

from __future__ import annotations

import math
import statistics

from rich.table import Table
from rich.text import Text

from fedsoft.reports.numbers import metric_name, number, several
from fedsoft.reports.tables import grid
from fedsoft.studies.tuning import Tuning


def table(tuning: Tuning) -> Table:
    """Return one row for every trial, the best of each method marked."""
    title = (
        f"{tuning.base.label}: personal {metric_name(tuning.metric)} on held-out points, "
        f"{several(len(tuning.seeds), 'seed')}, same client work (*: best)"
    )
    view = grid(title, ("algorithm", "lr", "epochs", "rounds", "held out", ""), left=("algorithm", ""))
    for trial in tuning.trials:
        best = tuning.best.get(trial.label) is trial
        edge = "at the edge of the grid" if best and tuning.at_the_edge(trial.label) else ""
        rounds = f"{statistics.mean(trial.rounds):.0f}" if trial.rounds else "-"
        score = "failed" if math.isnan(trial.score) else ("*" if best else "") + number(trial.score, tuning.metric)
        note = Text(trial.problem or edge, style="dim")
        view.add_row(Text(trial.label), f"{trial.lr:g}", str(trial.epochs), rounds, score, note, style="bold" * best)
    return view
