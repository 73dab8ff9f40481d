"""Start, watch and end a federation on this machine. Its keys and its clients' memory outlive its processes."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsoft.errors import FedsoftError, InputError
from fedsoft.flower.launcher import LAUNCH, NODE, PYTHON, SERVER, write_shim
from fedsoft.flower.local_cluster import flwr
from fedsoft.flower.local_cluster.files import ClusterFiles
from fedsoft.flower.local_cluster.flwr import HOST
from fedsoft.flower.local_cluster.processes import GRACE, ProcessTable

RETRY = 10  # seconds before a node that ended is restarted: Flower refuses it for up to a minute
PATIENCE = 120.0  # seconds for a process to be ready


@dataclass(frozen=True)
class LocalCluster(ClusterFiles):
    """A federation in a folder.

    Arguments:
        folder: where all its files are.
    """

    @property
    def processes(self) -> ProcessTable:
        return ProcessTable(self.folder)

    @property
    def gone(self) -> bool:
        """Whether there is no SuperLink: the one that was started has ended, or nothing listens in its place."""
        own = self.processes.read().get("superlink")
        # What is only slow to answer is still there.
        return (own is not None and not own.alive) or self._connect() == errno.ECONNREFUSED

    def create(self, nodes: int) -> None:
        """Write what is missing in the folder of a federation of this many nodes."""
        if nodes < 1:
            raise InputError(f"--nodes {nodes} is not allowed: should be at least 1")
        known = self.settings if (self.folder / "federation.json").exists() else None
        if known is not None and known.nodes not in (0, nodes):
            raise InputError(
                f"--nodes {nodes} is not allowed: the federation in '{self.folder}' has {known.nodes}, among which its "
                "clients are shared; use another --dir, or delete this one"
            )
        self.prepare(nodes, f"{HOST}:{free_port()}" if known is None else known.address)

    def up(self, nodes: int, *, through: str | None = None) -> None:
        """Start what does not run. `through`: where nodes connect to; default: the SuperLink itself."""
        self.create(nodes)
        fresh = not (self.folder / "superlink.db").exists()
        self.start_superlink()
        for k in range(nodes):
            self.start_worker(k)
        if fresh:
            flwr.register(self, [self.public_key(k) for k in range(nodes)])
        for k in range(nodes):
            self.start_supernode(k, through=through)
        for k in range(nodes):
            self.wait_for(lambda k=k: (self.node(k) / "worker.ready").exists(), f"worker-{k}")

    def down(self) -> list[str]:
        """End all processes; return the names of those that ran. Memory, keys and certificates stay."""
        ended = self.processes.end()
        shutil.rmtree(self.socket(0).parent, ignore_errors=True)
        return ended

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self._wait_for_address()
        launcher, environment = self.socket("server"), flwr.environment(self)
        line = [*PYTHON, "-c", LAUNCH, SERVER, str(launcher)]
        self.processes.start("launcher", line, self.folder / "launcher.log", environment)
        write_shim(self.folder / "bin", launcher, SERVER, [flwr.command(SERVER)])
        environment["PATH"] = os.pathsep.join([str(self.folder / "bin"), environment["PATH"]])
        self.processes.start("superlink", flwr.superlink_line(self), self.folder / "superlink.log", environment)
        self.wait_for(lambda: self._connect() == 0, "superlink")

    def start_worker(self, k: int) -> None:
        """Start the resident worker of a node, and what starts Flower's app there."""
        if self.processes.is_alive(f"worker-{k}"):
            return
        folder = self.node(k)
        ready = folder / "worker.ready"
        ready.unlink(missing_ok=True)
        words = [NODE, f"{self.socket(k)}.start", str(folder / "node.toml"), str(ready)]
        line = [*PYTHON, "-c", LAUNCH, *words]
        self.processes.start(f"worker-{k}", line, folder / "worker.log", flwr.environment(self))

    def start_supernode(self, k: int, *, through: str | None = None) -> None:
        """Start the SuperNode of a node. It is restarted when it ends, as a service would be."""
        folder, superlink = self.node(k).absolute(), through or self.settings.address
        node = flwr.supernode_line(folder / "bin", self.socket(k), superlink, self.authority, self.key(k))
        loop = ["/bin/sh", "-c", f'while :; do "$@"; /bin/sleep {RETRY}; done', "sh", *node, "--port", str(free_port())]
        environment = flwr.environment(self) | {"PATH": str(folder / "bin")}
        self.processes.start(f"supernode-{k}", loop, folder / "supernode.log", environment)

    def wait_for(self, ready: Callable[[], bool], name: str) -> None:
        """Wait for an event, as long as the process that will cause it runs."""
        end = time.monotonic() + PATIENCE
        log = self.folder / ("superlink.log" if name == "superlink" else "nodes")
        while not ready():
            if not self.processes.is_alive(name):
                raise FedsoftError(f"'{name}' ended before it was ready: see the logs in '{log}'")
            if time.monotonic() > end:
                raise FedsoftError(f"'{name}' was not ready within {PATIENCE:g} s: see the logs in '{log}'")
            time.sleep(0.1)

    def submit(self, submission: Path) -> int:
        """Have a submitted run carried out; return Flower's number of it."""
        if self.gone:
            nodes = self.settings.nodes
            how = f"start it with 'fedsoft flower up --nodes {nodes}'" if nodes else "start its service"
            raise FedsoftError(f"no SuperLink listens at {self.settings.address}: {how}")
        return flwr.run(self, submission)

    def stop(self, number: int) -> None:
        """End a run; what it saved stays."""
        flwr.stop(self, number)

    def status(self, number: int) -> str:
        """Return Flower's status of a run."""
        return flwr.status(self, number)

    def _wait_for_address(self) -> None:
        """Wait until the processes of a SuperLink that ended have released its address."""
        end = time.monotonic() + GRACE
        while not self.processes.is_alive("superlink") and self._connect() == 0:
            if time.monotonic() > end:
                address = self.settings.address
                raise FedsoftError(f"another process listens at {address}: end it, then start the federation again")
            time.sleep(0.1)

    def _connect(self) -> int:
        host, _, port = self.settings.address.partition(":")
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((host, int(port)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
