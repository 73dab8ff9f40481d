"""A whole federation on this machine: SuperLink and nodes on loopback, with TLS and node authentication.

Everything is in one folder: certificates, keys, one folder for each node, logs, and the numbers of the processes that
were started, so that another command can end them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from fedsoft.engines.flower.keys import make_certificates, make_key
from fedsoft.engines.flower.starter import NODE, SERVER, write_shim
from fedsoft.errors import FedsoftError, InputError
from fedsoft.runs.disk import write_folder

HOST = "127.0.0.1"
STARTER = "import sys; from fedsoft.engines.flower.starter import main; main(*sys.argv[1:])"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # Flower calls home unless told
RETRY = 10  # seconds before a node that ended is started again: Flower refuses it for up to a minute
PATIENCE = 120.0  # seconds for a process to be there
GRACE = 10.0  # seconds for a process to end by itself


@dataclass(frozen=True)
class Process:
    """A process group that was started here."""

    pid: int
    began: int  # in the system's ticks: a number may be given to another process later

    @property
    def alive(self) -> bool:
        """Whether it is there and is the one that was started."""
        return _began(self.pid) == self.began

    def signal(self, number: int) -> None:
        """Tell the whole group, and what was started from it with a group of its own, as Flower does."""
        if not self.alive:
            return
        for pid in _descendants(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def end(self) -> None:
        """Ask it to end; make it after a while."""
        self.signal(signal.SIGTERM)
        end = time.monotonic() + GRACE
        while self.alive and time.monotonic() < end:
            time.sleep(0.05)
        self.signal(signal.SIGKILL)


def _began(pid: int) -> int | None:
    """When a process began; None when it is gone, or only waits to be forgotten."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text("utf-8").rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in parents.get(parent, [])]
        found += new
    return found


