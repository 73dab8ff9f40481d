"""A tuning as a table in the terminal."""

from __future__ import annotations

import math
import statistics

from rich import box
from rich.table import Table
from rich.text import Text

from fedsoft.reports.tables import metric_name, number
from fedsoft.studies.tuning import Tuning


def table(tuning: Tuning) -> Table:
    """One row for every trial, the best of each method marked."""
    seeds = len(tuning.seeds)
    title = (
        f"{tuning.base.label}: personal {metric_name(tuning.metric)} on held-out points, "
        f"{seeds} seed{'s' * (seeds > 1)}, same client work (*: best)"
    )
    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    view.add_column("algorithm")
    for head in ("lr", "epochs", "rounds", "held out", ""):
        view.add_column(head, justify="right" if head else "left")
    for trial in tuning.trials:
        best = tuning.best.get(trial.label) is trial
        edge = "at the edge of the grid" if best and tuning.at_the_edge(trial.label) else ""
        rounds = f"{statistics.mean(trial.rounds):.0f}" if trial.rounds else "-"
        score = "failed" if math.isnan(trial.score) else ("*" if best else "") + number(trial.score, tuning.metric)
        note = Text(trial.problem or edge, style="dim")
        view.add_row(Text(trial.label), f"{trial.lr:g}", str(trial.epochs), rounds, score, note, style="bold" * best)
    return view
