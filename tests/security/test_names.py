"""Code outside of fedsoft is imported only where somebody who may decide has named it: a folder is data."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedsoft as fs
from fedsoft import plugins
from fedsoft.errors import InputError, StoreError
from fedsoft.plugins import ConsentError
from fedsoft.runs import spec as specs
from fedsoft.runs.checkpoints import Checkpoint
from fedsoft.runs.execute import execute, resume
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions, build
from fedsoft.runs.sealed import sealed_text
from fedsoft.runs.spec import RunSpec
from tests import helpers

SMALL = [*helpers.SMALL, "rounds=1"]
PARTS = ["algorithm", "dataset", "partition", "model", "solver", "aggregator", "attack"]


def raw_with(part: str, name: str) -> dict[str, Any]:
    synthetic = {"name": "synthetic", "clients": 4, "points": [6, 9], "dimension": 3, "test_points": 10}
    raw: dict[str, Any] = {
        "rounds": 1, "algorithm": "fedavg", "model": "linear", "dataset": synthetic, "partition": "10:90",
        "solver": {"name": "sgd", "epochs": 1},
    }  # fmt: skip
    if part == "factory":
        return raw | {"model": {"name": "module", "factory": name}}
    return raw | {part: {"name": name}}


def run_folder(tmp_path: Path) -> RunFolder:
    return execute(specs.read("synthetic-10-90", SMALL), tmp_path / "runs" / "run", RunOptions())[0]


def forged(tmp_path: Path, part: str, name: str) -> RunFolder:
    """A finished run from elsewhere: its spec names code, and its hash is right."""
    made = run_folder(tmp_path)
    raw = made.spec().to_dict()
    table = {"name": "module", "factory": name, "init": "own", "loss": "auto"} if part == "factory" else {"name": name}
    raw["model" if part == "factory" else part] = table
    forged = RunSpec.from_dict(raw, source="saved")
    (made.path / "spec.toml").write_text(tomli_w.dumps(forged.to_dict()))
    point, info = made.checkpoint(), made.info
    assert point is not None
    loaded = Checkpoint(point.rounds, point.state, dict(point.client_states))
    made.write("run.json", sealed_text(replace(info, hash=forged.hash).to_dict()).encode())
    made.save(loaded)
    return made


@pytest.mark.parametrize("part", [*PARTS, "factory"])
def test_nothing_is_imported_without_consent(trap: Path, part: str) -> None:
    with pytest.raises(ConsentError, match="trapped:called"):
        build(RunSpec.from_dict(raw_with(part, "trapped:called")), RunOptions())
    assert not (trap / "sprung").exists()


def test_consent_is_for_one_name(trap: Path) -> None:
    with pytest.raises(ConsentError, match="trapped:called"):
        plugins.imported("trapped:called", allow=["trapped:other", "trapped", "other:called"])
    assert not (trap / "sprung").exists()
    plugins.imported("trapped:called", allow=["trapped:called"])
    assert (trap / "sprung").exists()  # the trap works


@pytest.mark.parametrize("name", ["os:system", "sys:exit", "os:abort", "builtins:exec", "subprocess:run"])
def test_python_s_own_library_is_no_plugin(name: str) -> None:
    with pytest.raises(InputError, match="not in Python's library"):
        plugins.imported(name, allow=[name])


@pytest.mark.parametrize("name", ["x", "10:90", "a.b:", ":c", "a:b:c", "a b:c", "a-b:c", "../a:b", "a:b.c", ""])
def test_what_names_no_code_is_refused(name: str) -> None:
    assert not plugins.is_code(name)
    with pytest.raises(InputError, match=r"should be 'package\.module:name'"):
        plugins.imported(name, allow=[name])


WORDS = {
    "show": ["show", "RUN"],
    "ls": ["ls", "--out", "RUNS"],
    "report": ["report", "RUN", "--out", "page.html"],
    "adopt": ["adopt", "RUN", "--data", "new.csv"],
    "predict": ["predict", "RUN", "--data", "new.csv", "--center", "0"],
    "export": ["export", "RUN"],
    "resume": ["resume", "RUN"],
}


def command(words: list[str], folder: Path, modules: Path) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own, with the trap in reach."""
    line = [sys.executable, "-c", "from fedsoft.cli import main; main()", *words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(modules), *filter(None, sys.path)])}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("part", ["algorithm", "factory"])
