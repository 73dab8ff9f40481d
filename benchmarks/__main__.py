"""The speed that is to be reached, in one table.

    python -m benchmarks [--only ROW ...] [--repeats 5] [--quick] [--json FILE]

Every row is a ratio of two sides that do the same work, checked on a small round with a fixed order of points. Each
side runs in a process of its own, and the two take turns, so that a slow moment of the machine hits both; the ratio is
the median over turns. Times are processor time on one thread, per step of one client (per point in estimation), and
wall-clock time for two workers, which says nothing where others use the cores too. The plain loop is what one would
write by hand: a module, a DataLoader and `torch.optim.Adam` for each client, the proximal term in the loss. The tuned
one has index batches, fused Adam, the proximal term pre-summed and added to the gradient, and a heap that keeps its
memory.

The machine's limit for a step of the letters CNN is the time of its floating-point operations at the rate of a 1024
square product, plus that of what Adam reads and writes at the rate of copying 6.7 MB, which stays in the cache.

Results are saved and compared with those of the last time: changes of more than 15 % are pointed out. The tables of
docs/speed.md are made of them (`benchmarks.page`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console

from benchmarks import machine, page
from benchmarks.rows import ROWS
from benchmarks.table import measure, read, save, show

SAVED = Path(__file__).with_name("results.json")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=ROWS, action="append", metavar="ROW", help=f"one of {', '.join(ROWS)}")
    options.add_argument("--repeats", type=int, default=5, help="turns of each side (default 5)")
    options.add_argument("--quick", action="store_true", help="little work: whether all runs, not how fast")
    options.add_argument("--json", type=Path, metavar="FILE", help=f"compare with and save to this, not {SAVED.name}")
    chosen = options.parse_args()
    if chosen.repeats < 1:
        options.error("--repeats should be 1 or more")
    if chosen.json and not chosen.json.parent.is_dir():
        options.error(f"--json: there is no folder {chosen.json.parent}")
    torch.set_num_threads(1)
    repeats = min(2, chosen.repeats) if chosen.quick else chosen.repeats
    console = Console() if sys.stdout.isatty() else Console(width=150)
    path = chosen.json or (None if chosen.quick else SAVED)
    last = read(path) if path else {}

    began = time.perf_counter()
    about = machine.describe() | {"rates": machine.rates(repeats, 0.01 if chosen.quick else 0.1)}
    about["free_cores"] = round(machine.free_cores(0.05 if chosen.quick else 0.5), 2)
    console.print("{cpu}, {cores} cores, load {load}, torch {torch}, Python {python}".format(**about))
    gemm, copy = about["rates"]["gemm"], about["rates"]["copy"]
    console.print(
        "one thread: " + ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in gemm.items()) + "; copying "
        + ", ".join(f"{name} {rate:.1f} GB/s" for name, rate in copy.items()) + " (read and written)"
    )  # fmt: skip
    console.print(f"two threads at once do {about['free_cores']} times the work of one")
    results, commit = {}, page.commit()
    for name in chosen.only or ROWS:
        print(f"measuring {name} ...", file=sys.stderr)
        results[name] = measure(name, repeats, chosen.quick) | {"commit": commit}
    console.print(show(results, last.get("rows", {}), about["free_cores"]))
    for name, result in results.items():
        if "skipped" in result:
            console.print(f"{name}: {result['skipped']}")
    if chosen.quick:
        console.print("a quick run: the ratios mean nothing")
    console.print(f"{time.perf_counter() - began:.0f} s; load now {os.getloadavg()[0]:.1f}")
    if path:
        rows = last.get("rows", {}) | results
        save(path, {"machine": about, "rows": {name: rows[name] for name in ROWS if name in rows}})
        console.print(f"saved {path}")
    if path == SAVED:
        page.main()


if __name__ == "__main__":
    main()
