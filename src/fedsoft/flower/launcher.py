"""Start Flower's apps in milliseconds instead of seconds, and those of fedsoft only.

Flower starts the command `flwr-clientapp` for every message, and importing Flower alone takes two seconds of a
processor. So this process imports everything once, and a small command of the same name, in a folder that is all of the
node's PATH, hands its arguments over; a fork of this process does the rest. Torch is never imported here: a process
with threads cannot be forked safely. When no launcher listens, the command does it all itself, in two seconds. Either
way the app is the installed one (see `node.app_guard`), and the commands for other kinds of apps do nothing. The
server's `flwr-serverapp` is started likewise: on a busy machine Flower may give up a run whose app is slow to start.

The worker of a node (see `node.worker`), which has torch, is started and ended with this process, and restarted when a
job had to be ended with it.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fedsoft.errors import InputError
from fedsoft.flower import frames

PYTHON = (sys.executable, "-P")  # modules are not looked for where it is started
NODE, SERVER = "flwr-clientapp", "flwr-serverapp"
LAUNCH = "import sys; from fedsoft.flower.launcher import main; main(*sys.argv[1:])"
SHIM = """#!{python} -IS
# Hands its arguments to the process that listens at the socket below; see fedsoft.flower.launcher.
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
    os.execv({line!r}[0], [*{line!r}, *sys.argv[1:]])
sys.exit(code[0])
"""
ALONE = "from fedsoft.flower.node.app_guard import main; main()"
NOT_HERE = "#!{python} -IS\n# An app of this kind is never run on a node of fedsoft.\nraise SystemExit(1)\n"
OTHERS = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")


def write_shim(folder: Path, listens_at: Path, name: str, line: Sequence[str]) -> None:
    """Write the small command `name`. When no launcher listens, it runs `line`."""
    text = SHIM.format(python=sys.executable, socket=str(listens_at), line=list(line))
    _write_command(folder / name, text)


def write_node_commands(folder: Path, listens_at: Path, superexec: str) -> None:
    """Write all commands that Flower's SuperNode may start, to a folder that is its whole PATH."""
    write_shim(folder, listens_at, NODE, [*PYTHON, "-c", ALONE])
    _write_command(folder / "flower-superexec", f'#!/bin/sh\nexec {shlex.quote(superexec)} "$@"\n')
    for name in OTHERS:
        _write_command(folder / name, NOT_HERE.format(python=sys.executable))


def _write_command(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o755)


def main(name: str, socket_path: str, node: str | None = None, ready: str | None = None) -> NoReturn:
    """Run Flower's command `name` whenever its shim is called; keep the worker of a node running."""
    run = _command(name)
    path = Path(socket_path)
    try:
        listener = frames.listen(path)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    marked = Path(ready or f"{socket_path}.ready")
    worker = None if node is None else _worker(node, marked)

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    def restart_worker(number: int, frame: FrameType | None) -> None:
        nonlocal worker
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if worker is None or node is None or found[0] != worker.pid:
                    continue
                worker.returncode = os.waitstatus_to_exitcode(found[1])
                if not marked.exists():
                    raise SystemExit(1)  # it could not start
                worker = _worker(node, marked)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGCHLD, restart_worker)
    try:
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run_app(connection, name, run)
            connection.close()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        path.unlink(missing_ok=True)
        marked.unlink(missing_ok=True)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if worker is not None:
            worker.terminate()
            worker.wait()


def _worker(node: str, ready: Path) -> subprocess.Popen[bytes]:
    ready.unlink(missing_ok=True)
    code = "import sys; from fedsoft.flower.node.worker import main; main(*sys.argv[1:])"
    return subprocess.Popen([*PYTHON, "-c", code, node, str(ready)])


def _command(name: str) -> Callable[[], None]:
    """Import one of Flower's commands with what its app needs, so that forks have it."""
    if name == SERVER:
        from flwr.superlink.cli import flwr_serverapp

        return flwr_serverapp
    from fedsoft.flower.node.app_guard import guarded_clientapp

    return guarded_clientapp()


def _run_app(connection: socket.socket, name: str, run: Callable[[], None]) -> NoReturn:
    """In a fork: run Flower's command with the arguments that were handed over; send back its exit code."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        folder, *words = frames.receive(connection)[0].split("\0")
        os.chdir(folder)
        sys.argv = [name, *words]
        run()
        code = 0
    except frames.FrameError:
        pass  # a probe whether this listens
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
