"""The speed that is to be reached, in one table.

    python -m benchmarks [--only ROW ...] [--again] [--repeats 5] [--quick] [--json FILE]

Every row is a ratio of two sides that do the same work, checked on a small round with a fixed order of points. Each
side runs in a process of its own, and the two take turns, so that a slow moment of the machine hits both; the ratio is
the median over turns. Times are processor time on one thread, per step of one client (per point in estimation), and
wall-clock time for two workers, which says nothing where others use the cores too. The plain loop is what one would
write by hand: a module, a DataLoader and `torch.optim.Adam` for each client, the proximal term in the loss. The tuned
one has index batches, fused Adam, the proximal term pre-summed and added to the gradient, and a heap that keeps its
memory.

The machine's limit for a step of the letters CNN is the time of its floating-point operations at the rate of a 1024
square product, those of convolutions at the rate of the second one where that is higher, plus that of what Adam reads
and writes at the rate of copying 6.7 MB, which stays in the cache.

After the rows come what commands take (`benchmarks.startup`), rounds by the number of clients (`benchmarks.growth`) and
all algorithms (`benchmarks.algorithms`).

Each result is saved as soon as it is there, so a bench that was stopped goes on where it was: what was measured at this
very commit is not measured again, unless `--again` or `--only` asks for it. Ratios are compared with those of the last
time: changes of more than 15 % are pointed out. The tables of docs/speed.md and README.md are made of the results
(`benchmarks.page`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console

from benchmarks import machine, page
from benchmarks.rows import ROWS
from benchmarks.table import measure, read, save, show

SAVED = page.SAVED


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*ROWS, *page.PARTS]
    options.add_argument("--only", choices=known, action="append", metavar="ROW", help=f"one of {', '.join(known)}")
    options.add_argument("--again", action="store_true", help="also what was measured at this commit already")
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
    about = _machine(console, repeats, chosen.quick)
    commit = page.commit()
    found = {"machine": about, "rows": dict(last.get("rows", {})), "parts": dict(last.get("parts", {}))}
    fresh = commit is not None and not commit.endswith("+") and not (chosen.again or chosen.only or chosen.quick)
    for name in chosen.only or known:
        where = found["rows" if name in ROWS else "parts"]
        if fresh and where.get(name, {}).get("commit") == commit and "skipped" not in where[name]:
            print(f"{name} was measured at {commit}", file=sys.stderr)
            continue
        print(f"measuring {name} ... ({time.perf_counter() - began:.0f} s)", file=sys.stderr)
        if name in ROWS:
            result = measure(name, repeats, chosen.quick)
        else:
            result = page.PARTS[name].measure(repeats, chosen.quick)
        where[name] = result | {"commit": commit}
        if path:
            ordered = {kind: {n: found[kind][n] for n in known if n in found[kind]} for kind in ("rows", "parts")}
            save(path, {"machine": about, **ordered})
    shown = {name: found["rows"][name] for name in chosen.only or ROWS if name in ROWS}
    if shown:
        console.print(show(shown, last.get("rows", {}), about["free_cores"]))
    for name, result in shown.items():
        if "skipped" in result:
            console.print(f"{name}: {result['skipped']}")
    for name in chosen.only or page.PARTS:
        if name in page.PARTS:
            console.print(f"{name}:\n{page.PARTS[name].block(found['parts'][name])}", markup=False)
    if chosen.quick:
        console.print("a quick run: the ratios mean nothing")
    console.print(f"{time.perf_counter() - began:.0f} s; load now {os.getloadavg()[0]:.1f}")
    if path:
        console.print(f"saved {path}")
    if path == SAVED:
        page.main()


def _machine(console: Console, repeats: int, quick: bool) -> dict[str, Any]:
    about = machine.describe() | {"rates": machine.rates(repeats, 0.01 if quick else 0.1)}
    about["free_cores"] = round(machine.free_cores(0.05 if quick else 0.5), 2)
    console.print("{cpu}, {cores} cores, load {load}, torch {torch}, Python {python}".format(**about))
    gemm, copy = about["rates"]["gemm"], about["rates"]["copy"]
    console.print(
        "one thread: " + ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in gemm.items()) + "; copying "
        + ", ".join(f"{name} {rate:.1f} GB/s" for name, rate in copy.items()) + " (read and written)"
    )  # fmt: skip
    console.print(f"two threads at once do {about['free_cores']} times the work of one")
    return about


if __name__ == "__main__":
    main()
