"""Files that are there whole, new or old, whatever happens; what the operating system refuses, in one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedsoft.errors import StoreError

READ_ONLY = "make the folder writable, or choose another one with --out"


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    """A folder of whole files, none of them ever half written."""
    with said(path):
        path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with replacing(path, name) as file:
            file.write(content)


@contextlib.contextmanager
def replacing(folder: Path, name: str, aside: str | None = None) -> Iterator[IO[bytes]]:
    """A file to write to that takes its place when it is done; the one that was there is renamed, if asked."""
    if Path(name).name != name or name in ("", "..") or "\0" in name:  # names of clients may be in it
        raise StoreError(f"cannot write '{name}' to '{folder}': should be the name of a file in it")
    with said(folder):
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
        sync(folder)


def sync(path: Path) -> None:
    """Wait until what was written there is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def said(path: Path) -> Iterator[None]:
    """What the operating system refuses, in one sentence."""
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
