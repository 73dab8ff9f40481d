"""Every benchmark runs, both sides compute the same, and the table says what changed. How fast is not tested."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import benchmarks.__main__ as bench
import pytest
import torch
from benchmarks import page
from benchmarks.rows import ALLOWED, ROWS
from benchmarks.table import Result, change, read, save, show
from rich.console import Console

ROOT = Path(__file__).parent.parent


def run(module: str, *options: str) -> str:
    done = subprocess.run([sys.executable, "-m", module, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_every_row_runs(name: str) -> None:
    row = ROWS[name]
    if row.obstacle():
        pytest.skip(str(row.obstacle()))
    with torch.no_grad():
        for make in (row.theirs, row.ours):
            side = make(True)
            for _ in range(2):
                seconds, units = side()
                assert seconds > 0
                assert units >= 1
        if row.check is not None:
            assert 0 <= row.check() <= ALLOWED


@pytest.mark.slow
@pytest.mark.engine
def test_the_table_runs(tmp_path: Path) -> None:
    saved = tmp_path / "results.json"
    save(saved, {"rows": {"digits": {"ratio": 12345.0}, "lstm": {"ratio": 1.0}}})
    out = run("benchmarks", "--quick", "--repeats", "1", "--only", "digits", "--json", str(saved))
    assert "12345 x WORSE" in out
    rows = json.loads(saved.read_text())["rows"]
    assert rows["digits"]["lowest"] == rows["digits"]["ratio"] == rows["digits"]["highest"] > 0
    assert rows["digits"]["difference"] <= ALLOWED
    assert rows["lstm"] == {"ratio": 1.0}  # what was not measured is kept


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("module", ["benchmarks.growth", "benchmarks.algorithms", "benchmarks.startup"])
def test_further_benchmarks_run(module: str, tmp_path: Path) -> None:
    saved = tmp_path / "results.json"
    run(module, "--quick", "--repeats", "1", "--json", str(saved))
    assert json.loads(saved.read_text())


@pytest.mark.slow
@pytest.mark.engine
def test_attacks_are_told_as_tables() -> None:
    out = run("benchmarks.attacks", "sums", "--seeds", "1")
    assert "| a client of 1 point; points = 10 | too-few-points | 1 ± 0 |" in out


def result(ratio: float) -> Result:
    times = {"median": 2e-3 * ratio, "best": 1e-3 * ratio}
    return {"theirs": times, "ours": times, "ratio": ratio, "lowest": ratio - 1, "highest": ratio + 1}


def test_the_table_says_what_was_reached_and_what_changed() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    now = {"letters": result(3.7), "letters-limit": result(1.9), "lstm": {"skipped": "there is no torch"}}
    now["letters-workers"] = result(1.1)
    console.print(show(now, {"letters": result(4.9), "letters-limit": result(1.8)}, free_cores=1.2))
    letters, limit, lstm, workers = [line for line in console.export_text().splitlines() if line.startswith("│")]
    assert ["yes", "4.9 x WORSE"] == [cell.strip() for cell in letters.split("│")[-3:-1]]
    assert ["at most 1.5 x", "NO", "1.8 x"] == [cell.strip() for cell in limit.split("│")[-4:-1]]
    assert "skipped" in lstm
    assert "busy" in workers


@pytest.mark.parametrize(
    ("row", "before", "now", "said"),
    [
        ("letters", 2.0, 2.29, "2 x"),
        ("letters", 2.0, 2.4, "2 x better"),
        ("letters", 2.0, 1.6, "2 x WORSE"),
        ("letters-limit", 2.0, 2.4, "2 x WORSE"),
        ("letters-limit", 2.0, 1.6, "2 x better"),
    ],
)
def test_changes_beyond_noise_are_pointed_out(row: str, before: float, now: float, said: str) -> None:
    assert change(ROWS[row], before, now) == said


def test_results_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert read(path) == {}
    save(path, {"rows": {"letters": result(2.0)}})
    assert read(path)["rows"]["letters"]["ratio"] == 2.0
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("name", page.PAGES)
def test_tables_on_pages_are_those_of_the_saved_results(name: str) -> None:
    found = (ROOT / name).read_text("utf-8")
    assert page.written(found, read(page.SAVED), page.PAGES[name]) == found


def test_rows_of_several_commits_say_so() -> None:
    results = read(page.SAVED)
    rows = {"letters": result(2.5) | {"commit": "abc"}, "letters-limit": result(1.9) | {"commit": "def"}}
    several = page.rows_of(results | {"rows": rows}, ("letters", "letters-limit", "lstm")).splitlines()
    assert several[-2].endswith("| **2.5** | 1.5 to 3.5 | 3.6 | abc |")
    assert several[-1].endswith("| **1.9** | 0.9 to 2.9 | at most 1.5 | def |")
    assert page.rows_of(results | {"rows": rows}, ("letters",)).splitlines()[0].endswith("commit abc.")
    with pytest.raises(SystemExit, match="marks"):
        page.written("no marks", results, {"speed": page.speed})


def test_parts_of_another_commit_say_so() -> None:
    commands = {"clients": 200, "seconds": {"ls": [0.3, 0.5, 0.4], "export": [9.0]}, "commit": "def"}
    results = {"rows": {"letters": result(2.5) | {"commit": "abc"}}, "parts": {"commands": commands}}
    text = page.part("commands")(results)
    assert "| `ls` | 0.40 | 0.30 | 0.50 | 0.5 |" in text
    assert "| 200 personal MLPs to ONNX | 9.00 | 9.00 | 9.00 | 10 |" in text
    assert text.endswith("Measured at commit def.")
    assert page.part("drawn")(results) == "Not measured yet."


def test_a_bench_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(name: str, repeats: int, small: bool) -> Result:
        if name == "letters-tuned" and len(measured) < 2:
            raise KeyboardInterrupt
        measured.append(name)
        return result(2.0)

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "ROWS", {name: ROWS[name] for name in ("letters", "letters-tuned")})
    monkeypatch.setattr(bench.page, "PARTS", {})
    monkeypatch.setattr(bench.page, "commit", lambda: "abc")
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(tmp_path / "results.json"), "--repeats", "1"])
    with pytest.raises(KeyboardInterrupt):
        bench.main()
    assert measured == ["letters"]
    measured.append("stopped")
    bench.main()
    assert measured == ["letters", "stopped", "letters-tuned"]
    assert [*read(tmp_path / "results.json")["rows"]] == ["letters", "letters-tuned"]
