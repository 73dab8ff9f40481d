"""The memory of this process between allocations."""

from __future__ import annotations

import ctypes
import os
from functools import cache

TRIM, MMAP = -1, -3  # what mallopt calls its settings
KEPT, APART = 2**28, 2**25  # bytes at the end of the heap that are kept; blocks from which each is mapped apart


@cache
def keep_heap() -> bool:
    """Have glibc keep freed memory, up to 256 MB, instead of giving it back to the kernel; False where it does not.

    Tensors of some hundred kilobytes are otherwise new pages in every step, zeroed by the kernel. What a user has set
    in the environment stays.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(MMAP, APART)) and bool(libc.mallopt(TRIM, KEPT))
    except (OSError, AttributeError):
        return False
