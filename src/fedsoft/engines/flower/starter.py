"""Starts Flower's apps in milliseconds instead of seconds.

Flower starts the command `flwr-clientapp` for every message, and importing Flower alone takes it two seconds of a
processor. So here is a process that has imported everything once, and a small command of the same name that comes first
on the node's path: it hands its arguments over, and a fork of this process does the rest. Torch is never imported here:
what has threads cannot be forked. When nobody listens, the command runs Flower's own. The server's `flwr-serverapp` is
started likewise: on a busy machine Flower may give up a run whose app does not answer soon enough.

The worker of a node (see `worker`), which has torch, is started and ended with this process.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fedsoft.engines.flower import frames

NODE, SERVER = "flwr-clientapp", "flwr-serverapp"
SHIM = """#!{python} -IS
# Hands its arguments to the process that listens at the socket below; see fedsoft.engines.flower.starter.
import os, socket, struct, sys

words = "\\0".join([os.getcwd(), *sys.argv[1:]]).encode()
try:
    link = socket.socket(socket.AF_UNIX)
    link.connect({socket!r})
    link.sendall(struct.pack("<4sIQ", b"fsf1", len(words), 0) + words)
    code = link.recv(1)
except OSError:
    code = b""
if not code:
    os.execv({command!r}, [{command!r}, *sys.argv[1:]])
sys.exit(code[0])
"""


def write_shim(folder: Path, listens_at: Path, command: str) -> None:
    """The small command in place of `command`, to be put first on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / Path(command).name
    python = shlex.quote(sys.executable) if " " in sys.executable else sys.executable
    path.write_text(SHIM.format(python=python, socket=str(listens_at), command=command), "utf-8")
    path.chmod(0o755)


def main(name: str, socket_path: str, node: str | None = None, ready: str | None = None) -> NoReturn:
    """Start Flower's command `name` whenever it is called for; and the worker of a node."""
    run, worker = _command(name), None
    path = Path(socket_path)
    listener = frames.listen(path)
    if node is not None:
        code = "import sys; from fedsoft.engines.flower.worker import main; main(*sys.argv[1:])"
        worker = subprocess.Popen([sys.executable, "-c", code, node, *([ready] if ready else [])])

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    def ended(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if worker is not None and found[0] == worker.pid:
                    raise SystemExit(1)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGCHLD, ended)
    try:
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _be_the_app(connection, name, run)
            connection.close()
    finally:
        path.unlink(missing_ok=True)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if worker is not None:
            worker.terminate()
            worker.wait()


def _command(name: str) -> Callable[[], None]:
    """One of Flower's commands, with what its app imports, so that forks have it."""
    if name == SERVER:
        from flwr.superlink.cli import flwr_serverapp

        return flwr_serverapp
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    import fedsoft.engines.flower.clientapp  # noqa: F401

    return flwr_clientapp


def _be_the_app(connection: socket.socket, name: str, run: Callable[[], None]) -> NoReturn:
    """In a fork: run Flower's command with the arguments that were handed over, and say how it ended."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        folder, *words = frames.receive(connection)[0].split("\0")
        os.chdir(folder)
        sys.argv = [name, *words]
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            connection.sendall(bytes([code & 0xFF]))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)
