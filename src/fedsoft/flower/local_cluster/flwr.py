"""Flower's own commands, run for a federation's folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from fedsoft.errors import FedsoftError, InputError
from fedsoft.flower.launcher import PYTHON, write_node_commands
from fedsoft.flower.local_cluster.files import ClusterFiles
from fedsoft.flower.server.identity import fingerprint_of
from fedsoft.storage.atomic import write_folder

HOST = "127.0.0.1"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # by default Flower calls home
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # seconds between two looks for a task
PATIENCE = 120.0  # seconds for a command
CODE = """
import json, sys
from flwr.cli.app import app
for line in json.loads(sys.argv[1]):
    app(line, standalone_mode=False)
"""


def command(name: str) -> str:
    """Return the path of a command that comes with Flower, beside this Python or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(f"the command '{name}' is missing: install Flower with  pip install 'fedsoft[flower]'")
    return found


def environment(files: ClusterFiles) -> dict[str, str]:
    """Return what every process gets: no calls home, and this Python's commands and modules first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    modules = os.pathsep.join(entry for entry in sys.path if entry)
    home = str(files.folder / "home")
    return {**os.environ, **QUIET, **POLL, "PATH": path, "PYTHONPATH": modules, "FLWR_HOME": home}


def superlink_line(files: ClusterFiles) -> list[str]:
    """Return the command line of the SuperLink."""
    certificates, (host, _, port) = files.authority.parent, files.settings.address.partition(":")
    options = {
        "--host": host, "--port": port, "--ssl-ca-certfile": files.authority,
        "--ssl-certfile": certificates / "server.pem", "--ssl-keyfile": certificates / "server.key",
        "--database": files.folder / "superlink.db",
    }  # fmt: skip
    words = [str(word) for option in options.items() for word in option]
    return [command("flower-superlink"), *words, "--enable-supernode-auth", "--disable-runtime-dependency-installation"]


def supernode_line(commands: Path, worker: Path, superlink: str, authority: Path, key: Path) -> list[str]:
    """Return the command line of a SuperNode. Its PATH must be `commands` alone: then nothing else is run there."""
    write_node_commands(commands, Path(f"{worker}.start"), command("flower-superexec"))
    return [
        command("flower-supernode"), "--superlink", superlink, "--root-certificates", str(authority),
        "--auth-supernode-private-key", str(key), "--node-config", f'worker="{worker}"', "--host", HOST,
    ]  # fmt: skip


def register(files: ClusterFiles, public_keys: Sequence[Path]) -> list[str]:
    """Let nodes with these keys in; return the fingerprints."""
    found = [fingerprint_of(path) for path in public_keys]  # raises for a file that is no key
    flwr(files, [["supernode", "register", str(path.absolute()), "local"] for path in public_keys])
    return found


def run(files: ClusterFiles, submission: Path) -> int:
    """Hand a submitted run to Flower; return Flower's number of it."""
    config = f'submission="{submission.absolute()}"'
    text = flwr(files, [["run", str(files.app.absolute()), "local", "--run-config", config, "--format", "json"]])
    try:
        return int(json.loads(text[text.index("{") :])["run-id"])
    except (ValueError, KeyError):
        raise FedsoftError(f"Flower did not take the run: {text.strip()[-500:]}") from None


def stop(files: ClusterFiles, number: int) -> None:
    """End a run; what it saved stays."""
    flwr(files, [["stop", str(number), "local"]])


def status(files: ClusterFiles, number: int) -> str:
    """Return Flower's status of a run: pending, running, finished:completed, finished:failed, ..."""
    text = flwr(files, [["list", "local", "--run-id", str(number), "--format", "json"]], seconds=PATIENCE / 2)
    try:
        return str(json.loads(text[text.index("{") :])["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def flwr(files: ClusterFiles, lines: Sequence[Sequence[str]], seconds: float = PATIENCE) -> str:
    """Run some `flwr` commands in one process; return what they print."""
    # Flower wants a full path, so the connection is written anew each time: the folder may have been moved.
    connection = {"address": files.settings.address, "root-certificates": str(files.authority.absolute())}
    config = tomli_w.dumps({"superlink": {"default": "local", "local": connection}})
    write_folder(files.folder / "home", {"config.toml": config.encode()})
    words = " ".join(lines[0][:2])
    try:
        done = subprocess.run(
            [*PYTHON, "-c", CODE, json.dumps(lines)], env=environment(files), capture_output=True, text=True,
            timeout=seconds, cwd=files.folder,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise FedsoftError(f"Flower did not answer '{words}' within {seconds:g} s: is its SuperLink running?") from None
    if done.returncode:
        raise FedsoftError(f"Flower refused '{words}': {(done.stdout + done.stderr).strip()[-500:]}")
    return done.stdout