@pytest.mark.parametrize("what", WORDS)
def test_commands_import_nothing_that_a_folder_names(tmp_path: Path, trap: Path, what: str, part: str) -> None:
    made = forged(tmp_path, part, "trapped:called")
    if what == "resume":
        (made.path / "scores.json").unlink()  # a finished run is only shown
    (tmp_path / "new.csv").write_text("a,b,c,y\n" + "1,2,3,4\n" * 9)
    words = [{"RUN": str(made.path), "RUNS": str(made.path.parent)}.get(word, word) for word in WORDS[what]]
    done = command(words, tmp_path, trap)
    assert not (trap / "sprung").exists(), done.stderr
    assert "Traceback" not in done.stderr
    if what in ("show", "ls", "report"):  # what can be shown without is shown
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2
        assert "--allow trapped:called" in done.stderr


@pytest.mark.slow
@pytest.mark.engine
def test_the_user_consents_on_the_command_line(tmp_path: Path, trap: Path) -> None:
    made = forged(tmp_path, "factory", "trapped:called")
    done = command(["export", str(made.path), "--allow", "trapped:called"], tmp_path, trap)
    assert (trap / "sprung").exists(), done.stderr


@pytest.mark.slow
@pytest.mark.engine
def test_a_file_that_is_run_is_consent_and_its_names_are_printed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(3, 1)\n")
    raw = raw_with("factory", "mine:net")
    (tmp_path / "run.toml").write_text(tomli_w.dumps(raw))
    done = command(["run", "run.toml"], tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mine:net" in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    refused = command(["export", str(folder)], tmp_path, tmp_path)
    assert refused.returncode == 2
    assert "--allow ./mine:net" in refused.stderr
    assert command(["export", str(folder), "--allow", "./mine:net"], tmp_path, tmp_path).returncode == 0
    assert command(["run", "run.toml"], tmp_path, tmp_path).returncode == 0  # found again


MODULES = ("multiprocessing", "pip", "numpy", "torch", "pyarrow", "json", "signal", "flwr", "fedsoft", "sitecustomize")


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(
    "words",
    [
        ["compare", "synthetic-10-90", "--algorithms", "fedavg,local", "--jobs", "2", "--set", "rounds=1"],
        ["data", "fetch", "electricity", "--data-dir", "data"],
        ["run", "run.toml"],
        ["flower", "status"],
    ],
    ids=["compare", "fetch", "parquet", "flower"],
)
def test_no_module_comes_from_the_folder_where_a_command_is_typed(words: list[str], tmp_path: Path) -> None:
    """Nor in the processes that it starts: Python itself would look there first. A folder is data, wherever one is."""
    from pyarrow import parquet, table

    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'a').write({name!r})\n")
    (tmp_path / "clients").mkdir()
    parquet.write_table(table({"a": [1.0, 2.0] * 9, "y": [1.5, 2.5] * 9}), tmp_path / "clients" / "a.parquet")
    dataset = {"name": "folder", "path": "clients"}
    (tmp_path / "run.toml").write_text(
        tomli_w.dumps({"rounds": 1, "algorithm": "fedavg", "model": "linear", "dataset": dataset})
    )
    fedsoft = Path(sys.executable).with_name("fedsoft")  # as it is installed
    modules = os.pathsep.join(path for path in sys.path if path and Path(path).name == "src")
    environment = os.environ | {"PYTHONPATH": modules, "PIP_NO_INDEX": "1"}
    done = subprocess.run([fedsoft, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert not (tmp_path / "sprung").exists(), done.stderr
    assert "Traceback" not in done.stderr


def test_python_asks_for_consent_too(tmp_path: Path, trap: Path) -> None:
    made = forged(tmp_path, "factory", "trapped:called")
    with pytest.raises(ConsentError, match="trapped:called"):
        fs.load(made.path)
    with pytest.raises(ConsentError, match="trapped:called"):
        resume(forged(tmp_path / "other", "algorithm", "trapped:called"), RunOptions(), again=True)
    assert not (trap / "sprung").exists()


def test_a_changed_folder_is_found_out_before_anything_else(tmp_path: Path, trap: Path) -> None:
    made = run_folder(tmp_path)
    text = (made.path / "spec.toml").read_text().replace('name = "linear"', 'name = "trapped:called"')
    (made.path / "spec.toml").write_text(text)
    with pytest.raises(StoreError, match="was changed after the run began"):
        made.spec(allow=[])
    assert not (trap / "sprung").exists()


def test_a_module_that_is_not_found_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"looked for nowhere_at_all\.py on Python's path: give its folder"):
        plugins.imported("nowhere_at_all:net", allow=["nowhere_at_all:net"])
    with pytest.raises(InputError, match=rf"looked for nowhere_at_all\.py in '{tmp_path}' and on Python's path: put"):
        plugins.imported("nowhere_at_all:net", allow=[f"{tmp_path}/nowhere_at_all:net"])
