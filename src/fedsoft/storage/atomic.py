"""Files that are always complete, new or old; errors of the operating system in one sentence."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedsoft.errors import StoreError

READ_ONLY = "make the folder writable, or choose another one with --out"


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    """Write files into a folder, each replaced as a whole."""
    with said(path):
        path.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with _replacing(path, name) as file:
                file.write(content)
        sync(path)


def write_json(path: Path, value: object, indent: int | None = None) -> None:
    """Write a value to a JSON file, which is replaced as a whole."""
    write_folder(path.parent, {path.name: f"{json.dumps(value, indent=indent)}\n".encode()})


@contextlib.contextmanager
def replacing(folder: Path, name: str, aside: str | None = None) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `name` when it is done; the old one is renamed to `aside` if given."""
    with said(folder):
        with _replacing(folder, name, aside) as file:
            yield file
        sync(folder)


@contextlib.contextmanager
def _replacing(folder: Path, name: str, aside: str | None = None) -> Iterator[IO[bytes]]:
    """Do the same, but for the folder, which is not waited for."""
    if Path(name).name != name or name in ("", "..") or "\0" in name:  # may hold names of clients
        raise StoreError(f"cannot write '{name}' to '{folder}': should be the name of a file in it")
    handle, temporary = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        if aside is not None:
            with contextlib.suppress(FileNotFoundError):
                (folder / name).replace(folder / aside)
        Path(temporary).replace(folder / name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Wait until what was written to a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # no waiting for a pipe
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def said(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into a StoreError of one sentence."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space, then go on with 'fedsoft resume'",
            errno.EDQUOT: "free some space, then go on with 'fedsoft resume'",
            errno.EFBIG: "a file would grow beyond the allowed size",
            errno.EACCES: READ_ONLY,
            errno.EPERM: READ_ONLY,
            errno.EROFS: READ_ONLY,
            errno.ENOTDIR: "choose another folder with --out",
        }.get(error.errno or 0, "what was saved before is unharmed")
        raise StoreError(f"cannot write to '{path}': {error.strerror or error} ({advice})") from None
