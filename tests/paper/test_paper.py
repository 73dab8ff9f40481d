"""The paper's items: published values, runs, rules, and the page."""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedsoft.cli import app
from fedsoft.errors import InputError
from fedsoft.evaluation.spread import Spread
from fedsoft.evaluation.values import Scores
from fedsoft.paper import centers, published
from fedsoft.paper.cells import Case
from fedsoft.paper.item_kinds import METHODS, CentersItem, ComparisonItem, Item
from fedsoft.paper.item_kinds import Column as BlockColumn
from fedsoft.paper.items import ITEMS
from fedsoft.paper.library import Library, aligned
from fedsoft.paper.report import page, section_of, write
from fedsoft.paper.run import chosen, seeds_of
from fedsoft.paper.speed import Speed, forecast, seconds
from fedsoft.reports.page import Table
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.trials import Point
from tests.helpers import record

SYNTHETIC = [item for item in ITEMS.values() if item.data == "synthetic"]


# --- published values -------------------------------------------------------------------------------------------------


def tables() -> list[tuple[str, bool, published.Centers]]:
    made = []
    for name in ("TABLE_1_SYNTHETIC", "TABLE_1_LETTERS", "TABLE_3", "TABLE_4", "TABLE_5", "TABLE_6", "TABLE_7"):
        higher = name not in ("TABLE_1_SYNTHETIC", "TABLE_3", "TABLE_6")
        made += [(f"{name} {key}", higher, block) for key, block in getattr(published, name).items()]
    return made


def test_what_the_paper_underlines_is_the_best_but_in_one_place() -> None:
    wrong = []
    for name, higher, block in tables():
        for row, marks in zip(block.values, block.underlined, strict=True):
            assert len(row) == len(block.values)
            best = max(row) if higher else min(row)
            if [i for i, value in enumerate(row) if value == best] != list(marks):
                wrong.append(name)
    assert wrong == ["TABLE_6 50.0"]


def test_values_that_the_paper_prints_twice_agree() -> None:
    assert published.TABLE_5[0.1].values == published.TABLE_1_LETTERS["linear"].values
    assert published.TABLE_6[10.0].values == published.TABLE_1_SYNTHETIC["random"].values
    for table, of, partitions in (
        (published.TABLE_2, published.TABLE_1_LETTERS, ("10:90", "linear")),
        (published.TABLE_8, published.TABLE_7, ("30:70", "linear")),
    ):
        for partition in partitions:
            soft = table[partition]["FedSoft"]
            assert soft.centers == tuple(max(row) for row in of[partition].values)
    assert published.TABLE_5[0.1].local == published.TABLE_2["linear"]["FedSoft"].local


@given(st.permutations(range(4)), st.booleans())
def test_alignment_undoes_any_numbering_of_centers(order: list[int], higher: bool) -> None:
    sign = 1 if higher else -1
    table = [[sign * (10.0 if i == j else i + j / 10) for j in range(4)] for i in range(4)]  # [center][source]
    expected = [[table[i][j] for i in range(4)] for j in range(4)]
    assert aligned([table[i] for i in order], higher) == expected


# --- items ------------------------------------------------------------------------------------------------------------


def test_every_table_and_figure_has_an_item() -> None:
    named = {
        "fig1",
        "fig2",
        "table1-synthetic",
        "table1-letters",
        *(f"table{i}" for i in range(2, 9)),
        "theorems",
        "tau",
    }
    assert named <= set(ITEMS)
    assert [item.id for item in chosen([])] == [name for name, item in ITEMS.items() if not item.on_request]
    assert [item.id for item in chosen(["table2-small"])] == ["table2-small"]
    with pytest.raises(InputError, match="did you mean 'table3'"):
        chosen(["tabel3"])


@pytest.mark.parametrize("item", SYNTHETIC, ids=lambda item: item.id)
def test_synthetic_items_are_the_papers_at_both_scales(item: Item, tmp_path: Path) -> None:
    library = Library(tmp_path)
    both = [[spec.id for spec in item.wanted(scale, range(2), library)] for scale in ("paper", "fast")]
    assert both[0] == both[1]
    for spec in item.wanted("paper", range(2), library):
        assert (spec.rounds, spec.dataset.settings["clients"], spec.solver.settings["lr"]) == (50, 100, 0.005)
        assert spec.algorithm.settings["K"] == 60


