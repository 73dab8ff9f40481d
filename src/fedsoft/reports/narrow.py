"""Tables of the terminal whose headings break between words where the terminal is too narrow for them."""

from __future__ import annotations

import textwrap
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text
from typing_extensions import override

ENDLESS = 10_000  # characters in a line
MOST = 6  # lines of a heading


class NarrowingTable(Table):
    """A table that breaks its headings, and no number, before anything of it is cut off."""

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        endless, whole = options.update(max_width=ENDLESS), self.columns
        rooms = [
            max([Measurement.get(console, endless, cell).maximum for cell in column.cells], default=1)
            for column in whole
        ]
        try:
            for lines in range(1, MOST + 1):
                self.columns = [_broken(column, room, lines) for column, room in zip(whole, rooms, strict=True)]
                if self.__rich_measure__(console, endless).maximum <= options.max_width:
                    break
            yield from super().__rich_console__(console, options)
        finally:
            self.columns = whole


def _broken(column: Column, room: int, lines: int) -> Column:
    """Return a column with its heading on `lines` lines, as narrow as possible; `room`: of its widest cell."""
    head = str(column.header)
    if lines == 1 or not column.no_wrap or len(head) <= room:
        return column
    widths = range(max([room, *map(len, head.split())]), len(head) + 1)
    broken = next(found for width in widths if len(found := textwrap.wrap(head, width)) <= lines)
    return replace(column, header=Text("\n".join(broken)), _cells=[*column._cells])
