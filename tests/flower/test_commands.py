"""The commands, the project that they write, and what the app on a node imports."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedsoft as fs
from fedsoft.cli import app
from fedsoft.flower.local_cluster import cluster, flwr
from fedsoft.flower.local_cluster.cluster import LocalCluster
from fedsoft.flower.local_cluster.files import ClusterSettings
from fedsoft.flower.node.config import NodeConfig
from fedsoft.flower.server.terms import read_terms
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import read

from .places import alone, spec


def test_the_app_on_a_node_imports_next_to_nothing() -> None:
    """It is a new process for every message: torch alone would take it seconds."""
    code = "import sys, fedsoft.flower.node.client_app; print('torch' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_init_writes_a_project_that_can_be_read(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["flower", "init", str(tmp_path / "p")])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "p"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names >= {
        "README.md", "run.toml", "terms.toml", "certificates.sh", "compose.yml", "node/node.toml",
        "node/worker.service", "node/supernode.service", "server/superlink.service", "server/nginx.conf",
        "app/pyproject.toml", "app/LICENSE", "app/fedsoft_app/client.py", "app/fedsoft_app/server.py",
        "federation.json",
    }  # fmt: skip
    assert not any("__pycache__" in name for name in names)
    run, node = read(str(folder / "run.toml")), NodeConfig(folder / "node" / "node.toml")
    assert node.read(run.to_dict()).model == run.model  # the node agrees to what the run asks for
    assert node.name in run.dataset.settings["clients"]
    assert read_terms(folder).quorum == 0.5
    assert LocalCluster(folder).settings == ClusterSettings("127.0.0.1:8000", 0)
    assert not any(str(tmp_path) in path.read_text("utf-8") for path in folder.rglob("*") if path.is_file())
    again = CliRunner().invoke(app, ["flower", "init", str(folder)])
    assert isinstance(again.exception, fs.InputError)
    assert "is not empty: choose a new folder" in str(again.exception)


def test_a_superlink_is_not_started_where_another_process_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end at once, and whoever connects would reach the other one."""
    monkeypatch.setattr(cluster, "GRACE", 0.3)
    place = LocalCluster(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        place.write_settings(ClusterSettings(f"127.0.0.1:{other.getsockname()[1]}", 1))
        with pytest.raises(fs.FedsoftError, match="another process listens at"):
            place.start_superlink()
    assert place.processes.read() == {}


def test_nothing_that_is_started_calls_home(tmp_path: Path) -> None:
    environment = flwr.environment(LocalCluster(tmp_path))
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
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
        fs.fit(fs.FedAvg(), fed, fs.models.linear(), rounds=1, options=fs.FitOptions(engine="flower"))


def test_a_run_is_resumed_by_the_engine_that_began_it(tmp_path: Path) -> None:
    folder = alone(spec(rounds=0), tmp_path / "run")
    (folder.path / "scores.json").unlink()
    (folder.path / "federation.json").write_text("{}", "utf-8")
    with pytest.raises(fs.StoreError, match="keep their state at nodes: go on with the command that began it"):
        execute(spec(rounds=0), folder.path, RunOptions())


def test_terms_are_checked(tmp_path: Path) -> None:
    (tmp_path / "terms.toml").write_text("quorum = 2.0\n", "utf-8")
    with pytest.raises(fs.InputError, match=r"terms.toml': quorum = 2.0 is not allowed"):
        read_terms(tmp_path)


def test_a_federation_keeps_its_number_of_nodes(tmp_path: Path) -> None:
    """Its clients are shared among them, and each remembers what it holds."""
    LocalCluster(tmp_path).create(2)
    with pytest.raises(fs.InputError, match=r"--nodes 3 is not allowed: the federation in '.*' has 2"):
        LocalCluster(tmp_path).create(3)
    LocalCluster(tmp_path).create(2)


def test_status_and_down_without_processes(tmp_path: Path) -> None:
    LocalCluster(tmp_path).create(2)
    done = CliRunner().invoke(app, ["flower", "status", "--dir", str(tmp_path)])
    assert "no process runs: start them with  fedsoft flower up --nodes 2" in done.output
    done = CliRunner().invoke(app, ["flower", "down", "--dir", str(tmp_path)])
    assert "no process was running" in done.output
    assert "client state stay" in done.output


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('path = "nowhere"\n', "nowhere"),
        ('path = "data"\nlabel = "target"\n', "target"),
        ('path = "data"\nclients = ["a", "b"]\n', "data.clients names 2 clients, the data has 1"),
        ('path = "data"\n[policy]\nalgorithms = ["fedsft"]\n', "did you mean 'fedsoft'"),
        ('path = "data"\n[policy]\nsolvers = ["adm"]\n', "unknown name in policy.solvers 'adm'"),
        ('path = "data"\n[model]\nname = "mpl"\n', "did you mean 'mlp'"),
    ],
)
def test_a_worker_checks_its_file_when_it_starts(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("x,y\n" + "1,0\n2,1\n" * 20)
    (tmp_path / "node.toml").write_text(f'name = "n"\n[data]\n{text}', "utf-8")
    done = CliRunner().invoke(app, ["flower", "worker", str(tmp_path / "node.toml")])
    assert isinstance(done.exception, fs.FedsoftError)
    assert reason in str(done.exception)
    assert "node.toml'" in str(done.exception)


def test_a_node_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("x,y\n" + "1,0\n2,1\n" * 20)
    (tmp_path / "node.toml").write_text('name = "n"\n[data]\npath = "data"\n', "utf-8")
    assert NodeConfig(tmp_path / "node.toml").check() == "n: 1 clients, 32 points and 8 held out, any model"


def test_a_federation_that_was_ended_says_how_to_start_it(tmp_path: Path) -> None:
    LocalCluster(tmp_path / "f").create(2)
    done = CliRunner().invoke(
        app, ["flower", "run", "synthetic-10-90", "--dir", str(tmp_path / "f"), "--out", str(tmp_path / "runs")]
    )
    assert isinstance(done.exception, fs.FedsoftError)
    assert "start it with 'fedsoft flower up --nodes 2'" in str(done.exception)


def test_the_connection_follows_the_folder(tmp_path: Path) -> None:
    """Flower wants the full path of a certificate: it is written when a command runs, not when the project is made."""
    CliRunner().invoke(app, ["flower", "init", str(tmp_path / "old")])
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(fs.FedsoftError, match="Flower did not answer"):
        flwr.flwr(LocalCluster(tmp_path / "new"), [["list", "local"]], seconds=0.01)
    connection = tomllib.loads((tmp_path / "new" / "home" / "config.toml").read_text("utf-8"))["superlink"]["local"]
    assert connection["root-certificates"] == str(tmp_path / "new" / "certificates" / "ca.pem")


@pytest.mark.parametrize("content", [b"", b"ssh-rsa AAAA", b"-----BEGIN OPENSSH PRIVATE KEY-----\nx\n", b"\xff\x00"])
def test_a_file_that_is_no_key_is_named(content: bytes, tmp_path: Path) -> None:
    LocalCluster(tmp_path / "f").create(1)
    (tmp_path / "key").write_bytes(content)
    node, authority = tmp_path / "f" / "nodes" / "node-0" / "node.toml", tmp_path / "f" / "certificates" / "ca.pem"
    for words, reason in (
        (["register", tmp_path / "key", "--dir", tmp_path / "f"], "the public key '.*key' is not allowed"),
        (["supernode", node, "--superlink", "x:1", "--root-certificates", authority, "--key", tmp_path / "key"],
         "the key '.*key' is not allowed: should be a private ECDSA key"),
        (["supernode", node, "--superlink", "x:1", "--root-certificates", tmp_path / "key", "--key", tmp_path / "key"],
         "the certificate '.*key' is not allowed"),
        (["supernode", node, "--superlink", "x:1", "--root-certificates", authority, "--key", tmp_path / "none"],
         "the key '.*none' cannot be read: No such file"),
    ):  # fmt: skip
        done = CliRunner().invoke(app, ["flower", *(str(word) for word in words)])
        assert isinstance(done.exception, fs.InputError)
        assert re.search(reason, str(done.exception)), done.exception
