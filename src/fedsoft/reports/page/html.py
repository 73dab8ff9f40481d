"""A page as one HTML file that asks the network for nothing, and its figures as SVG files.

Templates escape by default (jinja2, which PyTorch brings along anyway); what Python writes itself goes through
`svg.tag`, which does the same. A policy in the page lets only the style and the script run that are in this package:
text from data could not be a script even if it were not escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsoft.escape import without_controls
from fedsoft.reports.page.blocks import Block, Figure, Page, RunRef
from fedsoft.reports.page.marks import COLOURS, marker, tag
from fedsoft.reports.page.svg import Drawing, drawings
from fedsoft.reports.page.text import VERDICTS, data_of, raw

GAP = 24.0  # between the panels of a picture


def html(page: Page) -> str:
    """The whole page as the text of one file."""
    traces: dict[tuple[RunRef, ...], str] = {}

    def trace(runs: tuple[RunRef, ...]) -> str:
        """The id of the text about where a number comes from; numbers of the same runs share it."""
        return traces.setdefault(runs, f"trace-{len(traces)}")

    style, script = _file("style.css") + _file("figure.css"), _file("script.js")
    return without_controls(_environment().get_template("page.html.j2").render(
        page=page, sections=page.closed, trace=trace, traces=traces,
        anchors={run.name: run.anchor for run in page.all_runs},
        style=Markup(style), script=Markup(script), figure_style=json_text(_file("figure.css")),
        policy=f"default-src 'none'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
               f"style-src {_hash(style)}; script-src {_hash(script)}",
    ))  # fmt: skip


def pictures(page: Page) -> dict[str, str]:
    """Every figure as an SVG file of its own, in light colours, by name."""
    blocks = [block for section in page.sections for block in section.blocks]
    return {f"{figure.id}.svg": without_controls(_picture(figure)) for figure in blocks if isinstance(figure, Figure)}


def _picture(figure: Figure) -> str:
    """All panels in one picture, with the style they need."""
    drawn = drawings(figure)
    columns = _columns(drawn)
    width = columns * drawn[0].width + (columns + 1) * GAP
    height, parts = GAP, []
    for start in range(0, len(drawn), columns):
        row = drawn[start : start + columns]
        for i, drawing in enumerate(row):
            x = GAP + i * (drawing.width + GAP)
            size = Markup(f'<svg x="{x:g}" y="{height:g}" width="{drawing.width:g}" height="{drawing.height:g}" ')
            parts.append(drawing.svg.replace(Markup("<svg "), size, 1))
        height += max(drawing.height for drawing in row) + GAP
    light = re.sub(r"light-dark\(([^,]+),[^)]+\)", r"\1", _file("style.css").split("}")[0] + "}")
    variables = "".join(f"{name}:{value};" for name, value in re.findall(r"(--[\w-]+):\s*([^;]+);", light))
    style = Markup("<style>svg{" + variables + "}" + _file("figure.css") + "</style>")
    back = tag("rect", width=width, height=height, class_="back")
    view = f"0 0 {width:g} {height:g}"
    return str(tag("svg", tag("title", figure.caption), style, back, *parts, xmlns="http://www.w3.org/2000/svg",
                   viewBox=view, width=width, height=height)) + "\n"  # fmt: skip


def _columns(drawn: list[Drawing]) -> int:
    return min(len(drawn), 2 if drawn[0].width > 400 else 3)


def json_text(value: Any) -> Markup:
    """JSON for a script element: no `<` in it, so it cannot end the element."""
    return Markup(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))


def _stops(drawn: list[Drawing]) -> Markup:
    return json_text([{"mode": drawing.mode, "stops": drawing.stops} for drawing in drawn])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _kind(block: Block) -> str:
    return type(block).__name__


@cache
def _file(name: str) -> str:
    return (resources.files("fedsoft.reports.page") / name).read_text("utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedsoft.reports.page", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        kind=_kind, drawings=drawings, columns=_columns, stops=_stops, data_of=data_of, raw=raw, verdicts=VERDICTS,
        colours=COLOURS, marker=marker,
    )  # fmt: skip
    return environment
