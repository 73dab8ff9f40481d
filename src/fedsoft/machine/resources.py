"""The machine's resources and versions: cores, memory, packages."""

from __future__ import annotations

import os
import platform
import re
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fedsoft.errors import InputError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNCHECKED = 2**28  # bytes that are always granted
OUT_OF_MEMORY = re.compile(
    "can't allocate memory|out of memory|bad_alloc|unable to allocate|array is too big|"
    "maximum allowed (dimension|size)|storage size calculation overflowed|too large to (convert|fit)|"
    "index-sized integer",
    re.IGNORECASE,
)
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_workers(workers: int | None) -> None:
    """Raise InputError for a number of workers that is not a whole number of at least 1."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers = {workers!r} is not allowed: should be a whole number of at least 1")


def memory_size(size: int | str | None) -> int:
    """Return an amount of memory in bytes; for None, half of what is available now.

    >>> memory_size("1.5K"), memory_size("2GiB"), memory_size(7)
    (1500, 2147483648, 7)
    """
    if size is None:
        return available() // 2
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    pattern = r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)B?|([KMGT])iB)\s*"
    found = re.fullmatch(pattern, size, re.IGNORECASE | re.ASCII) if isinstance(size, str) else None
    if not found:
        raise InputError(f"memory = {size!r} is not allowed: should be a size such as 500M, 4G or 2GiB")
    unit = BINARY[found[3].upper()] if found[3] else UNITS[found[2].upper()]
    return int(float(found[1]) * unit)


def available() -> int:
    """Return the bytes of memory that can be used without swapping, within the limit of a container if there is one."""
    import psutil

    free, group = psutil.virtual_memory().available, Path("/sys/fs/cgroup")
    try:
        taken = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        limit = int((group / "memory.max").read_text("ascii"))  # "max" is no number: no limit
        return max(0, min(free, limit - int(taken["anon"])))
    except (OSError, KeyError, ValueError):
        return free


def check_memory(what: str, size: float) -> None:
    """Raise InputError for what needs more memory than there is, before it is allocated: counts come from files.

    Arguments:
        what: the setting and its value.
        size: about how many bytes.
    """
    if (reason := lacking(size)) is not None:
        raise InputError(f"{what} is not allowed: {reason}")


def lacking(size: float) -> str | None:
    """Return how much memory this many bytes are and how much is available; None where that is enough."""
    if size <= UNCHECKED or size <= (free := available()):
        return None
    return f"it needs about {_size(size)} of memory, and {_size(free)} are available"


def _size(count: float) -> str:
    """Return a number of bytes with a unit.

    >>> _size(8.2194e13), _size(3.5e9), _size(1e40)
    ('82.2 TB', '3.5 GB', 'more than 1000 PB')
    """
    if count >= 1e18:
        return "more than 1000 PB"
    unit, name = (1e9, "GB") if count < 1e12 else (1e12, "TB") if count < 1e15 else (1e15, "PB")
    return f"{count / unit:.1f} {name}"


def is_out_of_memory(error: Exception) -> bool:
    """Return whether this is an error of Python, numpy or torch about an array that memory cannot hold."""
    return isinstance(error, MemoryError) or bool(OUT_OF_MEMORY.search(str(error)))


def environment() -> dict[str, Any]:
    """Return where and with what a run was made."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "packages": dict(_packages()),
    }


@cache
def _packages() -> dict[str, str]:
    """Return versions, which are read from files that take a while to parse."""
    from importlib.metadata import version

    return {name: version(name) for name in ("fedsoft", "torch", "numpy", "scipy", "safetensors")}
