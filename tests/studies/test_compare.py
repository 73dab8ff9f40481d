from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedsoft.errors import FedsoftError, InputError
from fedsoft.reports.comparison import ComparisonReport
from fedsoft.runs import spec
from fedsoft.studies.compare import Budget, Comparison, compare, entries, total
from fedsoft.studies.methods import parse_algorithms
from fedsoft.studies.process_pool import ProcessPool

SMALL = ["clients=10", "points=[8, 20]", "K=4", "epochs=2", "test_points=20", "rounds=6"]


def small() -> spec.RunSpec:
    return spec.read("synthetic-10-90", SMALL)


def run(out: Path, algorithms: str, *changes: str, budget: Budget = "rounds", jobs: int = 2) -> Comparison:
    base = spec.read("synthetic-10-90", [*SMALL, *changes])
    found = compare(base, algorithms, [0, 1], ProcessPool(out, jobs), budget=budget)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def by_work(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return run(tmp_path_factory.mktemp("work"), "fedsoft,fedavg,ifca(average=gradient)", budget="work")


def test_algorithms_take_settings_in_brackets() -> None:
    assert parse_algorithms("fedsoft, ifca(average=gradient, lr=0.5),fedavg") == [
        ("fedsoft", {}),
        ("ifca", {"average": "gradient", "lr": 0.5}),
        ("fedavg", {}),
    ]


@pytest.mark.parametrize("text", ["", "fedsoft,,ifca", "ifca(lr)", "ifca(lr=1", "fedsoft;ifca)"])
def test_a_malformed_list_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        entries(small(), text, [0])


@pytest.mark.parametrize(
    ("text", "words"),
    [("fedsft", "did you mean 'fedsoft'"), ("ifca(lrr=1)", "did you mean 'lr'"), ("ifca,ifca", "the same thing twice")],
)
def test_a_bad_name_is_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        entries(small(), text, [0])


def test_all_share_data_initial_weights_and_the_settings_of_the_preset() -> None:
    made = entries(small(), "fedsoft,ifca,fedavg", [3, 5])
    assert [(e.label, e.spec.seed) for e in made] == [
        ("fedsoft", 3), ("fedsoft", 5), ("ifca", 3), ("ifca", 5), ("fedavg", 3), ("fedavg", 5)
    ]  # fmt: skip
    assert {e.spec.algorithm.settings["K"] for e in made} == {4}
    assert made[2].spec.algorithm.settings["S"] == 2
    assert {json.dumps(e.spec.to_dict()["dataset"]) for e in made} == {json.dumps(small().to_dict()["dataset"])}


@pytest.mark.engine
def test_nobody_spends_more_work_than_the_first(by_work: Comparison) -> None:
    allowed = [total(folder, "work") for folder in by_work.folders["fedsoft"]]
    for label in ("fedavg", "ifca(average=gradient)"):
        for folder, most in zip(by_work.folders[label], allowed, strict=True):
            spent = total(folder, "work")
            assert most * 0.6 < spent <= most * 1.05  # who is drawn decides what a round costs
    assert len(by_work.folders["ifca(average=gradient)"][0].records()) > len(by_work.folders["fedsoft"][0].records())


@pytest.mark.engine
def test_the_table_shows_quality_cost_and_truth(by_work: Comparison) -> None:
    from rich.console import Console

    console = Console(width=250, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    for table in ComparisonReport.of(by_work).tables(250):
        console.print(table)
    text = console.export_text()
    console.file.close()
    for words in (
        "same client work",
        "2 seeds",
        "±",
        "oracle",
        "noise floor",
        "error",
        "decile",
        "gradients",
        "up",
        "seconds",
    ):
        assert words in text, words
    assert len(ComparisonReport.of(by_work).tables(250)) == 1
    (short,) = replace(ComparisonReport.of(by_work), brief=True).tables(250)
    assert len(short.columns) < len(ComparisonReport.of(by_work).tables(250)[0].columns) - 4  # no cost
    for table in ComparisonReport.of(by_work).tables(80):
        assert Console(width=1000).measure(table).maximum <= 80


@pytest.mark.engine
def test_rows_csv_and_figure(by_work: Comparison) -> None:
    report = ComparisonReport.of(by_work)
    rows = [row.to_dict() for row in report.measured]
    assert [row["algorithm"] for row in rows] == ["fedsoft", "fedavg", "ifca(average=gradient)"]
    assert rows[1]["recovery"] == [None, None]  # FedAvg estimates no mixture
    lines = list(csv.DictReader(report.to_csv().splitlines()))
    assert len(lines) == 6
    assert float(lines[0]["best_center_0"]) == rows[0]["best_center"][0][0]
    assert report.png().startswith(b"\x89PNG")


@pytest.mark.engine
def test_runs_that_are_scored_now_and_then_are_compared(tmp_path: Path) -> None:
    found = run(tmp_path, "fedsoft,local", "score_every=4", budget="work")
    assert [[bool(r.centers) for r in folder.records()] for folder in found.folders["fedsoft"]] == [
        [True, False, False, False, True, True]
    ] * 2
    report = ComparisonReport.of(found)
    assert report.png().startswith(b"\x89PNG")
    assert report.tables(200)


@pytest.mark.engine
def test_what_is_saved_is_not_run_again(tmp_path: Path) -> None:
    first = run(tmp_path, "fedavg,ifca")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    second = run(tmp_path, "fedavg,ifca", jobs=1)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == times
    assert second.name == first.name


@pytest.mark.engine
def test_the_number_of_processes_does_not_matter(tmp_path: Path) -> None:
    one, two = run(tmp_path / "one", "fedsoft,ifca", jobs=1), run(tmp_path / "two", "fedsoft,ifca", jobs=2)
    for label, folders in one.folders.items():
        for a, b in zip(folders, two.folders[label], strict=True):
            assert (a.path / "state.safetensors").read_bytes() == (b.path / "state.safetensors").read_bytes()


@pytest.mark.engine
def test_a_method_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / entries(small(), "ifca", [0])[0].spec.id).mkdir()  # no run is in this folder
    with pytest.raises(FedsoftError, match=r"ifca, seed 0: .*run\.json' is missing"):
        run(tmp_path, "ifca", jobs=1)


@pytest.mark.engine
def test_ctrl_c_saves_and_the_same_command_resumes(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "fedsoft"
    command = [
        program,
        "compare",
        "synthetic-10-90",
        "-a",
        "fedavg,ifca",
        "--seeds",
        "0",
        "--rounds",
        "3000",
        "-j",
        "2",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 90
    while len(list(tmp_path.glob("runs/*/state.safetensors"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert err.endswith("stopped and saved: the same command resumes it\n")
    assert "Traceback" not in err


@pytest.mark.engine
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "fedsoft"
    command = [program, "compare", "synthetic-10-90", "-a", "fedavg,ifca", "--seeds", "0", "--rounds", "5000"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while len(list(tmp_path.glob("runs/*/state.safetensors"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()  # the parent only
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    sizes = [path.stat().st_size for path in tmp_path.glob("runs/*/rounds.jsonl")]
    time.sleep(1)
    assert [path.stat().st_size for path in tmp_path.glob("runs/*/rounds.jsonl")] == sizes


@pytest.mark.parametrize(
    ("second", "words"),
    [("fedavg(K=11)", r"fedavg\(K=11\): algorithm\.K = 11 is not allowed: should be at most 10"),
     ("fedsoft(aggregate=unmix)", r"algorithm\.aggregate = 'unmix' is not allowed for this model")],
)  # fmt: skip
def test_settings_of_all_algorithms_are_checked_before_anything_runs(tmp_path: Path, second: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(tmp_path, f"ifca,{second}", "model=mlp")
    assert not list(tmp_path.iterdir())


@pytest.mark.engine
def test_a_budget_that_the_first_does_not_spend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'local' spends none"):
        run(tmp_path, "local,fedavg", budget="bytes", jobs=1)


@pytest.mark.engine
def test_the_command(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "fedsoft"
    changes = [part for change in SMALL for part in ("--set", change)]
    command = [program, "compare", "synthetic-10-90", "-a", "fedsoft,fedavg", "--seeds", "0..1", *changes]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "oracle" in done.stdout
    folder = next(tmp_path.glob("runs/compare-*"))
    assert {path.name for path in folder.iterdir()} == {"comparison.csv", "figure.png"}
    as_json = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert [row["algorithm"] for row in json.loads(as_json.stdout)["algorithms"]] == ["fedsoft", "fedavg"]
    bad = subprocess.run([*command, "--budget", "time"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert bad.returncode == 2
    assert bad.stderr.startswith("error: unknown budget 'time'")