def test_items_share_runs(tmp_path: Path) -> None:
    library = Library(tmp_path)
    wanted = {name: {s.id for s in ITEMS[name].wanted("fast", range(3), library)} for name in ITEMS}
    assert wanted["fig1"] < wanted["table1-synthetic"]
    assert len(wanted["table1-synthetic"] & wanted["table6"]) == 3
    assert wanted["fig1"] < wanted["comparison-synthetic"]
    expected = forecast([ITEMS["fig1"], ITEMS["table1-synthetic"]], "fast", lambda item: range(3))
    assert sum(e.count for e in expected) == 12


# --- costs ------------------------------------------------------------------------------------------------------------


def test_the_time_of_a_run_is_that_of_its_gradients() -> None:
    item = ITEMS["comparison-synthetic"]
    assert isinstance(item, ComparisonItem)
    step = Speed(0.0, 1.0, 0.0, 0)
    soft, local, em, oracle = (
        seconds(item.plain("10:90", label, "paper"), step)
        for label in ("fedsoft", "local", "fedem(predict_with=largest)", "fedavg(source=0)")
    )
    assert soft == pytest.approx(84 * 150 * 10 * 50)
    assert local == pytest.approx(60 * 150 * 10 * 50)
    assert em == 2 * local
    assert oracle == local / 2
    capped = dataclasses.replace(item.plain("10:90", "local", "paper"), work=1000, rounds=10**6)
    assert seconds(capped, step) == 1000


# --- the page, from made-up runs --------------------------------------------------------------------------------------


def scores(spec: RunSpec, table: list[list[float]], local: float, **more: Any) -> Scores:
    best = [min(range(len(table)), key=lambda s: table[s][j]) for j in range(len(table[0]))]
    known = {
        "metric": "mse", "higher_is_better": False, "sources": [f"θ{j}" for j in range(len(table[0]))],
        "centers": table, "alignment": best, "best": best, "recovery": 0.05, "recovery_uniform": 0.4, "shares": None,
        "personal_train": Spread(local, local, local, 100),
        "personal_held_out": Spread(local + 1, local + 1, local + 1, 100),
        "oracle": [1.0, 1.0], "noise_floor": 1.0, "distance": 100.0,
    }  # fmt: skip
    return Scores(**known | more)


def finish(out: Path, spec: RunSpec, table: list[list[float]], local: float, **more: Any) -> None:
    """A finished run of one round, whose scores are known."""
    folder = RunFolder.create(out / spec.id, spec)
    folder.log.append(record(last=True, gradients=1000, centers=table, weights=[[0.9, 0.1], [0.1, 0.9]]))
    folder.finish(scores(spec, table, local, **more))


def case(out: Path, seeds: int = 3) -> Case:
    return Case("fast", lambda item: range(seeds), Library(out))


def text_of(table: Table, row: int) -> list[str]:
    return [cell.text for cell in table.rows[row]]


def table_1(out: Path, swapped: bool = False) -> CentersItem:
    """Runs that give back the published values of Table 1, give or take one, under changing center numbers."""
    item = ITEMS["table1-synthetic"]
    assert isinstance(item, CentersItem)
    for column in item.columns:
        assert column.printed is not None
        by_center = [list(row) for row in zip(*column.printed.values, strict=True)]
        for seed in range(3):
            table = [[value + seed - 1 for value in row] for row in by_center]
            spec = column.spec("fast").with_seed(seed)
            if swapped and column.name == "30:70":  # now this is the best partition
                table = [[2.0, 50.0], [50.0, 2.0 + seed]]
            finish(out, spec, table[:: 1 if seed % 2 else -1], 5.0)
    return item


