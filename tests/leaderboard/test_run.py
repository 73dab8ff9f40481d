from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsoft.cli import app
from fedsoft.errors import InputError
from fedsoft.leaderboard.check import check
from fedsoft.leaderboard.data import Board, CellName
from fedsoft.leaderboard.listing import states
from fedsoft.leaderboard.plan import Plan, read_plan
from fedsoft.leaderboard.play import divided
from fedsoft.leaderboard.run import Filler, fill
from fedsoft.runs import spec
from fedsoft.runs.given import Given
from fedsoft.runs.run_options import federation_of

PLAN = """
[federations.one]
preset = "synthetic-10-90"
title = "one"
set = ["clients=16", "points=[8, 20]", "K=6", "epochs=2", "test_points=50", "rounds=3"]
newcomers = 3
seeds = [1, 2]
tuning = [50, 1]
rates = [1.0, 3.0]
epochs = [1]

[federations.two]
preset = "synthetic-30-70"
title = "two"
set = ["clients=12", "points=[8, 20]", "K=6", "epochs=2", "test_points=50", "rounds=3"]
newcomers = 2
seeds = [1, 1]
tuned_on = "one"
budgets = ["work"]

[methods.ifca]
algorithm = "ifca"

[methods.local]
algorithm = "local"
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(PLAN)
    return path, read_plan(path)


@pytest.fixture(scope="module")
def filled(plan: tuple[Path, Plan], tmp_path_factory: pytest.TempPathFactory) -> Board:
    board = Board(tmp_path_factory.mktemp("board"))
    made = fill(board, plan[1], [])
    assert made is not None
    assert made > 8
    return board


@pytest.mark.slow
def test_a_board_of_two_federations(plan: tuple[Path, Plan], filled: Board) -> None:
    one, two = filled.read("one"), filled.read("two")
    assert one is not None
    assert two is not None
    assert sorted(one.cells) == ["ifca/bytes", "ifca/converged", "ifca/work", "local/bytes", "local/converged",
                                 "local/work", "preset/work"]  # fmt: skip
    assert sorted(two.cells) == ["ifca/work", "local/work", "preset/work"]
    assert (one.clients, one.newcomers, one.sources, one.metric) == (13, 3, 2, "mse")
    assert two.tuned == {}
    assert two.cells["ifca/work"].label == one.cells["ifca/work"].label  # tuned on the other one
    assert one.cells["local/bytes"].problem == "it sends no bytes"
    work, preset = one.cells["ifca/work"], one.cells["preset/work"]
    assert [run.seed for run in work.runs] == [1, 2]
    for run, own in zip(work.runs, preset.runs, strict=True):
        assert run.gradients <= own.gradients
        assert run.newcomers is not None
        assert run.centers is not None
        assert run.center_count == 2
    for run, own in zip(one.cells["ifca/bytes"].runs, preset.runs, strict=True):
        assert run.bytes_up + run.bytes_down <= own.bytes_up + own.bytes_down
    assert one.cells["ifca/converged"].rounds in (3, 6, 12, 24, 48)
    assert set(one.spent) == {50}
    assert len(one.tuned["ifca"].trials) >= 2
    assert {one.draws[1].noise_floor, one.draws[1].oracle} > {1.0}
    assert {state.state for state in states(filled, plan[1], ["one", "two"], ["ifca"])} == {"complete"}


@pytest.mark.slow
def test_what_is_there_is_not_run_again(plan: tuple[Path, Plan], filled: Board) -> None:
    before = (filled.folder / "data" / "one.json").read_bytes()
    assert fill(filled, plan[1], ["one"]) == 0
    assert (filled.folder / "data" / "one.json").read_bytes() == before


@pytest.mark.slow
def test_a_run_is_made_again_to_the_bit(plan: tuple[Path, Plan], filled: Board) -> None:
    for cell in ("one/ifca/work", "one/ifca/converged", "two/preset/work"):
        found = check(filled, plan[1], CellName.read(cell), [1])
        assert [one.sentence(CellName.read(cell)) for one in found] == [f"{cell}, seed 1: the same to the bit"]


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "words"), [
    ("personal", 1.001, "differs by up to 1.0e-03: personal"),
    ("digest", None, "the digest differs"),
])  # fmt: skip
def test_a_changed_number_is_found(
    plan: tuple[Path, Plan], filled: Board, tmp_path: Path, old: str, new: float | None, words: str
) -> None:
    raw = json.loads((filled.folder / "data" / "two.json").read_text())
    column = raw["cells"]["ifca/work"]["runs"][old]
    column[0] = "0" * 16 if new is None else column[0] * new
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "two.json").write_text(json.dumps(raw))
    told = CliRunner().invoke(
        app, ["leaderboard", "check", "two/ifca", "--plan", str(plan[0]), "--board", str(tmp_path)]
    )
    assert told.exit_code == 1
    assert words in told.output


@pytest.mark.slow
def test_the_command_line_lists_and_runs(plan: tuple[Path, Plan], filled: Board) -> None:
    where = ["--plan", str(plan[0]), "--board", str(filled.folder)]
    told = CliRunner().invoke(app, ["leaderboard", "ls", *where, "--json"])
    assert json.loads(told.output)["seconds"] == 0
    assert {one["state"] for one in json.loads(told.output)["cells"]} == {"complete", "not possible"}
    assert "one/ifca/work" in CliRunner().invoke(app, ["leaderboard", "ls", "one/ifca", *where]).output
    told = CliRunner().invoke(app, ["leaderboard", "run", "one/ifca/work", *where])
    assert "0 runs made" in told.output


def test_a_list_without_names_has_a_line_for_each_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    every = json.loads(CliRunner().invoke(app, ["leaderboard", "ls", "--json"]).stdout)["cells"]
    told = CliRunner().invoke(app, ["leaderboard", "ls"])
    names = dict.fromkeys(one["cell"].partition("/")[0] for one in every)
    lines = [line.split() for line in told.stdout.splitlines()]
    rows = {words[0]: words for words in lines if words and words[0] in names}
    assert list(rows) == list(names)
    for name, words in rows.items():
        assert words[1:5] == ["0", "0", str(sum(one["cell"].startswith(f"{name}/") for one in every)), "0"]
    assert "There is no data in 'docs/leaderboard'" in told.stderr


def test_the_plan_of_the_package_is_sound() -> None:
    from fedsoft import plugins

    found = read_plan()
    named = {row.method.name for row in found.methods.values()}
    assert named == set(plugins.names("algorithms"))  # every algorithm has a row
    for entry in found.federations.values():
        assert not set(entry.reported) & set(entry.tuned)
        assert len(entry.reported) >= 5
        assert entry.base().rounds > 0


@pytest.mark.parametrize(("old", "new", "words"), [
    ("tuning = [50, 1]", "tuning = [2, 1]", "tuned on seeds that it reports"),
    ('tuned_on = "one"', 'tuned_on = "three"', "federation of the leaderboard"),
    ("[methods.local]", "[methods.preset]", "method 'preset' is not allowed"),
    ("newcomers = 3", "newcomers = -3", "newcomers = -3 is not allowed"),
    ("[federations.one]", "[federation.one]", "table of a plan"),
])  # fmt: skip
def test_a_plan_that_cannot_be_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace(old, new))
    with pytest.raises(InputError, match=words.replace("'", ".")):
        read_plan(path)


@pytest.mark.slow
def test_another_federation_under_the_same_name_is_refused(
    plan: tuple[Path, Plan], filled: Board, tmp_path: Path
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("newcomers = 3", "newcomers = 4"))
    with pytest.raises(InputError, match="of another federation than the plan has"):
        Filler(filled, read_plan(path), "one")


def test_newcomers_share_no_point_with_the_others() -> None:
    base = spec.read("synthetic-10-90", ["clients=16", "points=[8, 20]", "test_points=20"])
    whole = federation_of(base, Given())
    clients = divided(whole, 4, seed=3)
    assert clients.later is not None
    assert sorted([*clients.here.names, *clients.later.names]) == sorted(whole.names)
    assert clients.later.truth is None
    assert len(clients.here.train.y) + len(clients.later.train.y) == len(whole.train.y)
    here, truth = clients.here, clients.here.truth
    assert truth is not None
    assert whole.truth is not None
    rows = [whole.names.index(name) for name in here.names]
    assert truth.fractions(here.train).equal(whole.truth.fractions(whole.train)[rows])
    assert here.train.client(2)[0].equal(whole.train.client(rows[2])[0])
    assert here.held_out.client(2)[0].equal(whole.held_out.client(rows[2])[0])


@pytest.mark.slow
def test_the_page_has_every_cell_with_its_command(plan: tuple[Path, Plan], filled: Board, tmp_path: Path) -> None:
    where = ["--plan", str(plan[0]), "--board", str(filled.folder), "--out", str(tmp_path / "board.html")]
    told = CliRunner().invoke(app, ["leaderboard", "build", *where])
    assert told.exit_code == 0, told.output
    text, one = (tmp_path / "board.md").read_text(), filled.read("one")
    assert one is not None
    for name, cell in one.cells.items():
        if cell.runs:
            assert f"fedsoft leaderboard check one/{name}" in text
            assert cell.hash in text
    assert "it sends no bytes" in text
    assert "own-mean" in text
    assert (tmp_path / "board-data" / "one-work-table.csv").is_file()
