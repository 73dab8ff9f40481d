"""A small page with everything on it, for the tests."""

from __future__ import annotations

import math

from fedsoft.reports.page import (
    Axis,
    Cell,
    Code,
    Column,
    Figure,
    Level,
    Page,
    Panel,
    RunRef,
    Section,
    Series,
    Table,
    Text,
    Verdict,
)

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">|*&`"
ONE = RunRef("one-s0-aaa", "aaa", 0, "0.1.0", "fedsoft run one")
TWO = RunRef("two s1 <b>", "bbb", 1, "0.1.0", f"fedsoft run {EVIL}")


def figures(word: str) -> tuple[Figure, Figure, Figure]:
    """Lines with bands on a logarithmic axis, points, and bars."""
    rounds = [1.0, 2.0, 3.0, 4.0]
    lines = (
        Series("falling", rounds, [100, 30, 10, 3], low=[90, 20, 5, -1], high=[110, 40, 15, 7]),
        Series(word, rounds, [100, math.nan, 40, 35]),
    )
    error = Panel("Errors", Axis("round"), Axis("MSE", log=True), lines, (Level("oracle", 1.0),))
    points = Series("clients", [0.1, 0.5, 0.9], [0.2, 0.4, 0.8], "scatter", labels=["a", word, "c"])
    diagonal = Series("u = truth", [0, 1], [0, 1], dashed=True)
    bars = Series("held out", [3.0, 5.0], [0, 1], "bar", low=[2.5, 4.0], high=[3.5, 6.0])
    return (
        Figure("lines", "Errors over rounds", "Both fall.", (error, error), ("A note.",), (ONE, TWO)),
        Figure("points", "Shares", "Near the diagonal.", (Panel("", Axis("true"), Axis("u"), (points, diagonal)),)),
        Figure("bars", "Bars", "Two bars.", (Panel("", Axis("MSE"), Axis("", names=("first", word)), (bars,)),)),
    )


def table(word: str) -> Table:
    """Numbers of one run and of two, one missing, one best, and a row for reference."""
    rows = (
        (Cell(word), Cell("10.00 ± 1.00", 10.0, 1.0, (ONE, TWO)), Cell("3.0", 3.0, runs=(ONE,))),
        (Cell("b"), Cell("9.00", 9.0, runs=(ONE,), best=True), Cell("-")),
        (Cell("a"), Cell("11.00", 11.0, runs=(TWO,)), Cell("20.0", 20.0, runs=(TWO,), best=True)),
        (Cell("oracle"), Cell("1.00", 1.0, runs=(ONE,)), Cell("")),
    )
    columns = (Column("method", numeric=False), Column("error"), Column(f"cost {word}"))
    return Table("numbers", "Some numbers", columns, rows, ("A note.",), foot=1)


def page(word: str = EVIL) -> Page:
    """Every kind of block; `word` stands wherever a name from data can."""
    return Page(
        f"Title {word}", f"Lead {word}",
        (
            Section("first", f"First {word}", (Text(f"One.\n\nTwo {word}."), table(word),
                    Verdict(f"It is so {word}.", "rule", True, (ONE, TWO)), Verdict("It is not.", "rule", False))),
            Section("second", "Second", (*figures(word), Code(f"File {word}", f"a = '{word}'\n"))),
        ),
        made_by="Made by a test.",
    )  # fmt: skip
