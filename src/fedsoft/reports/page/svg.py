"""Panels as SVG. Colours are classes, so that the page's style decides them for light and dark.

A panel also gives its `stops`: the places where a pointer or the arrow keys can read a value, with what to say there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from fedsoft.reports.page.blocks import Axis, Figure, Panel, Series, missing
from fedsoft.reports.page.marks import COLOURS, apart, classes, marker, path_of, said, tag
from fedsoft.reports.page.scales import Scale, fitted, tick_labels

FONT = 13.0
LINE = 15.0  # between labels
LETTER = 0.56  # of the font size, about
MOST_LABELS = 6  # lines with a name at their end; more are distinguished by the legend


class Reading(NamedTuple):
    """What a series says at a stop, and where."""

    series: str
    value: str
    x: float
    y: float


class Stop(NamedTuple):
    """A place where values can be read; no `y`: all along the vertical there."""

    x: float
    y: float | None
    heading: str
    readings: list[Reading]


@dataclass(frozen=True)
class Drawing:
    """One panel, drawn."""

    svg: Markup
    width: float
    height: float
    mode: str  # how a pointer finds a stop: by "x", by "y", or by both
    stops: list[Stop]


def drawings(figure: Figure) -> list[Drawing]:
    size = (460.0, 300.0) if len(figure.panels) <= 2 or len(figure.panels) == 4 else (360.0, 270.0)
    return [_Drawer(panel, figure.names, *size).drawing(f"{figure.id}-{i}") for i, panel in enumerate(figure.panels)]


class _Drawer:
    """Draws one panel."""

    def __init__(self, panel: Panel, names: dict[str, int], width: float, height: float) -> None:
        self.panel, self.names, self.width = panel, names, width
        rows = len(panel.y.names)
        self.height = max(height, 90 + 24 * rows) if rows else height
        self.labelled = self._ends() if len(panel.series) <= MOST_LABELS else []
        top = (22 if panel.title else 4) + (20 if panel.y.label else 0) + 10
        widest = max((len(name) for name, *_ in self.labelled), default=0)
        right = min(self.width * 0.3, 12 + widest * FONT * LETTER) if widest else 14.0
        if rows:
            right = 64.0 if any(s.kind == "bar" for s in panel.series) else 14.0  # the value at the end of a bar
        self.top, self.bottom, self.right = float(top), self.height - 44, self.width - right
        self.y = self._scale(panel.y, "y", self.bottom, self.top)
        if rows:
            self.y = Scale(-0.5, rows - 0.5, self.top, self.bottom)  # the first on top
        self.y_ticks = [float(i) for i in range(rows)] if rows else self.y.ticks(5)
        self.y_texts = list(panel.y.names) if rows else tick_labels(self.y_ticks)
        self.left = min(self.width * 0.4, 10 + max((len(t) for t in self.y_texts), default=1) * FONT * LETTER)
        self.x = self._scale(panel.x, "x", self.left, self.right)

    def _scale(self, axis: Axis, which: str, start: float, end: float) -> Scale:
        values: list[float] = []
        for series in self.panel.series:
            values += list(getattr(series, which))
            if which == ("x" if series.kind == "bar" else "y"):
                values += [*series.low, *series.high]
        if which == "y":
            values += [level.at for level in self.panel.levels]
        bars = which == "x" and any(s.kind == "bar" for s in self.panel.series)
        return fitted(values, start, end, log=axis.log, low=axis.low, high=axis.high, zero=bars)

    def _ends(self) -> list[tuple[str, float, int | None]]:
        """What is named at the right edge: the last value of every line, and the levels."""
        found: list[tuple[str, float, int | None]] = []
        for series in self.panel.series:
            known = [y for y in series.y if not missing(y)]
            if series.kind == "line" and known and not series.dashed and len(series.name) <= 18:
                found.append((series.name, known[-1], self._colour(series)))
        named = dict.fromkeys(level.name for level in self.panel.levels)
        for name in named:
            levels = [level for level in self.panel.levels if level.name == name]
            if len(levels) == 1:  # several of a name are distinguished by their colours
                found.append((name, levels[0].at, levels[0].colour))
        return found

    def _colour(self, series: Series) -> int:
        return self.names[series.name] if series.colour is None else series.colour

    def drawing(self, id_: str) -> Drawing:
        panel = self.panel
        parts = [*self._frame(), *self._levels()]
        for series in panel.series:
            draw = {"line": self._line, "scatter": self._points, "bar": self._bars}[series.kind]
            parts.append(tag("g", *draw(series), class_=classes("series", self._colour(series)),
                             data_series=series.name))  # fmt: skip
        parts += self._end_labels()
        parts.append(tag("g", tag("line", class_="guide"), class_="cursor"))
        heading = " ".join(filter(None, (panel.title, f"{panel.y.label} by {panel.x.label}")))
        described = tag("title", heading, id=f"{id_}-title") + tag("desc", self._summary(), id=f"{id_}-desc")
        svg = tag(
            "svg", described, *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {self.width:g} {self.height:g}",
            role="img", aria_labelledby=f"{id_}-title {id_}-desc", class_="panel",
        )  # fmt: skip
        mode, stops = self._stops()
        return Drawing(svg, self.width, self.height, mode, stops)

    # --- what does not depend on the values ---------------------------------------------------------------------------

    def _frame(self) -> Iterable[Markup]:
        panel, line = self.panel, 16.0
        if panel.title:
            yield tag("text", panel.title, x=0.0, y=line, class_="title")
            line += 22
        if panel.y.label:
            yield tag("text", panel.y.label, x=0.0, y=line, class_="label")
        categories = bool(panel.y.names)
        for value, text in zip(self.y_ticks, self.y_texts, strict=True):
            y = self.y(value)
            if not categories:
                yield tag("line", x1=self.left, x2=self.right, y1=y, y2=y, class_="grid")
            fits = int((self.left - 8) / (FONT * LETTER)) + 1
            shown = text if len(text) <= fits else text[: fits - 1] + "…"
            yield tag("text", shown, x=self.left - 7, y=y + 4.5, class_="tick end")
        ticks = self.x.ticks(max(2, int((self.right - self.left) / 58)))
        for value, text in zip(ticks, tick_labels(ticks), strict=True):
            x = self.x(value)
            if categories:
                yield tag("line", x1=x, x2=x, y1=self.top, y2=self.bottom, class_="grid")
            else:
                yield tag("line", x1=x, x2=x, y1=self.bottom, y2=self.bottom + 4, class_="axis")
            yield tag("text", text, x=x, y=self.bottom + 18, class_="tick middle")
        if not categories:
            yield tag("line", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom, class_="axis")
        yield tag("text", panel.x.label, x=self.right, y=self.bottom + 37, class_="label end")

    def _levels(self) -> Iterable[Markup]:
        for level in self.panel.levels:
            y = self.y(level.at)
            if self.top - 1 <= y <= self.bottom + 1:
                yield tag("line", x1=self.left, x2=self.right, y1=y, y2=y, class_=classes("level", level.colour))

    def _end_labels(self) -> Iterable[Markup]:
        """Names at the right edge, pushed apart where they would overlap; none at all where there is no room."""
        kept = [(name, self.y(at), colour) for name, at, colour in self.labelled if not missing(self.y(at))]
        places = apart([y for _, y, _ in kept], LINE, self.top, self.bottom)
        for (name, _, colour), y in zip(kept, places, strict=True):
            series = name if name in self.names else None
            yield tag("text", name, x=self.right + 6, y=y + 4.5, class_=classes("name", colour), data_series=series)

    # --- the values ---------------------------------------------------------------------------------------------------

    def _line(self, series: Series) -> Iterable[Markup]:
        points = [(self.x(x), self.y(y)) for x, y in zip(series.x, series.y, strict=True)]
        if len(series.low):
            yield self._band(series)
        dashed = "dashed" if series.dashed else "dotted" if self._colour(series) >= COLOURS else ""
        yield tag("path", d=path_of(points), class_=f"line {dashed}".strip())
        if len(points) == 1:
            yield from self._points(series)

    def _band(self, series: Series) -> Markup:
        """Between low and high; what lies below a logarithmic axis is cut off at its foot."""
        foot = self.bottom
        rows = [
            (self.x(x), min(foot, low) if math.isfinite(low := self.y(bottom)) else foot, self.y(top))
            for x, bottom, top in zip(series.x, series.low, series.high, strict=True)
            if not missing(bottom) and not missing(top)
        ]
        there, back = [(x, y) for x, y, _ in rows], [(x, y) for x, _, y in reversed(rows)]
        return tag("path", d=path_of([*there, *back]) + "Z" if rows else "", class_="band")

    def _points(self, series: Series) -> Iterable[Markup]:
        shape = marker(self._colour(series))
        places = [(self.x(x), self.y(y)) for x, y in zip(series.x, series.y, strict=True)]
        yield tag("path", d="".join(shape(x, y) for x, y in places if not missing(x) and not missing(y)),
                  class_="points")  # fmt: skip

    def _bars(self, series: Series) -> Iterable[Markup]:
        bars = [s for s in self.panel.series if s.kind == "bar"]
        thick = 14.0 / len(bars)
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            if missing(x):
                continue
            top = self.y(y) - 7 + bars.index(series) * thick
            yield tag("rect", x=self.left, y=top, width=max(0.0, self.x(x) - self.left), height=thick, class_="bar")
            end = self.x(x)
            if len(series.low) and not missing(series.low[i]):
                low, end, mid = self.x(series.low[i]), max(end, self.x(series.high[i])), top + thick / 2
                ends = "".join(f"M{x:.1f} {mid - 4:.1f}v8" for x in (low, end))
                yield tag("path", d=f"M{low:.1f} {mid:.1f}H{end:.1f}{ends}", class_="whisker")
            if len(bars) == 1:
                yield tag("text", said(x), x=end + 6, y=self.y(y) + 4.5, class_="tick")

    def _stops(self) -> tuple[str, list[Stop]]:
        series = self.panel.series
        if self.panel.y.names:
            return "y", [self._category(i, name) for i, name in enumerate(self.panel.y.names)]
        results = [s for s in series if not s.dashed]
        if all(s.kind == "line" for s in results) and len({tuple(s.x) for s in results}) == 1:
            return "x", [self._crossing(i, x, results) for i, x in enumerate(results[0].x)]
        return "xy", [stop for s in results for stop in self._each(s)]

    def _category(self, row: int, name: str) -> Stop:
        found = []
        for s in self.panel.series:
            for i, (x, y) in enumerate(zip(s.x, s.y, strict=True)):
                if y == row and not missing(x):
                    between = f" ({said(s.low[i])} to {said(s.high[i])})" if len(s.low) else ""
                    found.append(Reading(s.name, said(x) + between, _at(self.x(x)), _at(self.y(y))))
        return Stop(_at(self.left), _at(self.y(row)), name, found)

    def _crossing(self, i: int, x: float, lines: Sequence[Series]) -> Stop:
        rows = []
        for s in lines:
            if not missing(s.y[i]) and not missing(self.y(s.y[i])):
                rows.append(Reading(s.name, said(s.y[i]) + _interval(s, i), _at(self.x(x)), _at(self.y(s.y[i]))))
        return Stop(_at(self.x(x)), None, f"{self.panel.x.label} {said(x)}", rows)

    def _each(self, series: Series) -> Iterable[Stop]:
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            px, py = self.x(x), self.y(y)
            if not missing(px) and not missing(py):
                heading = f"{self.panel.x.label} {said(x)}"
                heading = f"{series.labels[i]}: {heading}" if len(series.labels) else heading
                reading = Reading(series.name, said(y) + _interval(series, i), _at(px), _at(py))
                yield Stop(_at(px), _at(py), heading, [reading])

    def _summary(self) -> str:
        """The panel in words, for those who cannot see it."""
        parts = []
        for s in self.panel.series:
            known = [y for y in (s.x if self.panel.y.names else s.y) if not missing(y)]
            if known and s.kind == "line":
                parts.append(f"{s.name} from {said(known[0])} to {said(known[-1])}")
            elif known:
                parts.append(f"{s.name}: {len(known)} values from {said(min(known))} to {said(max(known))}")
        parts += [f"{level.name} at {said(level.at)}" for level in self.panel.levels]
        return "; ".join(parts) + "." if parts else "No values."


def _interval(series: Series, i: int) -> str:
    if not len(series.low) or missing(series.low[i]):
        return ""
    return f" ({said(series.low[i])} to {said(series.high[i])})"


def _at(place: float) -> float:
    return round(place, 1)
