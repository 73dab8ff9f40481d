"""Where compiled kernels are kept between processes: a folder of this user on this machine, and of nobody else.

numba keeps what it compiles in files that run code when they are read, and by default beside the sources: in a package
that several people may write to, one of them could make all others run anything; in one that nobody may write to, every
process would compile anew. Where there is no folder of the user's own, nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from numba import config as numba_config

config: Any = numba_config  # its settings are made when it is imported
OTHERS = stat.S_IWGRP | stat.S_IWOTH


@cache
def own_folder() -> Path | None:
    """Return the folder, which is made where it is missing; None where others could write to it, or this user cannot.

    `NUMBA_CACHE_DIR` is the user's own choice, and is taken as it is.
    """
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    machine = re.sub(r"[^A-Za-z0-9._-]+", "-", platform.node()) or "machine"  # homes are shared between machines
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = root / "fedsoft" / f"kernels-{machine}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError):  # no home, or none that can be written
        return None
    own = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & OTHERS)
    return folder if stat.S_ISDIR(found.st_mode) and own and os.access(folder, os.W_OK) else None


@contextlib.contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Let numba keep in this folder what is marked for its cache in here."""
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before
