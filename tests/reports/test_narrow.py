"""No heading of a table is cut off where a terminal is narrow."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedsoft.reports.tables import grid

HEADS = ("center", "share of data", "main center of clients", "on their points", "on all points")


def printed(width: int, *rows: tuple[str, ...]) -> list[str]:
    table = grid("Centers", HEADS, ["center"])
    for row in rows:
        table.add_row(*row)
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    console.print(table)  # to print a table does not change it
    first, second = console.file.getvalue().split("Centers")[1:]  # type: ignore[attr-defined]
    assert first.rstrip() == second.rstrip()
    return first.splitlines()


def test_headings_are_one_line_where_there_is_room() -> None:
    lines = printed(110, ("c0", "51 %", "5", "1.70", "2.69"))
    assert all(head in lines[2] for head in HEADS)


@pytest.mark.parametrize("width", [60, 70])
def test_headings_break_between_words_before_anything_is_cut(width: int) -> None:
    lines = printed(width, ("c0", "51 %", "5", "1.70", "2.69"))
    assert "…" not in "".join(lines)
    assert {*" ".join(HEADS).split()} <= {*" ".join(lines).split()}
    assert any({"c0", "51", "5", "1.70", "2.69"} <= {*line.split()} for line in lines)
    assert max(map(len, lines)) <= width
