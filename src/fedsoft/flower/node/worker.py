"""The resident worker of a node: keeps torch, model, data and memory loaded, and answers over a local socket.

The app that Flower starts for every message imports next to nothing and hands the message over to here.

The owner's file limits the time of a request and the memory of a job. A job that takes longer ends with the worker,
which is the only sure way to end it: the server gets a refusal, everything that was answered before is on disk, and the
launcher restarts the worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from fedsoft.errors import FedsoftError, InputError
from fedsoft.flower import frames
from fedsoft.flower.node.config import NodeConfig
from fedsoft.flower.node.node import Node, log
from fedsoft.flower.node.refusals import Refusal
from fedsoft.flower.wire import WireMessage
from fedsoft.machine.resources import memory_size

LONGEST_HEAD = 4 * 2**20  # bytes: a run, and the names of its clients
LABEL = ("kind", "job", "round", "ask")  # of a request, for the log
GRACE = 30.0  # seconds after which a job that holds on to the interpreter is ended by the system
STALLED = 60.0  # seconds without a byte after which a connection is closed


def serve(node: Node, ready: Path | None = None) -> NoReturn:
    """Answer until SIGTERM or Ctrl-C. The file `ready` is written when requests can be answered."""
    path = node.config.socket
    alone = only_worker(node.config.memory)
    listener = frames.listen(path)
    limit_memory(memory_size(node.config.policy.ram))

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        if ready is not None:
            ready.write_text(f"{os.getpid()}\n", "utf-8")
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # a caller that is gone: its request will be repeated
                connection.settimeout(STALLED)
                answer_one(node, connection)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        listener.close()
        path.unlink(missing_ok=True)
        os.close(alone)


def only_worker(memory: Path) -> int:
    """Return a lock on a node's memory, which ends with the process.

    Two workers at once would count requests and privacy beside each other.
    """
    handle = os.open(memory / ".lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"memory = '{memory}' is in use by another worker: each node should have its own") from None
    return handle


def answer_one(node: Node, connection: socket.socket) -> None:
    began = time.perf_counter()
    with Deadline(node, connection) as deadline:
        try:
            # What is read is in memory two or three times before it is used.
            head, body = frames.receive(connection, memory_size(node.config.policy.ram) // 4, LONGEST_HEAD)
            message = WireMessage.unpacked(head, body)
        except FedsoftError as error:
            node.log(f"refused (bad-message): {error}")
            reply, label = node.refusal(Refusal.MESSAGE), "unreadable message"
        except MemoryError:
            node.log("refused (memory-limit): a message was too long for policy.ram")
            reply, label = node.refusal(Refusal.MEMORY), "long message"
        else:
            del head, body
            reply = node.answer(message)
            label = " ".join(str(message.head[key]) for key in LABEL if key in message.head)
        deadline.met()
        frames.send(connection, *reply.packed())
    node.log(f"{label[:200]} in {time.perf_counter() - began:.3f} s")


class Deadline:
    """The time limit of a request. When it is over, the server gets a refusal and this process ends."""

    def __init__(self, node: Node, connection: socket.socket) -> None:
        self.node, self.connection = node, connection
        self.lock, self.is_met = threading.Lock(), False
        self.timer = threading.Timer(node.config.policy.seconds, self._end)
        self.timer.daemon = True

    def met(self) -> None:
        """Note that there is an answer, which will be sent."""
        with self.lock:
            self.is_met = True

    def _end(self) -> None:
        with self.lock:
            if self.is_met:
                return
            self.node.log(
                f"refused (time-limit): a request took more than policy.seconds = {self.node.config.policy.seconds:g}"
            )
            self.node.config.socket.unlink(missing_ok=True)  # first: what is asked after the refusal waits for the next
            with contextlib.suppress(OSError):
                frames.send(self.connection, *self.node.refusal(Refusal.TIME).packed())
            os._exit(frames.JOB_ENDED)  # nothing less ends a thread that computes

    def __enter__(self) -> Deadline:
        self.timer.start()
        # The timer's thread needs the interpreter, which a single long call may hold. The system's alarm does not.
        signal.setitimer(signal.ITIMER_REAL, self.node.config.policy.seconds + GRACE)
        return self

    def __exit__(self, *error: object) -> None:
        self.met()
        self.timer.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)


def limit_memory(more: int) -> None:
    """Limit this process to this many bytes more than it has now; beyond them allocations raise MemoryError."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not on every system
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = psutil.Process().memory_info().data + more
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if most < 0 else min(wanted, most), most))


def main(path: str, ready: str | None = None) -> NoReturn:
    try:
        serve(Node(NodeConfig(Path(path)), log), Path(ready) if ready else None)
    except InputError as error:
        log(f"error: {error}")
        raise SystemExit(2) from None
