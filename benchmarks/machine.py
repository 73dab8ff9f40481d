"""What was measured on: the machine, how fast it multiplies and copies, and what a process holds in memory."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fedsoft as fs

MB = 2**20
GEMM = {"1024 square": (1024, 1024, 1024), "second convolution": (64, 800, 980)}
"""Products [m, k] x [k, n]. The second: that of the letters CNN on five images, with its patches as columns."""
COPY = {"6.7 MB": 1_671_578, "64 MB": 2**24}
"""Floats. The first is the parameter vector of the letters CNN, which stays in the cache; the second does not."""


def describe() -> dict[str, Any]:
    """The machine and what runs on it."""
    cpu, info = platform.processor(), Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2] for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].strip() if names else cpu
    return {
        "cpu": cpu, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "platform": platform.platform(),
        "python": platform.python_version(), "torch": str(torch.__version__), "fedsoft": fs.__version__,
    }  # fmt: skip


def gemm_rate(shape: tuple[int, int, int], seconds: float = 0.1) -> float:
    """Floating-point operations per second of a product in single precision."""
    m, k, n = shape
    a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    return 2 * m * k * n / _per_call(lambda: torch.mm(a, b, out=out), seconds)


def copy_rate(floats: int, seconds: float = 0.1) -> float:
    """Bytes per second, read and written, of copying an array."""
    a, b = torch.randn(floats), torch.empty(floats)
    return 2 * 4 * floats / _per_call(lambda: b.copy_(a), seconds)


def rates(repeats: int, seconds: float = 0.1) -> dict[str, dict[str, float]]:
    """All rates, in units of 10^9 per second: the best of some tries, since only that is the machine's own."""
    best: dict[str, dict[str, float]] = {"gemm": dict.fromkeys(GEMM, 0.0), "copy": dict.fromkeys(COPY, 0.0)}
    for _ in range(repeats):
        for name, shape in GEMM.items():
            best["gemm"][name] = max(best["gemm"][name], gemm_rate(shape, seconds) / 1e9)
        for name, floats in COPY.items():
            best["copy"][name] = max(best["copy"][name], copy_rate(floats, seconds) / 1e9)
    return best


def free_cores(seconds: float = 0.5) -> float:
    """How much more two threads do than one, by the clock: less than 2 where others use the cores too."""
    a = torch.randn(512, 512)

    def multiply(counts: list[int]) -> None:
        torch.set_num_threads(1)  # for this thread
        counts.append(0)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            torch.mm(a, a)
            counts[-1] += 1

    one: list[int] = []
    two: list[list[int]] = [[], []]
    multiply(one)
    threads = [threading.Thread(target=multiply, args=(counts,)) for counts in two]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(map(sum, two)) / sum(one)


def _per_call(function: Callable[[], object], seconds: float) -> float:
    """Processor time of a call, over as many as take some time."""
    function()
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < seconds:
        function()
        calls += 1
    return spent / calls


def keep_heap() -> bool:
    """Have glibc keep freed memory instead of giving it back to the kernel; False where there is no glibc.

    Tensors of some megabytes are otherwise new pages every time, zeroed by the kernel.
    """
    trim_threshold, mmap_threshold = -1, -3
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(mmap_threshold, 32 * MB)) and bool(libc.mallopt(trim_threshold, 2**31 - 1))
    except (OSError, AttributeError):
        return False


def memory() -> tuple[int, int]:
    """The memory of this process now and at its peak, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would start from the peak of the process that started this one
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return most, most
