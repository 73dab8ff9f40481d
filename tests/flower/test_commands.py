"""The commands, the project that they write, and what the app on a node imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedsoft as fs
from fedsoft.cli import app
from fedsoft.engines.flower.drive import rules_of
from fedsoft.engines.flower.loopback import Loopback
from fedsoft.engines.flower.nodefile import NodeConfig
from fedsoft.runs.execution import execute
from fedsoft.runs.spec import read
from fedsoft.runs.stage import Stage

from .places import alone, spec


def test_the_app_on_a_node_imports_next_to_nothing() -> None:
    """It is a new process for every message: torch alone would take it seconds."""
    code = "import sys, fedsoft.engines.flower.clientapp; print('torch' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_init_writes_a_project_that_can_be_read(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["flower", "init", str(tmp_path / "p")])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "p"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names >= {
        "README.md", "run.toml", "rules.toml", "certificates.sh", "compose.yml", "node/node.toml",
        "node/worker.service", "node/supernode.service", "server/superlink.service", "server/nginx.conf",
        "app/pyproject.toml", "app/LICENSE", "app/fedsoft_app/client.py", "app/fedsoft_app/server.py",
        "home/config.toml",
    }  # fmt: skip
    assert not any("__pycache__" in name for name in names)
    run, node = read(str(folder / "run.toml")), NodeConfig(folder / "node" / "node.toml")
    node.check_names(run.to_dict())  # the node agrees to what the run asks for
    assert node.name in run.dataset.settings["clients"]
    assert rules_of(folder)["quorum"] == 0.5
    connection = tomllib.loads((folder / "home" / "config.toml").read_text("utf-8"))["superlink"]["local"]
    assert connection["root-certificates"] == str(folder / "certificates" / "ca.pem")
    again = CliRunner().invoke(app, ["flower", "init", str(folder)])
    assert isinstance(again.exception, fs.InputError)
    assert "is not empty: choose a new folder" in str(again.exception)


def test_everything_that_is_started_is_told_not_to_call_home(tmp_path: Path) -> None:
    assert Loopback(tmp_path).environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert Loopback(tmp_path).environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    CliRunner().invoke(app, ["flower", "init", str(tmp_path / "p")])
    for path in [*(tmp_path / "p").rglob("*.service"), tmp_path / "p" / "compose.yml"]:
        text = path.read_text("utf-8")
        assert "FLWR_TELEMETRY_ENABLED" in text, path
        assert "FLWR_DISABLE_UPDATE_CHECK" in text, path


@pytest.mark.engine
@pytest.mark.skipif(shutil.which("openssl") is None or shutil.which("ssh-keygen") is None, reason="no openssl here")
def test_the_project_s_certificates_hold(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["flower", "init", str(tmp_path / "p")])
    folder = tmp_path / "p"
    for words in (["server", "federation.example.org"], ["node", "hospital-a"]):
        subprocess.run(["./certificates.sh", *words], cwd=folder, check=True, capture_output=True, timeout=120)
    line = ["openssl", "verify", "-verify_hostname", "federation.example.org", "-CAfile", "ca.pem", "server.pem"]
    subprocess.run(line, cwd=folder / "certificates", check=True, capture_output=True, timeout=120)
    assert (folder / "keys" / "hospital-a.pub").read_text("utf-8").startswith("ecdsa-sha2-nistp384 ")
    assert (folder / "keys" / "hospital-a").stat().st_mode & 0o077 == 0
    assert (folder / "certificates" / "server.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("words", [["status"], ["down"], ["run", "synthetic-10-90"]])
def test_a_federation_that_is_not_there(words: list[str], tmp_path: Path) -> None:
    line = ["flower", *words, "--dir", str(tmp_path / "none")]
    done = CliRunner().invoke(app, [*line, "--out", str(tmp_path)] if words[0] == "run" else line)
    assert isinstance(done.exception, fs.InputError)
    assert "there is no federation in" in str(done.exception)


def test_fit_has_no_nodes() -> None:
    fed = fs.datasets.synthetic(clients=4, points=(5, 8), dimension=2, test_points=5)
    with pytest.raises(fs.InputError, match="engine 'flower' runs what a preset or a file describes"):
        fs.fit(fs.FedAvg(), fed, fs.models.linear(), rounds=1, engine="flower")


def test_a_run_is_taken_up_by_the_engine_that_began_it(tmp_path: Path) -> None:
    folder = alone(spec(rounds=0), tmp_path / "run")
    (folder.path / "scores.json").unlink()
    (folder.path / "federation.json").write_text("{}", "utf-8")
    with pytest.raises(fs.StoreError, match="keep their memory at nodes: take it up with --engine flower"):
        execute(spec(rounds=0), folder.path, Stage())


def test_rules_are_checked(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("quorum = 2.0\n", "utf-8")
    with pytest.raises(fs.InputError, match=r"^quorum = 2.0 is not allowed"):
        rules_of(tmp_path)


def test_a_federation_keeps_its_number_of_nodes(tmp_path: Path) -> None:
    """Its clients are shared among them, and each remembers what it holds."""
    Loopback(tmp_path).prepare(2)
    with pytest.raises(fs.InputError, match=r"--nodes 3 is not allowed: the federation in '.*' has 2"):
        Loopback(tmp_path).prepare(3)
    Loopback(tmp_path).prepare(2)


def test_what_is_told_when_nothing_runs(tmp_path: Path) -> None:
    Loopback(tmp_path).prepare(2)
    done = CliRunner().invoke(app, ["flower", "status", "--dir", str(tmp_path)])
    assert "nothing runs: start it again with  fedsoft flower up --nodes 2" in done.output
    done = CliRunner().invoke(app, ["flower", "down", "--dir", str(tmp_path)])
    assert "nothing was running" in done.output
    assert "what clients remember stay" in done.output
