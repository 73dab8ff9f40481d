from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fedsoft.cli import app, main

FAST = ["--set", "clients=10", "--set", "points=[8, 20]", "--set", "K=4", "--set", "epochs=1", "--set", "test_points=9",
        "--rounds", "3"]  # fmt: skip


def fedsoft(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command as a user calls it."""
    program = Path(sys.executable).parent / "fedsoft"
    return subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)


def call(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> tuple[int, str, str]:
    """The same in this process: quicker, exit code and both outputs."""
    monkeypatch.setattr(sys, "argv", ["fedsoft", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    printed = capsys.readouterr()
    return int(caught.value.code or 0), printed.out, printed.err


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: call(*arguments, monkeypatch=monkeypatch, capsys=capsys)


def test_run_prints_everything_that_was_promised(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("run", "synthetic-10-90", *FAST)
    assert code == 0
    for words in (
        "oracle",
        "noise floor",
        "c0",
        "c1",
        "θ0",
        "held out",
        "worst decile",
        "true share",
        "gradients",
        "Saved",
    ):
        assert words in out, words
    folder = next((tmp_path / "runs").iterdir())
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in folder.iterdir()} >= {
        "spec.toml", "run.json", "rounds.jsonl", "state.safetensors", "scores.json"
    }  # fmt: skip


def test_ctrl_c_before_the_first_round_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsoft.studies.launch.launch", pressed)
    code, out, err = call("run", "synthetic-10-90", monkeypatch=monkeypatch, capsys=capsys)
    assert (code, out) == (130, "")
    assert "stopped; what was saved before is intact" in err


def test_every_command_has_an_example_that_is_its_own() -> None:
    def walk(command: Any, path: str) -> None:
        for name, one in getattr(command, "commands", {}).items():
            walk(one, f"{path} {name}")
        assert f"{path} " in f"{command.epilog} ", path

    walk(typer.main.get_command(app), "fedsoft")


def test_a_second_run_shows_the_first(run: Any, tmp_path: Path) -> None:
    _, first, _ = run("run", "synthetic-10-90", *FAST)
    code, second, told = run("run", "synthetic-10-90", *FAST)
    assert code == 0
    assert second == first
    assert "was finished before" in told
    run("run", "synthetic-10-90", *FAST, "--again")
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_json_is_json_and_nothing_else(run: Any) -> None:
    code, out, _ = run("run", "synthetic-10-90", *FAST, "--json", "--seeds", "0..1")
    assert code == 0
    found = json.loads(out)["runs"]
    assert [r["spec"]["seed"] for r in found] == [0, 1]
    assert found[0]["scores"]["centers"]
    name = found[0]["run"]
    assert json.loads(run("show", name, "--json")[1])["runs"][0] == found[0]
    assert [row["run"] for row in json.loads(run("ls", "--json")[1])] == [r["run"] for r in found]


def test_workers_and_memory_do_not_change_what_is_saved(run: Any, tmp_path: Path) -> None:
    code, one, err = run("run", "synthetic-10-90", *FAST, "--json", "--out", "one", "--workers", "1")
    assert code == 0, err
    code, two, err = run(
        "run", "synthetic-10-90", *FAST, "--json", "--out", "two", "--workers", "3", "--memory", "0.1k"
    )
    assert code == 0, err
    assert json.loads(one)["runs"][0]["scores"] == json.loads(two)["runs"][0]["scores"]
    states = [next((tmp_path / name).rglob("state.safetensors")).read_bytes() for name in ("one", "two")]
    assert states[0] == states[1]


def test_several_seeds_end_in_means_and_standard_deviations(run: Any) -> None:
    _, out, _ = run("run", "synthetic-10-90", *FAST, "--seeds", "0,2")
    assert "over 2 seeds: mean ± std" in out
    assert "divided by" in out


def test_show_and_ls(run: Any) -> None:
    assert "no runs" in run("ls")[1]
    run("run", "synthetic-10-90", *FAST)
    code, out, _ = run("ls")
    assert code == 0
    assert "synthetic-10-90-s0-" in out
    assert "finished" in out
    assert "oracle" in run("show", "synthetic")[1]
    assert run("resume", "synthetic")[0] == 0


def test_ls_tells_runs_apart(run: Any) -> None:
    run("run", "synthetic-10-90", *FAST, "--set", "lam=0.1", "--set", "work=1")
    run("run", "synthetic-10-90", *FAST, "--set", "solver=sgd", "--set", "lr=1e30")
    out, rows = run("ls")[1], json.loads(run("ls", "--json")[1])
    budget, diverged = (line for line in out.splitlines() if line.startswith("synthetic"))
    assert all(word in budget for word in ("lam=0.1", "work=1", "1/3", "finished (budget)"))
    assert all(word in diverged for word in ("solver=sgd", "lr=1e+30", "0/3", "diverged"))
    assert rows[0]["settings"]["algorithm.lam"] == 0.1
    assert [row["state"] for row in rows] == ["finished (budget)", "diverged"]
    assert "Ended by its budget, after 1 of at most 3 rounds" in run("show", rows[0]["run"])[1]
    name = rows[1]["run"]
    assert "diverged after round 0 of 3" in run("show", name)[1]
    code, _, err = run("resume", name)
    assert code == 2
    assert "would again with the same settings" in " ".join(err.split())
    assert "solver.lr" in err
    assert json.loads(run("show", name, "--json")[1])["runs"][0]["diverged"]


def test_a_toml_file_runs(run: Any, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'rounds = 2\nalgorithm = "fedsoft"\nmodel = "mlp"\npartition = "random"\n'
        '[dataset]\nname = "synthetic"\nS = 3\nclients = 6\npoints = [5, 9]\ntest_points = 10\n'
        '[solver]\nname = "sgd"\nepochs = 1\n'
    )
    code, out, err = run("run", "own.toml")
    assert code == 0, err
    assert "random partition" in out


OWN = """
rounds = 9
algorithm = "fedsoft"
model = "linear"
[dataset]
name = "synthetic"
clients = 8
points = [5, 9]
test_points = 10
[fast]
about = "two rounds"
rounds = 2
"""


def test_a_fast_variant_is_called_so_wherever_it_appears(run: Any, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    code, out, err = run("run", "own.toml", "--fast")
    assert code == 0, err
    assert out.startswith("fedsoft on synthetic, seed 0, fast variant\n")
    folder = next((tmp_path / "runs").iterdir())
    assert folder.name.startswith("own-fast-s0-")
    assert "fast" in run("show", "own-fast")[1].splitlines()[0]
    assert "own-fast-s0-" in run("ls")[1]
    listed = json.loads(run("ls", "--json")[1])
    assert [(row["variant"], row["rounds"]) for row in listed] == [("fast", "2/2")]
    found = json.loads(run("show", "own-fast", "--json")[1])["runs"][0]["spec"]
    assert (found["variant"], found["about"]) == ("fast", "fast variant: two rounds")


@pytest.mark.engine
def test_fast_variants_are_compared_as_such(run: Any, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    code, out, err = run("compare", "own.toml", "--fast", "-a", "fedsoft,fedavg", "--seeds", "0", "-j", "1")
    assert code == 0, err
    assert "own-fast: MSE" in out
    assert all("own-fast" in path.name for path in (tmp_path / "runs").iterdir())


def test_presets_are_listed_with_their_fast_variants(run: Any) -> None:
    rows = {row["name"]: row["fast"] for row in json.loads(run("list", "presets", "--json")[1])}
    assert rows["letters-10-90"]
    assert rows["synthetic-8"] is None
    assert "fast variant (--fast)" in run("list", "presets")[1]


@pytest.mark.parametrize("kind", ["algorithms", "datasets", "partitions", "models", "solvers", "presets"])
def test_list(run: Any, kind: str) -> None:
    code, out, _ = run("list", kind)
    assert code == 0
    rows = json.loads(run("list", kind, "--json")[1])
    assert not {"seed", "partition"} & {key for row in rows for key in row["settings"]}  # these are the run's
    assert rows
    for row in rows:
        assert row["name"] in out
        assert row["about"], row


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "synthetic-10-9"], "did you mean 'synthetic-10-90'"),
        (["run", "missing.toml"], "cannot read 'missing.toml'"),
        (["run", "synthetic-10-90", "--fast"], "--fast: 'synthetic-10-90' has no table [fast]"),
        (["run", "synthetic-10-90", "--set", "K=101"], "algorithm.K = 101"),
        (["run", "synthetic-10-90", "--set", "algorithm.S=0"], "algorithm.S = 0"),
        (["run", "synthetic-10-90", "--seed", "1", "--seeds", "0..4"], "cannot be given together"),
        (["run", "synthetic-10-90", "--seeds", "4..0"], "is empty"),
        (["run", "synthetic-10-90", "--seeds", "x"], "0..4"),
        (["run", "synthetic-10-90", "--seed", "-1"], "seed = -1"),
        (["run", "synthetic-10-90", "--rounds", "-1"], "rounds = -1"),
        (["run", "synthetic-10-90", "--device", "tpu"], "'tpu' is not available"),
        (["run", "synthetic-10-90", "--set", "solver.lr=1e30"], "diverged"),
        (["run", "synthetic-10-90", "--workers", "0"], "workers = 0"),
        (["run", "synthetic-10-90", "--memory", "lots"], "memory = 'lots' is not allowed: should be a size"),
        (["compare", "synthetic-10-90", "-a", "fedavg", "--memory", "lots"], "memory = 'lots'"),
        (["compare", "synthetic-10-90", "-a", "fedavg", "--workers", "-1"], "workers = -1"),
        (["show", "nothing"], "there is no run 'nothing'"),
        (["resume", "nothing"], "there is no run 'nothing'"),
        (["show", "/"], "not the folder of a fedsoft run"),
        (["list", "algorithm"], "did you mean 'algorithms'"),
        (["run", "synthetic-10-90", "--out", "/dev/null/x"], "cannot write to"),
        (["run", "synthetic-10-90", "--set", "points=[9, 5]"], "dataset.points = [9, 5] is not allowed"),
        (
            ["run", "synthetic-10-90", "--set", "first=simplex", "--set", "aggregate=unmix", "--set", "model=mlp"],
            "algorithm.aggregate = 'unmix' is not allowed for this model",
        ),
        (
            ["run", "synthetic-10-90", "--keep", "0"],
            "--keep: 0 is not in the range x>=1 (see 'fedsoft run --help')",
        ),
        (["run", "synthetic-10-90", "--seed", "x"], "--seed: 'x' is not a valid integer (see 'fedsoft run --help')"),
        (["adopt", "x", "--data", "y", "--level", "half"], "--level: 'half' is not a valid float"),
        (["run", "synthetic-10-90", "--round", "3"], "unknown option '--round': did you mean '--rounds'?"),
        (["run"], "PRESET|FILE.toml is missing (see 'fedsoft run --help')"),
        (["adopt", "x"], "--data is missing (see 'fedsoft adopt --help')"),
        (["runn"], "unknown command 'runn': did you mean 'run'?"),
        (["paper", "list"], "unknown command 'list': did you mean 'ls'?"),
        (["run", "synthetic-10-90", "more"], "unexpected extra argument (more) (see 'fedsoft run --help')"),
        (["flower", "up", "--nodes"], "option '--nodes' requires an argument"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(run: Any, arguments: list[str], words: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert err.strip().count("\n") == 0
    assert "Traceback" not in err


def test_a_setting_that_does_not_fit_the_model_leaves_no_folder(run: Any, tmp_path: Path) -> None:
    code, _, err = run("run", "synthetic-10-90", "--set", "aggregate=unmix", "--set", "model=mlp")
    assert code == 2
    assert "algorithm.aggregate = 'unmix' is not allowed for this model" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("arguments", [[], ["paper"]])
def test_a_command_alone_shows_its_help(run: Any, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert "Usage: " + " ".join(["fedsoft", *arguments]) in out
    assert err == ""


def test_a_damaged_run_is_refused_and_listed_as_such(run: Any, tmp_path: Path) -> None:
    run("run", "synthetic-10-90", *FAST)
    folder = next((tmp_path / "runs").iterdir())
    (folder / "run.json").write_text("{")
    code, _, err = run("show", folder.name)
    assert code == 2
    assert "is damaged" in err
    assert "damaged" in run("ls")[1]


def test_every_command_has_help_with_an_example() -> None:
    group = typer.main.get_command(app)
    names = list(group.commands)  # pyright: ignore[reportAttributeAccessIssue]
    assert set(names) >= {"run", "ls", "show", "resume", "list"}
    for name in names:
        shown = CliRunner().invoke(app, [name, "--help"])
        assert shown.exit_code == 0
        assert f"fedsoft {name}" in shown.output.split("Example:")[1]


@pytest.mark.engine
def test_the_installed_command_without_arguments_shows_help(tmp_path: Path) -> None:
    assert "Usage: fedsoft" in fedsoft("--help", cwd=tmp_path).stdout
    assert fedsoft("--version", cwd=tmp_path).stdout.startswith("fedsoft 0.")
    assert fedsoft("nonsense", cwd=tmp_path).returncode == 2


@pytest.mark.engine
def test_completion_offers_presets(tmp_path: Path) -> None:
    environment = os.environ | {
        "_FEDSOFT_COMPLETE": "complete_bash",
        "COMP_WORDS": "fedsoft run syn",
        "COMP_CWORD": "2",
    }
    program = Path(sys.executable).parent / "fedsoft"
    done = subprocess.run([program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "synthetic-10-90" in done.stdout


@pytest.mark.engine
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "fedsoft"
    process = subprocess.Popen(
        [program, "run", "synthetic-10-90", "--rounds", "5000"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/state.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped and saved after round" in err
    assert "fedsoft resume runs/synthetic-10-90" in err
    assert "Traceback" not in err
    listed = fedsoft("ls", cwd=tmp_path)
    assert "stopped" in listed.stdout


@pytest.mark.parametrize(("columns", "width"), [("40", 110), ("80", 110), ("160", 160)])
def test_tables_in_a_file_are_neither_crammed_nor_endless(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsoft.cli.common import page

    monkeypatch.setenv("COLUMNS", columns)
    assert page().width == width