def test_a_table_of_centers_beside_the_published_one(tmp_path: Path) -> None:
    item = table_1(tmp_path)
    told = centers.report_on(item, case(tmp_path))
    assert told.ruling is not None
    assert (told.ruling.word, told.ruling.within, told.ruling.pairs) == ("reproduced", 4, 4)
    assert told.ruling.worst_chance == 0
    blocks = {block.id: block for block in told.section.blocks if isinstance(block, Table)}
    assert text_of(blocks["table1-synthetic-published"], 0)[1:3] == ["29.5", "68.4"]
    assert text_of(blocks["table1-synthetic-ours"], 0)[1:3] == ["29.5 ± 1.0", "68.4 ± 1.0"]
    assert [cell.best for cell in blocks["table1-synthetic-ours"].rows[1][1:3]] == [False, True]
    assert text_of(blocks["table1-synthetic-difference"], 0)[1:3] == ["+0.000", "+0.000"]
    assert text_of(blocks["table1-synthetic-scaled"], 0)[1] == "0.29 ± 0.01"
    runs = blocks["table1-synthetic-ours"].rows[0][1].runs
    assert [run.name for run in runs] == [item.columns[0].spec("fast").with_seed(s).id for s in range(3)]


def test_a_claim_that_fails_is_named(tmp_path: Path) -> None:
    told = centers.report_on(table_1(tmp_path, swapped=True), case(tmp_path))
    assert told.ruling is not None
    assert told.ruling.word == "contradicted"
    assert "30:70 is the worst partition" in told.ruling.sentence
    assert told.ruling.within == 3


def test_an_item_without_runs_says_how_to_make_them(tmp_path: Path) -> None:
    for item in SYNTHETIC:
        told = section_of(item, case(tmp_path))
        assert told.ruling is None
        assert f"fedsoft paper run {item.id}" in str(told.section.blocks[0])


def test_a_run_that_is_damaged_or_missing_is_not_taken_for_one(tmp_path: Path) -> None:
    item = table_1(tmp_path)
    (tmp_path / item.columns[0].spec("fast").with_seed(1).id / "scores.json").unlink()
    assert "1 runs are missing" in str(centers.report_on(item, case(tmp_path)).section.blocks[0])


def test_the_files_of_a_report(tmp_path: Path) -> None:
    item = table_1(tmp_path / "runs")
    verdicts = write([item], "fast", 3, tmp_path / "runs", tmp_path / "out" / "paper.html")
    assert verdicts["table1-synthetic"].startswith("Table 1")
    html = (tmp_path / "out" / "paper.html").read_text()
    assert "29.5 ± 1.0" in html
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "reproduced" in (tmp_path / "out" / "paper.md").read_text()
    rows = list(csv.DictReader((tmp_path / "out" / "paper-data" / "all-runs.csv").read_text().splitlines()))
    assert len(rows) == 12
    assert {row["items"] for row in rows} == {"table1-synthetic"}
    made, _ = page([item], case(tmp_path / "runs"))
    assert len(made.all_runs) == 12


# --- tuning and comparisons -------------------------------------------------------------------------------------------


def complete(item: ComparisonItem, out: Path) -> None:
    """All runs that it still needs; the smaller rate suits IFCA badly, and nothing else matters."""
    library = Library(out)
    while missing := [s for s in item.wanted("fast", range(2), library) if not library.ended(s)]:
        for spec in missing:
            name, rate = spec.algorithm.name, spec.solver.settings["lr"]
            error = {"fedsoft": 10.0, "ifca": 20.0 if rate <= 0.005 else 5.0}.get(name, 40.0)
            table = [] if name == "local" else [[error, error + 1], [error + 2, error]]
            extra = {"centers": None, "best": None} if name == "local" else {}
            finish(out, spec, table or [[0.0, 0.0]], error, **extra)


def comparison(out: Path) -> ComparisonItem:
    """All runs of a small comparison in which tuning turns the order of FedSoft and IFCA."""
    item = ITEMS["comparison-synthetic"]
    assert isinstance(item, ComparisonItem)
    item = dataclasses.replace(item, presets={"10:90": "synthetic-10-90"}, rates={"fast": (1.0, 2.0)},
                               epochs={"fast": (10,)}, tuning_seeds={"fast": 1})  # fmt: skip
    complete(item, out)
    return item


