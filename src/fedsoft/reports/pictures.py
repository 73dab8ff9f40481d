"""Draw figures as PNG or SVG with matplotlib."""

from __future__ import annotations

import io
import math
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from fedsoft.escape import shown
from fedsoft.reports.page import Figure, Panel, Series

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")
REFERENCE = "#444444"  # oracles and other levels
STYLES = ("-", "--", ":")  # for lines beyond the number of colours
PANEL = (4.2, 3.1)  # inches


def draw(figure: Figure, title: str, columns: int = 2, kind: str = "png") -> bytes:
    """Return the panels of a figure under one title and one legend as the bytes of a file."""
    columns = min(columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    bars = max(len(panel.y.names) for panel in figure.panels)
    height = rows * max(PANEL[1], 1.6 + 0.16 * bars) + 0.5
    canvas = Canvas(figsize=(columns * PANEL[0] + 0.4, height), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False)
    for number, axis in enumerate(axes.flat):
        if number < len(figure.panels):
            _panel(axis, figure.panels[number], figure.names)
        else:
            axis.axis("off")
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    canvas.legend([*handles.values()], [*handles], loc="outside lower center", frameon=False, fontsize=8, ncols=6)
    canvas.suptitle(title, fontsize=11)
    return image(canvas, kind)


def _panel(axis: Any, panel: Panel, names: dict[str, int]) -> None:
    for series in panel.series:
        number = names[series.name] if series.colour is None else series.colour
        _series(axis, series, COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)])
    for level in panel.levels:
        colour = REFERENCE if level.colour is None else COLOURS[level.colour % len(COLOURS)]
        axis.axhline(level.at, color=colour, ls="--", lw=1, label=level.name)
    axis.set_title(panel.title, fontsize=10)
    axis.set(xlabel=panel.x.label, ylabel=panel.y.label)
    axis.set_xscale("log" if panel.x.log else "linear")
    if all(float(x).is_integer() for series in panel.series for x in series.x) and not panel.x.log:
        axis.xaxis.get_major_locator().set_params(integer=True)  # rounds
    if panel.y.names:
        axis.set_yticks(range(len(panel.y.names)), [*map(shown, panel.y.names)], parse_math=False)
        axis.invert_yaxis()
    else:
        axis.set_yscale("log" if panel.y.log else "linear")
        axis.set_ylim(panel.y.low, panel.y.high)
    axis.set_xlim(panel.x.low, panel.x.high)
    axis.grid(alpha=0.25)


def _series(axis: Any, series: Series, colour: str, style: str) -> None:
    if series.kind == "bar":
        low = [x - at for x, at in zip(series.x, series.low, strict=False)]
        high = [at - x for x, at in zip(series.x, series.high, strict=False)]
        axis.errorbar(series.x, series.y, xerr=[low, high] if low else None, fmt="o", capsize=3, color=colour)
    elif series.kind == "scatter":
        axis.plot(series.x, series.y, "o", ms=3, color=colour, label=series.name)
    else:
        style = "--" if series.dashed else style
        axis.plot(series.x, series.y, color=colour, ls=style, lw=1.7, label=series.name)
        if len(series.low):
            axis.fill_between(series.x, series.low, series.high, color=colour, alpha=0.12, lw=0)


def image(canvas: Canvas, kind: str = "png") -> bytes:
    """Return a finished figure as the bytes of a file.

    Titles, labels and legends are plain text: names in them may hold control characters, or look like formulas.
    """
    texts = [*canvas.texts, *(text for legend in canvas.legends for text in legend.get_texts())]
    for axes in canvas.axes:
        legend = axes.get_legend()
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else [])]
    for text in texts:
        text.set_text(shown(text.get_text(), lines=True))
        text.set_parse_math(False)
    with io.BytesIO() as buffer:
        FigureCanvasAgg(canvas)
        canvas.savefig(buffer, format=kind, dpi=130)
        return buffer.getvalue()
