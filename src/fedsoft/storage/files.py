"""Small files from elsewhere, read whole: regular files only, within limits.

Opening a pipe would wait for a writer, and a device never ends. What is refused is an OSError, as for a missing file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

LONGEST_TEXT = 10**6  # bytes of a file of settings
LONGEST_JSON = 64 * 10**6  # a name and a few numbers of each of a million clients
MOST_MEMORY = 200 * 10**6  # bytes for parsed JSON
DEEPEST = 32  # nested objects and lists
SIZES = {b",": 40, b":": 40, b"[": 90, b"{": 200}  # the memory that goes with each of them, in bytes


def open_regular(path: Path) -> int:
    """Open a regular file for reading, and never wait for a pipe; return its handle."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, should be a file", str(path))
    return handle


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def read_text(path: Path, most: int = LONGEST_TEXT) -> str:
    """Return the content of a text file; raise ValueError if it is not UTF-8."""
    return read_bytes(path, most).decode("utf-8").replace("\r\n", "\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise ValueError if it is not JSON, or too large."""
    content = read_bytes(path, LONGEST_JSON)
    if memory_needed(content) > MOST_MEMORY:
        raise ValueError(f"it would take more than {MOST_MEMORY} bytes of memory")
    return parse_json(content)


def parse_json(content: bytes | str) -> Any:
    """Return the content of a JSON text; raise ValueError if it is not JSON, or nested too deeply."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [found]
    for _ in range(DEEPEST):
        level = [value for part in level if isinstance(part, dict | list) for value in _inside(part)]
    if level:
        raise ValueError("it is nested too deeply")
    return found


def memory_needed(content: bytes) -> int:
    """Return about the most memory that JSON takes once it is parsed: three bytes of text may be a list of ninety."""
    return len(content) + sum(size * content.count(mark) for mark, size in SIZES.items())


def reason(error: Exception) -> str:
    """Return what is wrong with a file, without its name."""
    return str(getattr(error, "strerror", None) or error)


def _inside(part: dict[str, Any] | list[Any]) -> Any:
    return part.values() if isinstance(part, dict) else part
