"""Show the choice of the number of centers as a table and as a picture."""

from __future__ import annotations

from rich.table import Table

from fedsoft.reports.page import Axis, Figure, Level, Panel, Series
from fedsoft.reports.pictures import draw
from fedsoft.reports.tables import grid
from fedsoft.studies.center_count import Choice


def choice_table(choice: Choice) -> Table:
    """Return one row for each S, the recommended one marked."""
    title = f"{choice.label}: {choice.algorithm} with S centers, {len(choice.seeds)} seeds (*: recommended)"
    heads = ("S", "held-out log-likelihood", "std. error", "stability", "seeds that got there", "use of centers")
    view = grid(title, heads, left=("use of centers",))
    for trial in choice.trials:
        chosen = trial.S == choice.recommended
        stable = "-" if trial.stability is None else f"{trial.stability:.2f}"
        use = " ".join(f"{u:.2f}" for u in trial.use)
        view.add_row(f"{'*' * chosen}{trial.S}", f"{trial.score:.4g}", f"{trial.error:.2g}", stable,
                     str(trial.arrived), use, style="bold" * chosen)  # fmt: skip
    return view


def choice_picture(choice: Choice, kind: str = "png") -> bytes:
    """Draw score with standard errors, stability, and use of centers over S; as PNG or SVG."""
    trials = choice.trials
    counts, scores, errors = zip(*((trial.S, trial.score, trial.error) for trial in trials), strict=True)
    low, high = zip(*((s - e, s + e) for s, e in zip(scores, errors, strict=True)), strict=True)
    best = max(trials, key=lambda trial: trial.score)
    score = Series("mean ± standard error", counts, scores, low=low, high=high, colour=0)
    stable = [(trial.S, trial.stability) for trial in trials if trial.stability is not None]
    across = Axis("number of centers S")
    panels = [Panel("", across, Axis("held-out log-likelihood"), (score,),
                    (Level("one standard error below the best", best.score - best.error),))]  # fmt: skip
    if stable:
        x, y = zip(*stable, strict=True)
        panels.append(Panel("", across, Axis("stability (ARI)", low=-0.1, high=1.05), (Series("stability", x, y),)))
    used = []
    for s in range(max(len(trial.use) for trial in trials)):
        having = [trial for trial in trials if s < len(trial.use)]
        shares = [trial.use[s] for trial in having]
        used.append(Series(f"center {s + 1} by use", [trial.S for trial in having], shares, "scatter"))
    panels.append(Panel("", across, Axis("use of centers", low=0, high=1.05), tuple(used)))
    title = f"{choice.label}: {choice.verdict}"
    return draw(Figure("choice", title, "", tuple(panels)), title, columns=1, kind=kind)
