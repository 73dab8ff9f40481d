"""Jobs run under the limits of the owner's file, in the real worker of a node, and end with them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from fedsoft.flower import frames
from fedsoft.flower.node.refusals import Refusal
from fedsoft.flower.wire import WireMessage
from tests.flower.places import spec
from tests.flower.processes import wait

pytestmark = [pytest.mark.slow, pytest.mark.engine]

POLICY = """
[policy]
seconds = 15.0
ram = "400M"
bounds = { epochs = [1, 100_000_000], S = [1, 100_000] }
"""


class Worker:
    """A worker as its service starts it."""

    def __init__(self, folder: Path) -> None:
        x = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
        np.savez(folder / "a.npz", x=x, y=x.sum(1))
        (folder / "node.toml").write_text(f'name = "n"\nworkers = 1\nsocket = "s"\n[data]\npath = "a.npz"\n{POLICY}')
        self.folder, self.socket, self.marked = folder, folder / "s", folder / "s.start.ready"
        line = [sys.executable, "-c", "from fedsoft.cli import main; main()", "flower", "worker", "node.toml"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(line, cwd=folder, env=environment, stderr=self.log, start_new_session=True)
        try:
            wait(self.ready, "the worker", 240)
        except BaseException:
            self.end()
            raise

    def ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return self.marked.exists() and probe.connect_ex(str(self.socket)) == 0

    def ask(self, kind: str, raw: dict[str, Any], experiment: str, **about: Any) -> WireMessage:
        tensors = about.pop("tensors", {})
        head = {"kind": kind, "experiment": experiment, "attempt": 1, "spec": raw, **about}
        return WireMessage.unpacked(*frames.call(str(self.socket), *WireMessage(head, tensors).packed(), 240.0))

    def train(self, raw: dict[str, Any], experiment: str, centers: torch.Tensor) -> WireMessage:
        hello = self.ask("hello", raw, experiment)
        if "refused" in hello.head:
            return hello
        sent = {"shared/centers": centers}
        return self.ask("job", raw, experiment, job="train", round=0, ask=0, clients=["a"], tensors=sent)

    def pids(self) -> list[int]:
        """Of the starter and its worker."""
        starter = psutil.Process(self.process.pid)
        return [process.pid for process in (starter, *starter.children())]

    def peak(self) -> int:
        """Bytes of memory that any of them ever had."""
        found = [0]
        for pid in self.pids():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
                found += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
        return max(found)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    node = Worker(tmp_path_factory.mktemp("w"))
    try:
        yield node
    finally:
        node.end()


@pytest.fixture
def worker(node: Worker) -> Worker:
    """A node whose worker is there again, whatever the last test did to it."""
    wait(node.ready, "the worker", 240)
    return node


KEY = f"SHA256:{'A' * 43}"


def described(**changes: Any) -> dict[str, Any]:
    dataset = {"name": "nodes", "clients": {"a": KEY}, "input": [3], "task": "regression"}
    return spec(**{"algorithm": "fedavg", "dataset": dataset, "model": "linear", **changes}).to_dict()


def test_a_job_that_takes_too_long_is_ended(worker: Worker) -> None:
    """The server is told at once; the worker comes back, with what it had kept."""
    assert "w" in worker.train(described(), "before", torch.zeros(1, 3)).tensors
    net = {"name": "mlp", "hidden": [64]}
    endless = described(solver={"name": "sgd", "epochs": 60_000, "batch": 1, "lr": 1e-6}, model=net)
    began = time.monotonic()
    answer = worker.train(endless, "endless", torch.zeros(1, 3 * 64 + 64 + 64 + 1))
    assert answer.head.get("refused") == Refusal.TIME
    assert time.monotonic() - began < 120
    wait(worker.ready, "the worker to be back", 240)
    again = worker.ask("job", described(), "before", job="train", round=1, ask=0, clients=["a"],
                       tensors={"shared/centers": torch.zeros(1, 3)})  # fmt: skip
    assert "w" in again.tensors


def test_a_job_that_takes_too_much_memory_is_ended(worker: Worker) -> None:
    before = worker.peak()
    wide = described(model={"name": "mlp", "hidden": [30_000, 30_000]})  # 3.6 GB
    answer = worker.train(wide, "wide", torch.zeros(1, 3))
    assert answer.head.get("refused") == Refusal.MEMORY, answer.head
    assert worker.peak() < before + 500_000_000
    assert "w" in worker.train(described(), "after", torch.zeros(1, 3)).tensors


def test_a_message_that_claims_to_be_long_gets_no_memory(worker: Worker) -> None:
    before = worker.peak()
    for head, body in ((10, 2**40), (2**31, 10)):
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(worker.socket))
            link.sendall(frames.LENGTHS.pack(frames.MARK, head, body) + b"x" * 1000)
            link.settimeout(60)
            with contextlib.suppress(OSError):
                assert link.recv(1) == b""  # it hangs up
    assert worker.peak() < before + 50_000_000
    assert "clients" in worker.ask("hello", described(), "small").head


def test_a_worker_that_dies_is_started_again(worker: Worker) -> None:
    (pid,) = (pid for pid in worker.pids() if pid != worker.process.pid)
    os.kill(pid, signal.SIGKILL)
    wait(lambda: pid not in worker.pids(), "its end", 60)
    wait(worker.ready, "the worker to be back", 240)
    assert "clients" in worker.ask("hello", described(), "back").head


def test_messages_that_are_too_long_do_not_end_the_node(worker: Worker) -> None:
    """One of 300 MB, and a short one whose head becomes large when it is read."""
    for head, body in (("{}", bytes(300 * 2**20)), ('{"kind":"hello","spec":[' + "[]," * 10**6 + "0]}", b"")):
        with contextlib.suppress(OSError):  # it may hang up
            answer = WireMessage.unpacked(*frames.call(str(worker.socket), head, body, 240.0))
            assert answer.head["refused"] in (Refusal.MESSAGE, Refusal.MEMORY)
        wait(worker.ready, "the worker", 240)
    assert worker.process.poll() is None
    assert "clients" in worker.ask("hello", described(), "long").head