def test_runs_come_in_waves_and_tuned_ones_do_the_work_of_fedsoft(tmp_path: Path) -> None:
    item, library = comparison(tmp_path), Library(tmp_path)
    first = item.wanted("fast", range(2), Library(tmp_path / "none"))
    every = item.wanted("fast", range(2), library)
    labels = len(METHODS) + 2
    assert len(first) == 2 * labels + 1
    # Trials with one seed (2 rates, and one beyond, since of two the better one is at the edge), tuned runs with two.
    assert len(every) == len(first) + 3 * labels + 2 * labels
    assert sum(e.count for e in item.forecast("fast", range(2))) == len(every) - labels  # edges are not known before
    tuned = item.tuned_spec("10:90", "ifca", "fast", library, 0)
    assert tuned is not None
    assert (tuned.solver.settings["lr"], tuned.work) == (0.01, 1000)
    soft = item.tuned_spec("10:90", "fedsoft", "fast", library, 0)
    assert soft is not None
    assert soft.solver.settings["lr"] == 0.005


def test_the_text_says_when_the_order_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsoft.paper.methods._mixed", lambda library, run: 1.0)
    told = section_of(comparison(tmp_path), case(tmp_path, 2))
    assert told.ruling is None  # nothing is published
    centers_text = next(text for text in told.findings if "Best centers" in text)
    assert "With the paper's solver: FedSoft 10.0, IFCA 20.0" in centers_text
    assert "Tuned: IFCA 5.0, FedSoft 10.0" in centers_text
    assert "The order of these means changes, which was not tested. The oracle has 40.5 and 40.5." in centers_text
    blocks = {block.id: block for block in told.section.blocks if isinstance(block, Table)}
    ours = {row[0].text: row for row in blocks["comparison-synthetic-ours"].rows}
    assert [cell.text for cell in ours["Local training"][1:4]] == ["-", "-", "40.0 ± 0.0"]
    assert ours["Oracle (separated data)"][1].text == "40.0 ± 0.0"
    assert ours["FedSoft"][1].best
    choice = {row[0].text: row for row in blocks["comparison-synthetic-tuning"].rows}
    assert [(cell.text, cell.best) for cell in choice["IFCA"][1:]] == [
        ("-", False), ("21.0", False), ("6.00", True), ("6.00", False)
    ]  # fmt: skip


def test_what_the_paper_did_is_shown_before_everything_is_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("fedsoft.paper.methods._mixed", lambda library, run: 1.0)
    item = comparison(tmp_path)
    trials = item.trials("fast", Library(tmp_path))
    assert trials is not None
    (missing,) = trials[Point("ifca", 0.01, 10)]
    (tmp_path / missing.id / "scores.json").unlink()
    told = section_of(item, case(tmp_path, 2))
    assert any(
        "Tuned methods are not shown: at least 1 runs are missing" in str(block) for block in told.section.blocks
    )
    tables = {block.id for block in told.section.blocks if isinstance(block, Table)}
    assert tables == {"comparison-synthetic-ours"}
    assert told.findings == (f"{item.title}: the tuned part was not run.",)
    (tmp_path / item.plain("10:90", "ifca", "fast").with_seed(0).id / "scores.json").unlink()
    assert section_of(item, case(tmp_path, 2)).findings == (f"{item.title}: not run.",)


def test_a_trial_that_failed_is_shown_and_never_chosen(tmp_path: Path) -> None:
    item = comparison(tmp_path)
    library = Library(tmp_path)
    trials = item.trials("fast", library)
    assert trials is not None
    (failed,) = trials[Point("ifca", 0.01, 10)]
    (tmp_path / failed.id / "scores.json").unlink()
    assert item.tuning("fast", Library(tmp_path)) is None  # not ended
    library = Library(tmp_path)
    library.add_failures({failed.id: "it diverged"})
    assert item.tuning("fast", Library(tmp_path)) is None  # the best is at the edge now: rates beyond it come first
    complete(item, tmp_path)
    again = Library(tmp_path)
    tuning = item.tuning("fast", again)
    assert tuning is not None
    assert tuning.best["ifca"].lr == 0.005
    again.forget_failures()
    assert not again.ended(failed)


