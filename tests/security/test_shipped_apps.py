"""A node runs its own code: the app that a server ships with a run is neither unpacked nor imported nor run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from flwr.supernode.runtime import run_clientapp
from typer.testing import CliRunner

from fedsoft.cli import app
from fedsoft.errors import FedsoftError
from fedsoft.flower.launcher import NODE
from fedsoft.flower.local_cluster.cluster import LocalCluster
from fedsoft.flower.local_cluster.flwr import supernode_line
from fedsoft.flower.node import app_guard

TRAP = """
from pathlib import Path
Path({mark!r}).touch()
"""


def test_every_way_by_which_a_shipped_app_comes_is_replaced() -> None:
    for name, function in app_guard.REPLACED.items():
        assert callable(getattr(run_clientapp, name))
        assert function.__module__ == "fedsoft.flower.node.app_guard"


def test_another_flower_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its functions have other names, replacing them would change nothing."""
    for name in app_guard.REPLACED:
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))
    monkeypatch.delattr(run_clientapp, "install_from_fab")
    with pytest.raises(FedsoftError, match="'install_from_fab' is gone"):
        app_guard.guarded_clientapp()


def test_a_supernode_finds_no_command_but_ours(tmp_path: Path) -> None:
    """A run may ask for apps of other kinds, whose commands would unpack and run what it ships."""
    line = supernode_line(tmp_path / "bin", tmp_path / "s", "127.0.0.1:1", tmp_path / "ca.pem", tmp_path / "key")
    assert "--insecure" not in line
    assert not any("dependency" in word or "isolation" in word for word in line)
    commands = {path.name for path in (tmp_path / "bin").iterdir()}
    assert commands == {"flower-superexec", *TASK_TYPE_TO_COMMAND.values()}
    for name in commands - {"flower-superexec", NODE}:
        done = subprocess.run([tmp_path / "bin" / name, "--token", "x"], capture_output=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


@pytest.mark.slow
@pytest.mark.engine
def test_without_its_launcher_the_command_is_ours_too(tmp_path: Path) -> None:
    supernode_line(tmp_path / "bin", tmp_path / "s", "127.0.0.1:1", tmp_path / "ca.pem", tmp_path / "key")
    text = (tmp_path / "bin" / NODE).read_text("utf-8")
    assert "from fedsoft.flower.node.app_guard import main" in text
    (tmp_path / "flwr.py").write_text(
        TRAP.format(mark=str(tmp_path / "sprung"))
    )  # not from where it is started, either
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [tmp_path / "bin" / NODE, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "Run a Flower ClientApp" in done.stdout
    assert not (tmp_path / "sprung").exists()


def flower(*words: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(app, ["flower", *words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[LocalCluster]:
    place = ("--dir", str(tmp_path / "f"))
    try:
        flower("up", "--nodes", "1", *place)
        yield LocalCluster(tmp_path / "f")
    finally:
        flower("down", *place)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_a_shipped_app_that_writes_a_file_writes_none(federation: LocalCluster, tmp_path: Path) -> None:
    """Real processes, by the commands that a user types. The same trap in the server's part springs."""
    for part in ("client", "server"):
        path = federation.app / "fedsoft_app" / f"{part}.py"
        path.write_text(path.read_text("utf-8") + TRAP.format(mark=str(tmp_path / f"{part}-sprung")), "utf-8")
    place, small = ("--dir", str(tmp_path / "f")), ("--set", "dataset.clients=3", "--set", "K=2")
    states = json.loads(flower("status", "--json", *place))["processes"]
    assert states
    assert set(states.values()) == {"runs"}
    shown = flower("run", "synthetic-10-90", "--rounds", "1", "--out", str(tmp_path / "runs"), "--json", *small, *place)
    assert json.loads(shown)["runs"][0]["state"] == "finished"
    assert (tmp_path / "server-sprung").exists()
    assert not (tmp_path / "client-sprung").exists()
