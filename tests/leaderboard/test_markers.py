from __future__ import annotations

from pathlib import Path

import pytest

from fedsoft.errors import FedsoftError, StoreError
from fedsoft.leaderboard.data import Board, Cell, CellName, Draw, FederationData, Result
from fedsoft.leaderboard.markers import Renderer, stale

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def result(seed: int, centers: float, **more: float) -> Result:
    return Result(seed=seed, digest=f"d{seed}", centers=centers, personal=2 * centers, gradients=1500.0, **more)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    cells = {
        "fedsoft/work": Cell(label="fedsoft(lam=0.1)", runs=(result(1, 30.0), result(2, 40.0))),
        "mine/work": Cell(label="mine", runs=(result(1, 1.0), Result(seed=2, digest="x", problem="it diverged"))),
    }
    draws = {1: Draw(seed=1, work=9, bytes=9, noise_floor=1.0, constants={"own mean": (150.0, 240.0)})}
    found = Board(tmp_path)
    found.write(FederationData(name="one", base="b", metric="mse", draws=draws, cells=cells))
    return found


def test_a_run_that_never_parts_the_centers_of_its_method_has_failed(tmp_path: Path) -> None:
    ends = [(2.0, 2), (2.1, 2), (2.2, 2), (40.0, 1)]
    runs = tuple(Result(seed=i, digest="", centers=value, center_count=count) for i, (value, count) in enumerate(ends))
    one = tuple(Result(seed=i, digest="", centers=40.0, center_count=1) for i in range(len(ends)))
    cells = {"cfl/work": Cell(label="cfl", runs=runs), "fedavg/work": Cell(label="fedavg", runs=one)}
    draws = {i: Draw(seed=i, work=9, bytes=9, oracle=1.0) for i in range(len(ends))}
    board = Board(tmp_path)
    board.write(FederationData(name="one", base="b", metric="mse", sources=2, draws=draws, cells=cells))
    written = Renderer(board).text("<!-- board: table one methods=cfl,fedavg columns=failed --><!-- /board -->")
    assert "| cfl | 1 of 4 |" in written
    assert "| fedavg | 0 of 4 |" in written  # one model for all is what it is
    half = {"cfl/work": Cell(label="cfl", runs=runs[:2])}
    board.write(FederationData(name="one", base="b", metric="mse", sources=2, draws=draws, cells=half))
    assert ">2.05 (2 of 4 seeds)<" in Renderer(board).text("<!-- board: one/cfl centers --><!-- /board -->")


def test_what_is_written_is_read_again(board: Board) -> None:
    data = board.read("one")
    assert data is not None
    assert board.names == ["one"]
    assert data.cells["fedsoft/work"].runs[1] == result(2, 40.0)
    assert data.draws[1].constants["own mean"] == (150.0, 240.0)
    board.write(data)
    assert board.read("one") == data
    assert board.read("two") is None
    assert board.cell(CellName.read("one/mine")) == data.cells["mine/work"]


def test_a_file_of_another_form_is_refused(board: Board) -> None:
    path = board.folder / "data" / "one.json"
    path.write_text(path.read_text().replace("leaderboard-1", "leaderboard-0"))
    with pytest.raises(StoreError, match="format"):
        board.read("one")


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("one/fedsoft centers", "35.00"),
        ("one/fedsoft/work centers:median", "35.00"),
        ("one/fedsoft centers:±", "35.00 ± 7.07"),
        ("one/fedsoft centers:worst", "40.00"),
        ("one/fedsoft label", "`fedsoft(lam=0.1)`"),
        ("one/fedsoft gradients", "1,500"),
        ("one/fedsoft recovery", "-"),
        ("one/mine failed", "1 of 2"),  # it diverged
        ("one/fedsoft failed", "0 of 2"),
        ("one/noise-floor failed", ""),
        ("one/noise-floor bytes", ""),  # it is no method
        ("one/fedsoft/bytes failed", "not run"),
        ("one/fedsoft/bytes centers", "not run"),
        ("two/fedsoft centers", "not run"),
        ("one/mine centers", "1.00"),
        ("one/mine seeds", "2"),
        ("one/noise-floor centers", "1.00"),
        ("one/own-mean worst_decile", "240.0"),
    ],
)
def test_a_marker_is_filled_in(board: Board, what: str, text: str) -> None:
    marked = f"a <!-- board: {what} -->?<!-- /board --> b"
    assert Renderer(board).text(marked) == marked.replace("?", text)
    assert Renderer(board).text(Renderer(board).text(marked)) == marked.replace("?", text)


def test_tables_are_filled_in(board: Board) -> None:
    table = "<!-- board: table one methods=fedsoft,noise-floor,other columns=centers,personal -->\n<!-- /board -->"
    lines = Renderer(board).text(table).splitlines()[1:-1]
    assert lines == [
        "| method | best centers | personal |", "| --- | --: | --: |", "| fedsoft | 35.00 | 70.00 |",
        "| noise-floor | 1.00 | - |", "| other | not run | not run |",
    ]  # fmt: skip
    across = "<!-- board: across centers methods=fedsoft federations=one,two --><!-- /board -->"
    assert Renderer(board).text(across).splitlines()[3] == "| fedsoft | 35.00 | not run |"


def test_blocks_of_code_stay(board: Board) -> None:
    text = "```\n<!-- board: one/fedsoft centers -->\n```\n"
    assert Renderer(board).text(text) == text


@pytest.mark.parametrize("what", ["one", "one/fedsoft", "one/fedsoft/money centers", "one/fedsoft size", "sum one",
                                  "table one rows=a", "one/fedsoft centers:mode"])  # fmt: skip
def test_a_marker_that_means_nothing_is_an_error(board: Board, what: str) -> None:
    with pytest.raises(FedsoftError):
        Renderer(board).text(f"<!-- board: {what} --><!-- /board -->")


def test_a_marker_without_an_end_is_an_error(board: Board) -> None:
    with pytest.raises(FedsoftError, match="without its end"):
        Renderer(board).text("<!-- board: one/fedsoft centers -->")


def test_a_changed_number_is_found(board: Board, tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("<!-- board: one/fedsoft centers -->34.00<!-- /board -->")
    assert stale([file], board) == {file: "<!-- board: one/fedsoft centers -->35.00<!-- /board -->"}
    file.write_text(stale([file], board)[file])
    assert stale([file], board) == {}


def test_every_number_of_the_documents_is_what_the_data_says() -> None:
    assert stale(DOCUMENTS, Board(ROOT / "docs" / "leaderboard")) == {}, "run: fedsoft leaderboard render FILE..."


def test_the_page_is_that_of_the_data() -> None:
    from fedsoft.leaderboard.page import board_page
    from fedsoft.leaderboard.plan import read_plan
    from fedsoft.reports.page import markdown

    folder = ROOT / "docs" / "leaderboard"
    page = markdown(board_page(Board(folder), read_plan()), "board-data")
    assert (folder / "board.md").read_text("utf-8") == page, "run: fedsoft leaderboard build"
