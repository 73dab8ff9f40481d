"""What this machine has to offer, and what it is: cores, memory, versions."""

from __future__ import annotations

import os
import platform
import re
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsoft.errors import InputError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_workers(workers: int | None) -> None:
    """Complain about a number of threads that is none."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers = {workers!r} is not allowed: should be a whole number of at least 1")


def memory_size(size: int | str | None) -> int:
    """An amount of memory in bytes; half of what is available now for None.

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
    """The bytes of memory that can be had without swapping, within the limit of a container where there is one."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    group = Path("/sys/fs/cgroup")
    try:
        taken = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        limit = int((group / "memory.max").read_text("ascii"))  # "max" is no number: no limit
        return max(0, min(free, limit - int(taken["anon"])))
    except (OSError, KeyError, ValueError):
        return free


def environment() -> dict[str, Any]:
    """Where and with what a run was made."""
    packages = {name: version(name) for name in ("fedsoft", "torch", "numpy", "scipy", "safetensors")}
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "packages": packages,
    }
