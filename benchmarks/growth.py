"""How a synthetic round grows with clients and with centers.

    python -m benchmarks.growth [--repeats 9] [--quick] [--json FILE]

One thread. Growth from 100 to 10,000 clients, each size in a process of its own: time, and the peak of memory less what
the imports take. Then the train job with 2 and with 8 centers, in turns: a local step should not cost more.

Two rounds (one with estimation, one without) are timed together; of all repeats the best and the median are kept. Times
are processor time and still move by some 15 %.
"""

from __future__ import annotations

import argparse
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


def ready(federation: fs.Federation, S: int = 2) -> tuple[LocalEngine, State]:
    """An engine, ready for its first round."""
    engine = engine_for(fs.FedSoft(S=S), federation, fs.models.linear(), seed=0, solver=fs.Adam(), workers=1)
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
    options.add_argument("--one-size", type=int, help=argparse.SUPPRESS)  # what `grow` starts
    chosen = options.parse_args()
    if chosen.repeats < 1:
        options.error("--repeats should be 1 or more")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if chosen.one_size:
        print(json.dumps(one_size(chosen.one_size, chosen.repeats)))
        return
    repeats = min(2, chosen.repeats) if chosen.quick else chosen.repeats
    console = Console() if sys.stdout.isatty() else Console(width=120)
    result: dict[str, Any] = {"machine": describe()}
    console.print("{cpu}, torch {torch}, load {load}".format(**result["machine"]))
    result["growth"] = grow([20, 40] if chosen.quick else SIZES, repeats)
    console.print(show_growth(result["growth"]))
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
