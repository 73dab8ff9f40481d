"""Numbers and tables of documents, taken from the leaderboard's data so that none can go stale.

A marker says what stands between it and its end:

    <!-- board: FEDERATION/METHOD[/BUDGET] QUANTITY[:SUMMARY] -->1.00<!-- /board -->
    <!-- board: table FEDERATION[/BUDGET] methods=A,B columns=QUANTITY,QUANTITY -->
    | ... |
    <!-- /board -->
    <!-- board: across QUANTITY methods=A,B federations=X,Y budget=work -->
    | ... |
    <!-- /board -->

Quantities are those of `quantities.QUANTITIES`, and `failed`, `label`, `hash` and `seeds`; summaries `mean` (default),
`median`, `worst`, `std` and `±` (mean ± standard deviation). Methods can be yardsticks: `oracle`, `noise-floor`,
`own-mean`. What was not run says so, and so does a number of fewer seeds than the federation has. Markers in blocks of
code stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fedsoft.errors import InputError, unknown
from fedsoft.leaderboard.data import Board, CellName
from fedsoft.leaderboard.quantities import NONE, NOT_RUN, QUANTITIES, quantity, summary, yardsticks
from fedsoft.leaderboard.standings import Standings

MARKER = re.compile(r"<!-- board: (?P<what>[^>]*?) -->(?P<old>.*?)<!-- /board -->", re.DOTALL)
OPENING = re.compile(r"<!-- board: ")
CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
COLUMNS = ("centers", "personal", "worst_decile", "newcomers", "gradients", "evaluations", "bytes")


class Renderer:
    """Writes what markers ask for."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.data = cache(board.read)

    def text(self, text: str, name: str = "text") -> str:
        """Return a document with all markers filled in anew."""
        return "".join(part if part.startswith("```") else self._filled(part, name) for part in CODE.split(text))

    def _filled(self, text: str, name: str) -> str:
        if len(OPENING.findall(text)) != len(MARKER.findall(text)):
            raise InputError(f"'{name}' has a marker of the leaderboard without its end: should be <!-- /board -->")
        return MARKER.sub(self._marker, text)

    def _marker(self, found: re.Match[str]) -> str:
        return f"<!-- board: {found['what']} -->{self._new(found['what'])}<!-- /board -->"

    def _new(self, what: str) -> str:
        kind, *rest = what.split()
        options = dict(part.split("=", 1) for part in rest if "=" in part)
        given = [part for part in rest if "=" not in part]
        if kind not in ("table", "across"):
            name = CellName.read(kind)
            if len(given) != 1 or options:
                raise InputError(f"marker '{what}' is not allowed: should be a cell and a quantity, such as 'centers'")
            return self._written(name, given[0])
        if len(given) != 1:
            raise InputError(f"marker '{what}' is not allowed: '{kind}' should be followed by one name")
        allowed = ("methods", "columns") if kind == "table" else ("methods", "federations", "budget")
        for key in options:
            if key not in allowed:
                raise unknown("option of a marker", key, allowed)
        lists = {key: value.split(",") for key, value in options.items()}
        rows = self._table(given[0], lists) if kind == "table" else self._across(given[0], lists)
        return "\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"

    def _written(self, name: CellName, what: str) -> str:
        data = self.data(name.federation)
        stick = None if data is None else yardsticks(data).get(name.method)
        if stick is not None:
            is_score = _known(what) and quantity(what.partition(":")[0]).kind == "score"
            return summary(stick, what, data) if is_score else ""
        cell = None if data is None else data.cells.get(name.key)
        if what == "failed" and data is not None and cell is not None and cell.runs:
            return f"{Standings(data, name.budget).failures[name.method]} of {len(cell.runs)}"
        if what == "failed":
            return NONE if cell is not None and cell.problem else NOT_RUN
        text = summary(cell, what, data)
        if data is not None and cell is not None and 0 < len(cell.runs) < len(data.draws) and _known(what):
            text += f" ({len(cell.runs)} of {len(data.draws)} seeds)"
        return text

    def _table(self, what: str, lists: dict[str, list[str]]) -> list[Sequence[str]]:
        name = CellName.read("/".join([what.split("/")[0], "-", *what.split("/")[1:]]))
        columns = lists.get("columns", list(COLUMNS))
        head = ["method", *(quantity(one.partition(":")[0]).title if _known(one) else one for one in columns)]
        rows = []
        for method in lists.get("methods") or self._methods(name):
            cell = CellName(name.federation, method, name.budget)
            rows.append([method, *(self._written(cell, one) for one in columns)])
        return [head, ["---", *["--:"] * len(columns)], *rows]

    def _methods(self, name: CellName) -> list[str]:
        data = self.data(name.federation)
        cells = {} if data is None else data.cells
        return [cell.partition("/")[0] for cell in cells if cell.endswith(f"/{name.budget}")]

    def _across(self, what: str, lists: dict[str, list[str]]) -> list[Sequence[str]]:
        federations = lists.get("federations", self.board.names)
        names = [CellName.read("/".join([one, "-", *lists.get("budget", [])])) for one in federations]
        rows = []
        for method in lists.get("methods", []):
            cells = [CellName(name.federation, method, name.budget) for name in names]
            rows.append([method, *(self._written(cell, what) for cell in cells)])
        return [["method", *federations], ["---", *["--:"] * len(names)], *rows]


def _known(column: str) -> bool:
    return column.partition(":")[0] in QUANTITIES


def stale(files: Sequence[Path], board: Board) -> dict[Path, str]:
    """Return the documents in which something else stands than the data says, with their new texts."""
    renderer, found = Renderer(board), {}
    for path in files:
        before = path.read_text("utf-8")
        after = renderer.text(before, str(path))
        if after != before:
            found[path] = after
    return found