def test_seeds_are_as_many_as_asked_for() -> None:
    assert seeds_of(ITEMS["fig1"], "fast", None) == range(10)
    assert seeds_of(ITEMS["fig1"], "fast", 2) == range(2)
    assert BlockColumn("x", "synthetic-10-90", None).spec("fast").label == "synthetic-10-90-fedsoft"


# --- the command ------------------------------------------------------------------------------------------------------


def command(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "fedsoft"
    return subprocess.run([program, "paper", *words], cwd=out, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.engine
def test_the_command(tmp_path: Path) -> None:
    done = command(tmp_path, "run", "fig1", "--seeds", "2", "-j", "2")
    assert done.returncode == 0, done.stderr
    assert "2 runs are saved" in done.stdout
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scores.json")}
    assert command(tmp_path, "run", "fig1", "--seeds", "2").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scores.json")} == times
    done = command(tmp_path, "report", "fig1", "table3", "--seeds", "2", "--findings", "docs/findings.md")
    assert done.returncode == 0, done.stderr
    assert "Fig. 1" in done.stdout
    assert "table3: Table 3: eight synthetic sources: not run." in done.stdout
    assert "<svg" in (tmp_path / "paper.html").read_text()
    assert {"fig1-run.svg", "fig1-seeds.svg", "fig1-run.csv"} <= {p.name for p in (tmp_path / "paper-data").iterdir()}
    assert "Fig. 1" in (tmp_path / "docs" / "findings.md").read_text()
    listed = json.loads(command(tmp_path, "ls", "fig1", "--seeds", "2", "--json").stdout)
    assert [(row["item"], row["fast_runs"], row["fast_finished"]) for row in listed["items"]] == [
        ("fig1", 2, 2), ("all", 2, 2)
    ]  # fmt: skip
    assert listed["items"][0]["paper_seconds"] > 0


@pytest.mark.slow
@pytest.mark.engine
def test_images_that_are_not_there_do_not_keep_the_rest_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FEDSOFT_DATA", "FEDSOFT_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    done = command(tmp_path, "run", "fig1", "table4", "--seeds", "1", "-j", "1")
    assert done.returncode == 0, done.stderr
    assert "failed: letters-4-fast-fedsoft-s0" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list(tmp_path.glob("runs/synthetic-10-90-*/scores.json"))) == 1
    listed = command(tmp_path, "ls", "table4")
    assert "no data" in listed.stdout, listed.stderr


def test_who_only_looks_writes_nothing(tmp_path: Path) -> None:
    made = iter(range(9))
    library = Library(tmp_path / "runs", looks=True)
    assert [library.note("speed", "a", lambda: next(made)) for _ in range(2)] == [0, 0]  # but remembers
    assert not (tmp_path / "runs").exists()
    assert Library(tmp_path / "runs").note("speed", "a", lambda: next(made)) == 1
    assert Library(tmp_path / "runs", looks=True).note("speed", "a", lambda: next(made)) == 1
    assert Library(tmp_path / "runs", looks=True).note("speed", "b", lambda: next(made)) == 2  # notes are kept there
    assert Library(tmp_path / "runs").peek("speed", "b") == 2


@pytest.mark.engine
def test_ls_makes_no_folder(tmp_path: Path) -> None:
    done = command(tmp_path, "ls", "fig1", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "tabel1"], "unknown item of the paper 'tabel1'"),
        (["run", "--scale", "papr"], "unknown scale 'papr': did you mean 'paper'?"),
        (["report", "--seeds", "0"], "--seeds 0 is not allowed"),
        (["report", "fig1", "--out", "x.pdf"], "--out 'x.pdf' is not allowed"),
    ],
)
def test_bad_words_are_named(words: list[str], sentence: str) -> None:
    error = CliRunner().invoke(app, ["paper", *words]).exception
    assert isinstance(error, InputError), repr(error)
    assert sentence in str(error)
