"""The summary of a run says how to compare it with one global model, by a command that works."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import fedsoft as fs
from fedsoft.reports.tables import run_view
from fedsoft.runs.folder import RunFolder
from tests.cli.test_cli import run as run

SMALL = ["clients=6", "points=[20, 30]", "K=all", "epochs=1", "test_points=20", "rounds=2"]


def said(folder: RunFolder) -> list[str]:
    console = Console(record=True, width=400)
    console.print(run_view(folder))
    return [line for line in console.export_text().splitlines() if line.startswith("One global model: ")]


@pytest.mark.slow
def test_the_command_is_one_that_works(run: Any, tmp_path: Path) -> None:
    settings = [word for one in SMALL for word in ("--set", one)]
    code, out, err = run("run", "synthetic-10-90", *settings, "--out", "my runs", "--seed", "3")
    assert code == 0, err
    (folder,) = (tmp_path / "my runs").iterdir()
    assert "One global model: fedsoft compare" in out
    (line,) = said(RunFolder.open(folder))
    command = shlex.split(line.removeprefix("One global model: "))
    assert command[2] == str(folder / "spec.toml")
    assert command[3:] == ["-a", "fedsoft,fedavg,local", "--seeds", "3"]
    code, out, err = run(*command[1:])
    assert code == 0, err
    assert "fedavg" in out


def test_nothing_is_said_where_no_command_could(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fed = fs.Federation.from_clients([(rng.standard_normal((8, 2)), rng.standard_normal(8)) for _ in range(3)])
    made = fs.fit(fs.FedSoft(S=2), fed, fs.models.linear(), rounds=1)
    assert said(RunFolder.open(made.save(tmp_path / "of arrays"))) == []
