"""The lock of a run: one process writes at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from fedsoft.errors import StoreError
from fedsoft.storage.atomic import said

# Of files written under the lock.
LEFTOVERS = (".state*", ".rounds.*", ".scores.*", ".outcome.*", ".diverged.*", ".figure.*", ".memory-*")
LOCKING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # nobody waits
NEW = ".new-"  # begins the name of a folder in the making, which takes milliseconds
ABANDONED = 3600.0  # seconds after which nobody is at work on one any more


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a run. Held by the operating system, so it ends with the process."""
    import fcntl

    with said(folder):
        file = os.fdopen(os.open(folder / "lock", LOCKING, 0o644), "ab")
    with file:
        with said(folder):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"run '{folder.name}' is being worked on by another process: wait for it, or stop it first"
                ) from None
            _sweep(folder)
        yield


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind: here nobody else writes now, beside it somebody may."""
    for pattern in LEFTOVERS:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    for path in folder.parent.glob(f"{NEW}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
