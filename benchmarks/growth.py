"""How a synthetic round grows with clients and with centers.

    python -m benchmarks.growth [--repeats 9] [--quick] [--million] [--json FILE]

One thread. Growth from 100 to 10,000 clients, each size in a process of its own: time, and the peak of memory less what
the imports take. Then rounds that draw 60 clients of 100 to 100,000, or of a million that keep their points on disk.
Then the train job with 2 and with 8 centers, in turns: a local step should not cost more.

Two rounds (one with estimation, one without) are timed together; of all repeats the best and the median are kept. Times
are processor time and still move by some 15 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table
from tests.helpers import engine_for

import fedsoft as fs
from benchmarks.machine import MB, describe, memory
from benchmarks.sides import ROOT
from fedsoft.core.contract import State
from fedsoft.engine.local import LocalEngine

SIZES = [100, 300, 1000, 3000, 10000]
DRAWN, FROM, MILLION = 60, [100, 10_000, 100_000], 1_000_000


def ready(federation: fs.Federation, S: int = 2, **settings: Any) -> tuple[LocalEngine, State]:
    """An engine, ready for its first round."""
    algorithm = fs.FedSoft(S=S, **settings)
    engine = engine_for(algorithm, federation, fs.models.linear(), seed=0, solver=fs.Adam(), workers=1)
    return engine, engine.start()


def one_size(clients: int, repeats: int) -> dict[str, Any]:
    """Time and memory for so many clients. Run in a fresh process."""
    imported, _ = memory()
    federation = fs.datasets.synthetic(clients=clients)
    made, _ = memory()
    engine, state = ready(federation)
    seconds = []
    for t in range(0, 2 * repeats, 2):
        began = time.process_time()
        state, _ = engine.round(state, t)
        state, _ = engine.round(state, t + 1)
        seconds.append((time.process_time() - began) / 2)
    return {
        "clients": clients, "chunk": engine.host.chunk, "best": min(seconds), "median": statistics.median(seconds),
        "data_bytes": made - imported, "extra_bytes": memory()[1] - imported,
    }  # fmt: skip


def rounds_of_drawn(federation: fs.Federation) -> Callable[[], float]:
    """Rounds that draw 60 of all clients, without estimation: the seconds of each."""
    engine, state = ready(federation, K=min(DRAWN, len(federation)), tau=10**6)
    t = itertools.count()
    state, _ = engine.round(state, next(t))  # the first one estimates

    def play() -> float:
        nonlocal state
        began = time.process_time()
        state, _ = engine.round(state, next(t))
        return time.process_time() - began

    return play


def one_drawn(clients: int, repeats: int) -> dict[str, Any]:
    """Rounds that draw few of so many clients. Run in a fresh process."""
    imported, _ = memory()
    fs.datasets.synthetic(clients=2)  # compiles
    began, clock = time.process_time(), time.perf_counter()
    federation = fs.datasets.synthetic(clients=clients)
    made = time.process_time() - began, time.perf_counter() - clock
    play = rounds_of_drawn(federation)
    play()
    seconds = [play() for _ in range(3 * repeats)]
    return {
        "clients": clients, "made_cpu": made[0], "made_clock": made[1], "best": min(seconds),
        "median": statistics.median(seconds), "extra_bytes": memory()[1] - imported,
    }  # fmt: skip


def drawn(sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    results = []
    for clients in sizes:
        command = [sys.executable, "-m", "benchmarks.growth", "--one-drawn", str(clients), "--repeats", str(repeats)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        results.append(json.loads(done.stdout))
    return results


def show_drawn(results: list[dict[str, Any]]) -> Table:
    table = Table(title=f"a round without estimation that draws {DRAWN} clients")
    for column in ("clients", "making s (cores)", "by the clock", "ms per round", "median", "to the first", "peak MB"):
        table.add_column(column, justify="right")
    for r in results:
        table.add_row(
            f"{r['clients']:,}", f"{r['made_cpu']:.2f}", f"{r['made_clock']:.2f}", f"{r['best'] * 1e3:.1f}",
            f"{r['median'] * 1e3:.1f}", f"{r['median'] / results[0]['median']:.2f}", f"{r['extra_bytes'] / MB:.0f}",
        )  # fmt: skip
    return table


def grow(sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    results = []
    for clients in sizes:
        few = max(2, min(repeats, 9000 // clients))
        command = [sys.executable, "-m", "benchmarks.growth", "--one-size", str(clients), "--repeats", str(few)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        results.append(json.loads(done.stdout))
    return results


def show_growth(results: list[dict[str, Any]]) -> Table:
    table = Table(title="growth (memory beyond what the imports take)")
    for column in ("clients", "s per round", "median", "µs per client", "peak MB", "KB per client", "data", "chunk"):
        table.add_column(column, justify="right")
    for r in results:
        clients, kilobytes = r["clients"], 1024 * r["clients"]
        table.add_row(
            f"{clients:,}", f"{r['best']:.3f}", f"{r['median']:.3f}", f"{r['best'] / clients * 1e6:.0f}",
            f"{r['extra_bytes'] / MB:.0f}", f"{r['extra_bytes'] / kilobytes:.0f}",
            f"{r['data_bytes'] / kilobytes:.0f}", f"{r['chunk']:,}",
        )  # fmt: skip
    return table


def compare_centers(clients: int, repeats: int, counts: tuple[int, int] = (2, 8)) -> dict[str, Any]:
    """The train job of all clients, in turns."""
    federation = fs.datasets.synthetic(clients=clients)
    seconds: dict[int, list[float]] = {S: [] for S in counts}
    jobs: dict[int, Callable[[], object]] = {}
    for S in counts:
        engine, state = ready(federation, S=S)
        jobs[S] = lambda engine=engine, c=state.centers: engine("train", engine.everyone, centers=c)
        jobs[S]()
    for _ in range(3 * repeats):
        for S, job in jobs.items():
            began = time.process_time()
            job()
            seconds[S].append(time.process_time() - began)
    few, many = (statistics.median(seconds[S]) for S in counts)
    return {"centers": list(counts), "medians": [few, many], "ratio": many / few}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=9, help="pairs of rounds to time (default 9)")
    options.add_argument("--json", type=Path, metavar="FILE", help="save all numbers here")
    options.add_argument("--quick", action="store_true", help="few clients, sizes and repeats")
    options.add_argument("--million", action="store_true", help="draw from a million clients, too (half an hour)")
    options.add_argument("--one-size", type=int, help=argparse.SUPPRESS)  # what `grow` starts
    options.add_argument("--one-drawn", type=int, help=argparse.SUPPRESS)  # what `drawn` starts
    chosen = options.parse_args()
    if chosen.repeats < 1:
        options.error("--repeats should be 1 or more")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if chosen.one_size:
        print(json.dumps(one_size(chosen.one_size, chosen.repeats)))
        return
    if chosen.one_drawn:
        print(json.dumps(one_drawn(chosen.one_drawn, chosen.repeats)))
        return
    repeats = min(2, chosen.repeats) if chosen.quick else chosen.repeats
    console = Console() if sys.stdout.isatty() else Console(width=120)
    result: dict[str, Any] = {"machine": describe()}
    console.print("{cpu}, torch {torch}, load {load}".format(**result["machine"]))
    result["growth"] = grow([20, 40] if chosen.quick else SIZES, repeats)
    console.print(show_growth(result["growth"]))
    sizes = [20, 100] if chosen.quick else FROM + [MILLION] * chosen.million
    result["drawn"] = drawn(sizes, repeats)
    console.print(show_drawn(result["drawn"]))
    result["centers"] = compare_centers(8 if chosen.quick else 84, repeats)
    few, many = result["centers"]["medians"]
    console.print(
        f"the train job: {few * 1e3:.1f} ms with 2 centers, {many * 1e3:.1f} ms with 8, "
        f"{result['centers']['ratio']:.2f} times"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
