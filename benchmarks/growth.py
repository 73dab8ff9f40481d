"""How a synthetic round grows with clients and with centers.

    python -m benchmarks.growth [--repeats 9] [--quick] [--json FILE]

One thread. Growth from 100 to 10,000 clients, each size in a process of its own: time, and the peak of memory less what
the imports take. Then rounds that draw 60 clients of 100 to 1,000,000, with their points on disk where memory is short.
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
from benchmarks.markdown import duration, table
from benchmarks.sides import ROOT
from fedsoft.core.contract import State
from fedsoft.engine.local import LocalEngine

SIZES = [100, 300, 1000, 3000, 10000]
DRAWN, FROM = 60, [100, 10_000, 100_000, 1_000_000]
SLOWER, MAKING, MEMORY = 3, 2, 16  # at most: times the first up to 100,000; seconds for as many; GB for a million


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
    shown = Table(title=f"a round without estimation that draws {DRAWN} clients")
    for column in ("clients", "making s (cores)", "by the clock", "ms per round", "median", "to the first", "peak MB"):
        shown.add_column(column, justify="right")
    for r in results:
        shown.add_row(
            f"{r['clients']:,}", f"{r['made_cpu']:.2f}", f"{r['made_clock']:.2f}", f"{r['best'] * 1e3:.1f}",
            f"{r['median'] * 1e3:.1f}", f"{r['median'] / results[0]['median']:.2f}", f"{r['extra_bytes'] / MB:.0f}",
        )  # fmt: skip
    return shown


def grow(sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    results = []
    for clients in sizes:
        few = max(2, min(repeats, 9000 // clients))
        command = [sys.executable, "-m", "benchmarks.growth", "--one-size", str(clients), "--repeats", str(few)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        results.append(json.loads(done.stdout))
    return results


def show_growth(results: list[dict[str, Any]]) -> Table:
    shown = Table(title="growth (memory beyond what the imports take)")
    for column in ("clients", "s per round", "median", "µs per client", "peak MB", "KB per client", "data", "chunk"):
        shown.add_column(column, justify="right")
    for r in results:
        clients, kilobytes = r["clients"], 1024 * r["clients"]
        shown.add_row(
            f"{clients:,}", f"{r['best']:.3f}", f"{r['median']:.3f}", f"{r['best'] / clients * 1e6:.0f}",
            f"{r['extra_bytes'] / MB:.0f}", f"{r['extra_bytes'] / kilobytes:.0f}",
            f"{r['data_bytes'] / kilobytes:.0f}", f"{r['chunk']:,}",
        )  # fmt: skip
    return shown


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
    return {"clients": clients, "centers": list(counts), "medians": [few, many], "ratio": many / few}


def part(repeats: int, quick: bool) -> dict[str, Any]:
    """What `make bench` saves of rounds that draw few of many clients."""
    return {"drawn": drawn([20, 100] if quick else FROM, 1 if quick else repeats)}


def block(result: dict[str, Any]) -> str:
    """The same on a page."""
    rows, first = [], result["drawn"][0]["median"]
    for r in result["drawn"]:
        goals = [f"at most {SLOWER}"] if 100 < r["clients"] <= 100_000 else []
        goals += [f"made in {MAKING} s"] if r["clients"] == 100_000 else []
        goals += [f"{MEMORY} GB"] if r["clients"] == 1_000_000 else []
        rows.append([
            f"{r['clients']:,}", f"{r['made_clock']:.2f} s", duration(r["median"]), duration(r["best"]),
            f"**{r['median'] / first:.3g}**", f"{r['extra_bytes'] / 1e9:.2g} GB", ", ".join(goals),
        ])  # fmt: skip
    heads = ["clients", "made in", "a round", "the quickest", "to the first", "memory at most", "goal"]
    return table(heads, rows)


def growth_part(repeats: int, quick: bool) -> dict[str, Any]:
    """What `make bench` saves of rounds of all clients."""
    found = grow([20, 40] if quick else SIZES, 2 if quick else repeats)
    return {"growth": found, "centers": compare_centers(8 if quick else 84, 1 if quick else repeats)}


def growth_block(result: dict[str, Any]) -> str:
    """Sentences on a page."""
    sizes = [
        f"{duration(r['median'])} and {r['extra_bytes'] / MB:.0f} MB for {r['clients']:,}" for r in result["growth"]
    ]
    (few, many), clients = result["centers"]["medians"], result["centers"]["clients"]
    return (
        f"A round of all clients takes {', '.join(sizes)} clients. Training {clients} clients takes {few * 1e3:.3g} ms "
        f"with 2 centers, {many * 1e3:.3g} ms with 8."
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=9, help="pairs of rounds to time (default 9)")
    options.add_argument("--json", type=Path, metavar="FILE", help="save all numbers here")
    options.add_argument("--quick", action="store_true", help="few clients, sizes and repeats")
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
    sizes = [20, 100] if chosen.quick else FROM
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