@dataclass(frozen=True)
class Loopback:
    """A federation in a folder.

    Arguments:
        folder: where everything is.
    """

    folder: Path

    # --- what is in the folder ----------------------------------------------------------------------------------------

    @property
    def app(self) -> Path:
        """The Flower app that is submitted."""
        return self.folder / "app"

    @property
    def authority(self) -> Path:
        """The certificate that everybody trusts."""
        return self.folder / "certificates" / "ca.pem"

    def node(self, k: int) -> Path:
        """The folder of a node."""
        return self.folder / "nodes" / f"node-{k}"

    def key(self, k: int) -> Path:
        """The private key of a node."""
        return self.folder / "keys" / f"node-{k}"

    def socket(self, k: int | str) -> Path:
        """Where the worker of a node listens: not in its folder, because paths of sockets must be short."""
        label = hashlib.blake2b(str(self.folder.absolute()).encode(), digest_size=6).hexdigest()
        folder = Path(tempfile.gettempdir()) / f"fedsoft-{os.getuid()}-{label}"
        folder.mkdir(exist_ok=True, mode=0o700)
        if folder.stat().st_uid != os.getuid():
            raise FedsoftError(f"'{folder}' belongs to somebody else")
        return folder / f"{k}"

    @property
    def settings(self) -> dict[str, int]:
        """The port, and the number of nodes."""
        try:
            return json.loads((self.folder / "federation.json").read_text("utf-8"))
        except (OSError, ValueError):
            raise InputError(f"there is no federation in '{self.folder}': start one with 'fedsoft flower up'") from None

    @property
    def address(self) -> str:
        """Of the SuperLink."""
        return f"{HOST}:{self.settings['port']}"

    @property
    def environment(self) -> dict[str, str]:
        """What every process gets: no calls home, and this Python's commands and modules first."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        modules = os.pathsep.join(entry for entry in sys.path if entry)
        return {
            **os.environ, **QUIET, "PATH": path, "PYTHONPATH": modules, "FLWR_HOME": str(self.folder / "home"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }  # fmt: skip

    def processes(self) -> dict[str, Process]:
        """Those that were started, by name."""
        try:
            found = json.loads((self.folder / "processes.json").read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return {name: Process(**value) for name, value in found.items()}

    # --- up and down --------------------------------------------------------------------------------------------------

    def prepare(self, nodes: int) -> None:
        """Write certificates, keys and nodes that are not there yet. Each node holds its shard of a run's clients."""
        if nodes < 1:
            raise InputError(f"--nodes {nodes} is not allowed: should be at least 1")
        there = self.settings["nodes"] if (self.folder / "federation.json").exists() else 0
        if there not in (0, nodes):
            raise InputError(
                f"--nodes {nodes} is not allowed: the federation in '{self.folder}' has {there}, among which its "
                "clients are shared; use another --dir, or delete this one"
            )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self.authority.exists():
            make_certificates(self.authority.parent)
        write_app(self.app)
        for k in range(nodes):
            if not self.key(k).exists():
                make_key(self.key(k))
            self.node(k).mkdir(parents=True, exist_ok=True)
            values = {"name": f"node-{k}", "socket": str(self.socket(k)), "workers": 1, "data": {"shard": [k, nodes]}}
            if not (self.node(k) / "node.toml").exists():
                (self.node(k) / "node.toml").write_text(tomli_w.dumps(values), "utf-8")
        port = self.settings["port"] if (self.folder / "federation.json").exists() else free_port()
        self.describe(port, nodes)

    def describe(self, port: int, nodes: int) -> None:
        """Write down where the SuperLink is, for us and for Flower's own commands."""
        write_folder(self.folder, {"federation.json": (json.dumps({"port": port, "nodes": nodes}) + "\n").encode()})
        connection = {"address": self.address, "root-certificates": str(self.authority.absolute())}
        home = {"superlink": {"default": "local", "local": connection}}
        write_folder(self.folder / "home", {"config.toml": tomli_w.dumps(home).encode()})

    def up(self, nodes: int, *, through: str | None = None) -> None:
        """Start what does not run. `through`: where nodes connect to, if not to the SuperLink itself."""
        self.prepare(nodes)
        fresh = not (self.folder / "superlink.db").exists()
        self.start_superlink()
        for k in range(nodes):
            self.start_worker(k)
        if fresh:
            self.register([self.key(k).with_name(f"node-{k}.pub") for k in range(nodes)])
        for k in range(nodes):
            self.start_supernode(k, through=through)
        for k in range(nodes):
            self.wait_for(lambda k=k: (self.node(k) / "worker.ready").exists(), f"worker-{k}")

    def down(self) -> list[str]:
        """End everything that runs; the names of what did. Memory, keys and certificates stay."""
        running = {name: process for name, process in self.processes().items() if process.alive}
        for process in running.values():
            process.signal(signal.SIGTERM)
        for process in running.values():
            process.end()
        write_folder(self.folder, {"processes.json": b"{}\n"})
        shutil.rmtree(self.socket(0).parent, ignore_errors=True)
        return list(running)

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        folder, starts_at = self.authority.parent, self.socket("server")
        self.start("starter", [sys.executable, "-c", STARTER, SERVER, str(starts_at)], self.folder / "starter.log")
        write_shim(self.folder / "bin", starts_at, command(SERVER))
        self.start("superlink", [
            command("flower-superlink"), "--host", HOST, "--port", str(self.settings["port"]),
            "--ssl-ca-certfile", str(self.authority), "--ssl-certfile", str(folder / "server.pem"),
            "--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--database", str(self.folder / "superlink.db"),
        ], self.folder / "superlink.log", first=self.folder / "bin")  # fmt: skip
        self.wait_for(lambda: _listens(self.settings["port"]), "superlink")

    def start_worker(self, k: int) -> None:
        """Start the resident worker of a node, and what starts Flower's app there."""
        folder = self.node(k)
        (folder / "worker.ready").unlink(missing_ok=True)
        self.start(f"worker-{k}", [
            sys.executable, "-c", STARTER, NODE, f"{self.socket(k)}.start", str(folder / "node.toml"),
            str(folder / "worker.ready"),
        ], folder / "worker.log")  # fmt: skip

    def start_supernode(self, k: int, *, through: str | None = None, worker: bool = True) -> None:
        """Start a node. It is started again when it ends, as a service would be."""
        folder = self.node(k).absolute()
        config = f'worker="{self.socket(k)}"' if worker else f'node="{folder / "node.toml"}"'
        node = [
            command("flower-supernode"), "--superlink", through or self.address,
            "--root-certificates", str(self.authority), "--auth-supernode-private-key", str(self.key(k)),
            "--node-config", config, "--host", HOST, "--port", str(free_port()),
        ]  # fmt: skip
        if worker:
            write_shim(folder / "bin", Path(f"{self.socket(k)}.start"), command(NODE))
        loop = ["/bin/sh", "-c", f'while :; do "$@"; sleep {RETRY}; done', "sh", *node]
        self.start(f"supernode-{k}", loop, folder / "supernode.log", first=folder / "bin" if worker else None)

    def start(self, name: str, line: Sequence[str], log: Path, first: Path | None = None) -> None:
        """Start a process of its own group, unless it runs; it outlives this one. `first`: a folder of commands."""
        known = self.processes()
        if name in known and known[name].alive:
            return
        environment = self.environment
        if first is not None:
            environment["PATH"] = os.pathsep.join([str(first), environment["PATH"]])
        with log.open("ab") as file:
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        process.returncode = 0  # it is not waited for, and does not complain of that
        known[name] = Process(process.pid, _began(process.pid) or 0)
        plain = {key: {"pid": value.pid, "began": value.began} for key, value in known.items()}
        write_folder(self.folder, {"processes.json": (json.dumps(plain, indent=1) + "\n").encode()})

    def wait_for(self, there: Callable[[], bool], name: str) -> None:
        """Wait for an event, as long as the process that will cause it lives."""
        end = time.monotonic() + PATIENCE
        while not there():
            log = self.folder / "superlink.log" if name == "superlink" else self.folder / "nodes"
            if not self.processes()[name].alive:
                raise FedsoftError(f"'{name}' ended before it was ready: see the logs in '{log}'")
            if time.monotonic() > end:
                raise FedsoftError(f"'{name}' was not ready within {PATIENCE:g} s: see the logs in '{log}'")
            time.sleep(0.1)

    # --- Flower's own commands ----------------------------------------------------------------------------------------

    def register(self, public_keys: Sequence[Path]) -> None:
        """Let nodes with these keys in."""
        self.flwr([["supernode", "register", str(path.absolute()), "local"] for path in public_keys])

    def submit(self, request: Path) -> int:
        """Have a request carried out; the number that Flower gives to the run."""
        config = f'request="{request.absolute()}"'
        text = self.flwr([["run", str(self.app.absolute()), "local", "--run-config", config, "--format", "json"]])
        try:
            return int(json.loads(text[text.index("{") :])["run-id"])
        except (ValueError, KeyError):
            raise FedsoftError(f"Flower did not take the run: {text.strip()[-500:]}") from None

    def stop(self, number: int) -> None:
        """End a run; what it saved stays."""
        self.flwr([["stop", str(number), "local"]])

    def status(self, number: int) -> str:
        """What Flower says of a run: pending, running, finished:completed, finished:failed, ..."""
        text = self.flwr([["list", "local", "--run-id", str(number), "--format", "json"]])
        try:
            return str(json.loads(text[text.index("{") :])["runs"][0]["status"])
        except (ValueError, KeyError, IndexError):
            return "unknown"

    def flwr(self, lines: Sequence[Sequence[str]]) -> str:
        """Run some of Flower's commands in one process; what they print."""
        code = (
            "import json, sys\n"
            "from flwr.cli.app import app\n"
            "for line in json.loads(sys.argv[1]):\n"
            "    app(line, standalone_mode=False)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(lines)], env=self.environment, capture_output=True, text=True,
            timeout=PATIENCE, cwd=self.folder,
        )  # fmt: skip
        if done.returncode:
            raise FedsoftError(
                f"Flower refused '{' '.join(lines[0][:2])}': {(done.stdout + done.stderr).strip()[-500:]}"
            )
        return done.stdout


def write_app(folder: Path) -> None:
    """The Flower app: two files that import ours, and a description."""
    source = importlib.resources.files("fedsoft.engines.flower") / "project" / "app"
    with importlib.resources.as_file(source) as path:
        shutil.copytree(path, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def command(name: str) -> str:
    """A command that came with Flower, beside this Python or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(f"'{name}' is not there: install Flower with  pip install 'fedsoft[flower]'")
    return found


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0
