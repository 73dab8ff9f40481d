"""Bytes of files from elsewhere, read within limits; what is wrong with a file, in one sentence.

Every size in a header is checked against what the file can hold before memory is allocated; unpacking stops where the
header says that the data ends.
"""

from __future__ import annotations

import stat
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from fedsoft.errors import InputError

LIMIT = 2**30
"""The most bytes that a file may unpack to. The largest published one, EMNIST ByClass, has 547 million."""
BLOCK = 2**20
RATIO = 1032  # deflate cannot shrink data more than that


class Stream(Protocol):
    """What bytes are read from: a file, or one that is unpacked on the way."""

    def read(self, size: int = ..., /) -> bytes:
        """Return the next bytes, none at the end."""
        ...


def bad(file: Path | str, what: str) -> InputError:
    """Return an error about a file: one line of bounded length, whatever characters come from inside the file.

    A `Path` is shown by its name, text as it is.
    """
    shown = file.name if isinstance(file, Path) else file
    text = "".join(c if c.isprintable() else " " for c in f"file '{shown}' {what}")
    return InputError(textwrap.shorten(text, 500, placeholder=" ..."))


def size_of(file: Path) -> int:
    """Return the bytes in a regular file; raise InputError for everything else, without waiting for a pipe."""
    try:
        found = file.stat()
    except FileNotFoundError:
        raise bad(str(file), "does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        raise bad(str(file), f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(found.st_mode):
        raise bad(str(file), "is a folder or a device, should be a file")
    if found.st_size == 0:
        raise bad(str(file), "is empty (zero bytes): get it again")
    return found.st_size


def times(shape: Sequence[int]) -> str:
    """Return a shape as `2 x 3`."""
    return " x ".join(map(str, shape)) or "a single value"


def check_claim(file: Path | str, claimed: int, possible: int, what: str, limit: int | None = None) -> None:
    """Refuse a header that promises more than the file can hold, or than `limit` (default: LIMIT)."""
    if claimed > possible:
        raise bad(file, f"is truncated or damaged: its header says {what}, more than a file of this size can hold")
    if claimed > (limit := LIMIT if limit is None else limit):
        raise bad(file, f"is too large: its header says {what}, at most {limit} bytes are read")


def read_exactly(file: Path | str, stream: Stream, count: int) -> bytes:
    """Return the bytes of a header."""
    found = stream.read(count)
    if len(found) < count:
        raise bad(file, f"is truncated: it ends after {len(found)} bytes, within its header")
    return found


def read_array(file: Path | str, stream: Stream, count: int) -> np.ndarray:
    """Return `count` bytes, read block by block: memory is used only as far as there is data."""
    values = np.empty(count, np.uint8)
    done = 0
    while done < count:
        block = stream.read(min(BLOCK, count - done))
        if not block:
            raise bad(file, f"is truncated: it has {done} of the {count} bytes that its header says, get it again")
        values[done : done + len(block)] = np.frombuffer(block, np.uint8)
        done += len(block)
    return values


def check_end(file: Path | str, stream: Stream) -> None:
    """Refuse data after the end. Reading on also makes unpackers compare their checksums."""
    if stream.read(1):
        raise bad(file, "is damaged: it goes on after the data that its header says")
