"""What was measured on: the machine, how fast it multiplies and copies, and what a process holds in memory."""

from __future__ import annotations

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
SQUARE, CONVOLUTION = "1024 square", "second convolution"
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


def product_rate(what: str, seconds: float = 0.1) -> float:
    """Floating-point operations per second, in single precision, of a product of large matrices, or of the second
    convolution of the letters CNN on five images: torch takes them from two libraries."""
    if what == SQUARE:
        a, b, out = (torch.randn(1024, 1024) for _ in range(3))
        return 2 * 1024**3 / _per_call(lambda: torch.mm(a, b, out=out), seconds)
    x = torch.randn(5, 32, 14, 14).contiguous(memory_format=torch.channels_last)
    w = torch.randn(64, 32, 5, 5)
    return 2 * 5 * 14 * 14 * 800 * 64 / _per_call(lambda: torch.conv2d(x, w, padding=2), seconds)


def copy_rate(floats: int, seconds: float = 0.1) -> float:
    """Bytes per second, read and written, of copying an array."""
    a, b = torch.randn(floats), torch.empty(floats)
    return 2 * 4 * floats / _per_call(lambda: b.copy_(a), seconds)


def rates(repeats: int, seconds: float = 0.1) -> dict[str, dict[str, float]]:
    """All rates, in units of 10^9 per second: the best of some tries, since only that is the machine's own."""
    best: dict[str, dict[str, float]] = {
        "gemm": dict.fromkeys((SQUARE, CONVOLUTION), 0.0),
        "copy": dict.fromkeys(COPY, 0.0),
    }
    for _ in range(repeats):
        for name in best["gemm"]:
            best["gemm"][name] = max(best["gemm"][name], product_rate(name, seconds) / 1e9)
        for name, floats in COPY.items():
            best["copy"][name] = max(best["copy"][name], copy_rate(floats, seconds) / 1e9)
    return best


def free_cores(seconds: float = 0.5) -> float:
    """How much more two threads do than one, by the clock: less than 2 where others use the cores too."""

    def product() -> Callable[[], object]:
        a = torch.randn(512, 512)
        return lambda: torch.mm(a, a)

    return twice(product, seconds)


def twice(make: Callable[[], Callable[[], object]], seconds: float) -> float:
    """How much more two threads do of some work than one, by the clock, each with its own."""
    works = make(), make()

    def repeat(work: Callable[[], object], counts: list[int]) -> None:
        torch.set_num_threads(1)  # for this thread
        work()
        counts.append(0)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            work()
            counts[-1] += 1

    one: list[int] = []
    two: list[list[int]] = [[], []]
    repeat(works[0], one)
    threads = [threading.Thread(target=repeat, args=given) for given in zip(works, two, strict=True)]
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


def memory() -> tuple[int, int]:
    """The memory of this process now and at its peak, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would start from the peak of the process that started this one
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return most, most
