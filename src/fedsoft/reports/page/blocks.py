"""What a report is made of, independent of how it is written down.

A report is a page of sections, a section a list of blocks. `html`, `markdown`, `csv` and `pictures` write the same page
in their own form. Numbers carry the runs that they come from; a page collects them into its last section, one row for
each run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["line", "scatter", "bar"]


@dataclass(frozen=True)
class RunRef:
    """The run that a number comes from: enough to make it again."""

    name: str
    hash: str
    seed: int
    version: str
    command: str = ""

    @property
    def anchor(self) -> str:
        """Its place in the list of runs."""
        return "run-" + re.sub(r"[^A-Za-z0-9.-]", lambda found: f"_{ord(found[0]):x}_", self.name)


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Arguments:
        text: what is shown.
        value: what it is sorted by and saved as (default: the text).
        std: the standard deviation over seeds, where the value is a mean.
        runs: where it comes from.
        best: the best of its kind: underlined, and said to be so where lines cannot be seen.
    """

    text: str
    value: float | str | None = None
    std: float | None = None
    runs: tuple[RunRef, ...] = ()
    best: bool = False


@dataclass(frozen=True)
class Column:
    """The head of a column. Numbers are aligned to the right, sentences may `wrap`."""

    title: str
    numeric: bool = True
    wrap: bool = False


def heads(first: str, others: Sequence[str]) -> tuple[Column, ...]:
    """Return the heads of a table: what its rows are, then columns of numbers."""
    return (Column(first, numeric=False), *map(Column, others))


@dataclass(frozen=True)
class Table:
    """Rows of cells. The last `foot` rows are for reference: they stay last when the table is sorted."""

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    foot: int = 0

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table '{self.id}' has {len(self.columns)} columns, but a row of {len(row)} cells")

    @property
    def runs(self) -> Iterator[RunRef]:
        return (run for row in self.rows for cell in row for run in cell.runs)


@dataclass(frozen=True)
class Axis:
    """One direction of a panel. Limits default to those of the data; `names` make it one of categories."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """Values under one name: a line, points or bars, with an interval around each where there is one.

    Arguments:
        name: as in the legend; series of the same name share their colour and are switched together.
        x, y: the values; for bars x is the length of the bar and y the number of the category.
        low, high: a band around a line, whiskers of a bar.
        labels: a name for each point.
        dashed: drawn as something to compare with, not as a result.
        colour: number of a colour, where two names should share one.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Kind = "line"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    labels: Sequence[str] = ()
    dashed: bool = False
    colour: int | None = None

    def __post_init__(self) -> None:
        lengths = {len(part) for part in (self.x, self.y, self.low, self.high, self.labels) if len(part)}
        if len(lengths) > 1:
            raise ValueError(f"series '{self.name}' has parts of different lengths: {sorted(lengths)}")


@dataclass(frozen=True)
class Level:
    """A level to compare with, drawn across the panel: an oracle, a noise floor, a true share."""

    name: str
    at: float
    colour: int | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True)
class Figure:
    """One or several panels under one caption. `alt` says in words what there is to see."""

    id: str
    caption: str
    alt: str
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    origin: tuple[RunRef, ...] = ()

    @property
    def runs(self) -> Iterator[RunRef]:
        return iter(self.origin)

    @property
    def names(self) -> dict[str, int]:
        """The names in the legend with their colours, in order."""
        found: dict[str, int] = {}
        for series in (s for panel in self.panels for s in panel.series):
            if series.name not in found:
                found[series.name] = len(found) if series.colour is None else series.colour
        return found


@dataclass(frozen=True)
class Text:
    """Plain paragraphs, parted by empty lines."""

    text: str

    @property
    def paragraphs(self) -> list[str]:
        return [" ".join(part.split()) for part in re.split(r"\n\s*\n", self.text) if part.strip()]


@dataclass(frozen=True)
class Code:
    """Text as it stands in a file, folded away under its title."""

    title: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """A sentence that was computed, with the rule it was computed by. `holds` is None where nothing is claimed."""

    sentence: str
    rule: str
    holds: bool | None = None
    origin: tuple[RunRef, ...] = ()

    @property
    def runs(self) -> Iterator[RunRef]:
        return iter(self.origin)


Block = Text | Table | Figure | Verdict | Code


@dataclass(frozen=True)
class Section:
    """A part of the page that can be linked to."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """A whole report. `runs` are listed even where no number carries them."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    runs: tuple[RunRef, ...] = ()
    made_by: str = ""

    def __post_init__(self) -> None:
        seen = {"runs", "runs-table", "content", "theme", "figure-style"}
        for name in self._ids():
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or re.match("run-|trace-", name) or name in seen:
                raise ValueError(f"id '{name}' is taken, or is not made of small letters, digits and '-'")
            seen.add(name)

    def _ids(self) -> Iterator[str]:
        for section in self.sections:
            yield section.id
            yield from (block.id for block in section.blocks if isinstance(block, Table | Figure))

    @property
    def all_runs(self) -> list[RunRef]:
        """Every run once, in the order of first use."""
        blocks = (block for section in self.sections for block in section.blocks)
        used = [run for block in blocks if not isinstance(block, Text | Code) for run in block.runs]
        return list(dict.fromkeys([*self.runs, *used]))

    @property
    def closed(self) -> tuple[Section, ...]:
        """All sections, the list of runs last."""
        runs = self.all_runs
        if not runs:
            return self.sections
        columns = ("run", "spec hash", "seed", "version", "made by")
        rows = tuple(
            (Cell(r.name), Cell(r.hash), Cell(str(r.seed), r.seed), Cell(r.version), Cell(r.command)) for r in runs
        )
        about = "Every number of this page comes from these runs; a number links to its row."
        table = Table("runs-table", about, tuple(Column(c, c == "seed", c == "made by") for c in columns), rows)
        return (*self.sections, Section("runs", "Runs", (table,)))


def missing(value: float | None) -> bool:
    """Whether there is no number here."""
    return value is None or not math.isfinite(value)
