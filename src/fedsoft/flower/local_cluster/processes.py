"""Processes that outlive the command that started them: start, find again, end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from fedsoft.storage.atomic import write_json
from fedsoft.storage.files import read_json

GRACE = 10.0  # seconds for processes to end by themselves
FILE = "processes.json"


@dataclass(frozen=True)
class Process:
    """A process that was started here."""

    pid: int
    began: float  # seconds since boot: the system may give the same pid to another process later

    @staticmethod
    def of(pid: int) -> Process:
        return Process(pid, psutil.Process(pid).create_time() - psutil.boot_time())

    @property
    def alive(self) -> bool:
        """Whether the process that was started still runs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            same = abs(Process.of(self.pid).began - self.began) < 1.0
            return same and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        return False

    def family(self) -> list[psutil.Process]:
        """Return the process, its descendants, and processes of its session whose parents have ended."""
        if not self.alive:
            return []
        found = {process for process in psutil.process_iter() if _session(process.pid) == self.pid}
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {*psutil.Process(self.pid).children(recursive=True)}  # some start sessions of their own
        return list(found)

    def signal(self, number: int) -> None:
        """Signal the process and its family."""
        _signal(self.family(), number)


@dataclass(frozen=True)
class ProcessTable:
    """The processes that were started from a folder, by name, in a file of it."""

    folder: Path

    def read(self) -> dict[str, Process]:
        try:
            return {name: Process(**value) for name, value in read_json(self.folder / FILE).items()}
        except (OSError, ValueError):
            return {}

    def is_alive(self, name: str) -> bool:
        known = self.read()
        return name in known and known[name].alive

    def start(self, name: str, line: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start a process in a session of its own, unless it runs."""
        if self.is_alive(name):
            return
        with log.open("ab") as file:
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        process.returncode = 0  # nobody waits for it, and Popen must not warn about that
        self._write(self.read() | {name: Process.of(process.pid)})

    def end(self) -> list[str]:
        """Terminate all that run, and kill what is left after a grace period; return their names."""
        running = {name: process for name, process in self.read().items() if process.alive}
        members = [member for process in running.values() for member in process.family()]
        _signal(members, signal.SIGTERM)
        _, left = psutil.wait_procs(members, GRACE)
        _signal(left, signal.SIGKILL)
        psutil.wait_procs(left, GRACE)
        self._write({})
        return list(running)

    def _write(self, processes: Mapping[str, Process]) -> None:
        write_json(self.folder / FILE, {name: asdict(process) for name, process in processes.items()}, indent=1)


def _session(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
