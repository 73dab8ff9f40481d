"""How many sources there are, as a table and as a picture."""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from fedsoft.reports.figures import COLOURS, png
from fedsoft.studies.choosing import Choice


def choice_table(choice: Choice) -> Table:
    """One row for each S, the recommended one marked."""
    title = f"{choice.label}: {choice.algorithm} with S centers, {len(choice.seeds)} seeds (*: recommended)"
    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for head in ("S", "held-out log-likelihood", "std. error", "stability", "seeds that got there"):
        view.add_column(head, justify="right")
    view.add_column("use of centers")
    for trial in choice.trials:
        chosen = trial.S == choice.recommended
        stable = "-" if trial.stability is None else f"{trial.stability:.2f}"
        use = " ".join(f"{u:.2f}" for u in trial.use)
        row = (
            f"{'*' if chosen else ''}{trial.S}",
            f"{trial.score:.4g}",
            f"{trial.error:.2g}",
            stable,
            str(trial.arrived),
            use,
        )
        view.add_row(*row, style="bold" if chosen else "")
    return view


def choice_picture(choice: Choice, kind: str = "png") -> bytes:
    """Score with standard errors above, stability and use below; as PNG or SVG."""
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1, 1))
    trials = choice.trials
    counts = [trial.S for trial in trials]
    scores, errors = [t.score for t in trials], [t.error for t in trials]
    top.errorbar(counts, scores, errors, color=COLOURS[0], marker="o", ms=4, lw=1.6, capsize=3)
    best = max(trials, key=lambda trial: trial.score)
    top.axhline(best.score - best.error, color="#444444", ls="--", lw=1, label="one standard error below the best")
    top.axvline(choice.recommended, color=COLOURS[1], lw=1, label=choice.verdict)
    top.set_ylabel("held-out log-likelihood")
    top.legend(frameon=False, fontsize=9)
    known = [(t.S, t.stability) for t in trials if t.stability is not None]
    if known:
        middle.plot(*zip(*known, strict=True), color=COLOURS[2], marker="o", ms=4)
    middle.set_ylim(-0.1, 1.05)
    middle.set_ylabel("stability (ARI)")
    for trial in trials:
        below = 0.0
        for s, u in enumerate(trial.use):
            bottom.bar(trial.S, u, bottom=below, width=0.7, color=COLOURS[s % len(COLOURS)], edgecolor="white", lw=0.5)
            below += u
    bottom.set_ylabel("use of centers")
    bottom.set_xlabel("number of centers S")
    bottom.set_xticks(counts)
    for axis in (top, middle, bottom):
        axis.grid(alpha=0.25)
    figure.suptitle(f"{choice.label}: {choice.verdict}", fontsize=11)
    if kind == "png":
        return png(figure)
    with io.BytesIO() as buffer:
        figure.savefig(buffer, format=kind)
        return buffer.getvalue()
