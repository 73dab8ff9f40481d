"""Show new clients as tables in the terminal, and their learning curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from fedsoft.onboarding.learning_curve import Curve
from fedsoft.onboarding.new_clients import Adopted
from fedsoft.onboarding.usual import Verdict
from fedsoft.reports.numbers import metric_name, number
from fedsoft.reports.page import Axis, Figure, Panel, Series
from fedsoft.reports.pictures import draw
from fedsoft.reports.tables import grid

FEW = 8  # new clients that get a sentence each
FITS: dict[Verdict, str] = {
    "fits": "yes", "fits no center": "NO", "no better than guessing": "no (guessing)", "cannot tell": "cannot tell",
}  # fmt: skip


def adopted_table(found: Sequence[Adopted]) -> Table:
    """Return one row for each new client: shares with their intervals, the best center, and whether anything fits."""
    title = f"New clients: shares of the centers, {100 * found[0].level:g} % intervals"
    centers = [f"c{s}" for s in range(len(found[0].shares))]
    view = grid(title, ("new client", "points", *centers, "best", "fits"), left=("new client", "fits"))
    for one in found:
        shares = [f"{u:.2f}\n{low:.2f}-{high:.2f}" for u, low, high in zip(one.shares, one.low, one.high, strict=True)]
        verdict = Text(FITS[one.verdict], style="" if one.fit.fits else "bold red")
        view.add_row(Text(one.name), str(one.points), *map(Text, shares), f"c{one.best}", verdict)
    return view


def verdicts(found: Sequence[Adopted]) -> list[str]:
    """Return a sentence for each new client, or of those that fit no center where there are many."""
    shown = found if len(found) <= FEW else [one for one in found if not one.fits or one.alike]
    return [f"{one.name}: {text}" for one in shown for text in one.sentences()]


def curve_table(curve: Curve) -> Table:
    """Return held-out errors by the number of points, the best of each row marked."""
    title = (
        f"Held-out {metric_name(curve.metric)} by the points of a new client "
        f"(mean over {curve.new_clients} x {curve.repeats}, *: best of those it can have)"
    )
    view = grid(title, ("points", *curve.errors))
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
    """Return the same as PNG."""
    series = []
    for i, (way, row) in enumerate(curve.errors.items()):
        hindsight = way == "best center"
        name = "best center (in hindsight)" if hindsight else way
        series.append(Series(name, curve.points, row, dashed=hindsight, colour=7 if hindsight else i))
    axis = Axis(f"held-out {metric_name(curve.metric)}", log=curve.metric == "mse")
    panel = Panel("", Axis("points that the new client has", log=True), axis, tuple(series))
    return draw(Figure("curve", title, "", (panel,)), title)
