"""What newcomers are told: tables in the terminal, and the learning curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from fedsoft.newcomers.adoption import Adopted
from fedsoft.newcomers.curve import Curve
from fedsoft.reports.figures import COLOURS, png
from fedsoft.reports.tables import metric_name, number

FEW = 8  # newcomers, each of whom gets a sentence


def adopted_table(found: Sequence[Adopted]) -> Table:
    """One row for each newcomer: its shares with their intervals, the best center, and whether anything fits."""
    level = f"{100 * found[0].level:g} %"
    view = Table(
        title=f"Newcomers: shares of the centers, {level} intervals", title_justify="left", box=box.SIMPLE_HEAD
    )
    for head in ("newcomer", "points"):
        view.add_column(head, justify="right" if head == "points" else "left")
    for s in range(len(found[0].shares)):
        view.add_column(f"c{s}", justify="right")
    view.add_column("best", justify="right")
    view.add_column("fits")
    for one in found:
        shares = [f"{u:.2f}\n{low:.2f}-{high:.2f}" for u, low, high in zip(one.shares, one.low, one.high, strict=True)]
        verdict = Text("yes" if one.fit.fits else "NO", style="" if one.fit.fits else "bold red")
        view.add_row(Text(one.name), str(one.points), *map(Text, shares), f"c{one.best}", verdict)
    return view


def verdicts(found: Sequence[Adopted]) -> list[str]:
    """What there is to say of each newcomer, or of those that fit no center where there are many."""
    told = found if len(found) <= FEW else [one for one in found if not one.fit.fits]
    return [f"{one.name}: {one.fit.sentence()}" for one in told]


def curve_table(curve: Curve) -> Table:
    """Held-out errors by the number of points, the best of each row marked."""
    title = (
        f"Held-out {metric_name(curve.metric)} by the points a newcomer has "
        f"(mean over {curve.newcomers} x {curve.repeats}, *: best of those it can have)"
    )
    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for head in ("points", *curve.errors):
        view.add_column(head, justify="right")
    for i, n in enumerate(curve.points):
        values = {way: row[i] for way, row in curve.errors.items()}
        can_have = [value for way, value in values.items() if way != "best center"]
        best = max(can_have) if curve.higher_is_better else min(can_have)
        cells = [
            ("*" if value == best and way != "best center" else "") + number(value, curve.metric)
            for way, value in values.items()
        ]
        view.add_row(str(n), *cells)
    return view


def curve_picture(curve: Curve, title: str) -> bytes:
    """The same as PNG."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for i, (way, row) in enumerate(curve.errors.items()):
        if way == "best center":
            axis.plot(curve.points, row, color="#444444", ls="--", lw=1.6, label="best center (in hindsight)")
        else:
            axis.plot(curve.points, row, color=COLOURS[i], marker="o", ms=4, lw=1.6, label=way)
    axis.set_xscale("log")
    axis.set_xticks(curve.points, [str(n) for n in curve.points], fontsize=8)
    axis.minorticks_off()
    if curve.metric == "mse":
        axis.set_yscale("log")
    axis.set_xlabel("points that the newcomer has")
    axis.set_ylabel(f"held-out {metric_name(curve.metric)}")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=9)
    axis.set_title(title, fontsize=10)
    return png(figure)
