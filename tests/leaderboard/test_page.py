"""The page of the leaderboard: what differs by more than chance, failures beside means, cells of few seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedsoft.leaderboard.data import Board, Cell, Draw, FederationData, Result
from fedsoft.leaderboard.page import board_page
from fedsoft.leaderboard.plan import Entry, Plan, Row
from fedsoft.reports.page import Table

SEEDS = 8


def cell(centers: Sequence[float], count: int = 2) -> Cell:
    runs = (Result(seed=1 + i, digest=f"{i}", centers=value, personal=20 + value, center_count=count)
            for i, value in enumerate(centers))  # fmt: skip
    return Cell(label="x", runs=tuple(runs))


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Table]:
    """The tables of a page on which one method is better, one fails in one seed of eight, and one is not complete."""
    rising = [20.0 + 0.1 * i for i in range(SEEDS)]
    cells = {
        "preset/work": cell([value + (1.0 if i % 2 else -1.1) for i, value in enumerate(rising)]),
        "fedsoft/work": cell(rising),
        "fedavg/work": cell([40.0] * SEEDS, count=1),
        "fedem/work": cell([1.1] * SEEDS),
        "ifca/work": cell([2.0] * (SEEDS - 1) + [39.0]),
        "cfl/work": cell([9.0, 9.1]),
    }
    draws = {1 + i: Draw(seed=1 + i, work=9, bytes=9, oracle=1.0) for i in range(SEEDS)}
    board = Board(tmp_path)
    board.write(FederationData(name="one", base="b", metric="mse", sources=2, draws=draws, cells=cells))
    methods = {name: Row(algorithm=name) for name in ("fedsoft", "fedavg", "fedem", "ifca", "cfl")}
    plan = Plan({"one": Entry(preset="synthetic-10-90", title="one", seeds=(1, SEEDS))}, methods)
    blocks = [block for section in board_page(board, plan).sections for block in section.blocks]
    return {block.id: block for block in blocks if isinstance(block, Table)}


def test_what_differs_by_more_than_chance_is_a_table(tables: dict[str, Table]) -> None:
    centers, personal = tables["one-work-in-words"].rows
    assert [one.text for one in centers] == ["best centers", "fedem", "preset, cfl, ifca", "fedavg"]
    assert personal[1].text == "fedem"
    assert "not show a difference" in tables["one-work-in-words"].notes[0]


def test_failures_and_missing_seeds_stand_beside_the_mean(tables: dict[str, Table]) -> None:
    overview = {row[0].text: row[1] for row in tables["overview-centers-table"].rows}
    assert overview["ifca"].text == "6.62 (1 of 8 failed)"
    assert overview["cfl"].text.endswith("(2 of 8 seeds)")
    assert not any(one.best for one in overview.values())  # not every method is there
    heads = [column.title for column in tables["one-work-table"].columns]
    assert heads[1:3] == ["best centers", "failed"]
    failed = {row[0].text: row[2].text for row in tables["one-work-table"].rows}
    assert (failed["ifca"], failed["fedem"], failed["fedavg"]) == ("1 of 8", "0 of 8", "0 of 8")


def test_the_best_of_a_complete_column_is_marked(tmp_path: Path) -> None:
    cells = {f"{name}/work": cell([value] * 2) for name, value in (("preset", 3.0), ("a", 1.0), ("b", 1.001))}
    board = Board(tmp_path)
    board.write(FederationData(name="one", base="b", metric="mse", cells=cells))
    plan = Plan({"one": Entry(preset="synthetic-10-90", title="one", seeds=(1, 2))},
                {name: Row(algorithm="fedavg") for name in "ab"})  # fmt: skip
    (overview, *_) = [block for section in board_page(board, plan).sections for block in section.blocks]
    assert isinstance(overview, Table)
    assert {row[0].text: row[1].best for row in overview.rows} == {"preset": False, "a": True, "b": True}
