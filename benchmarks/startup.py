"""What commands take that do little: processor seconds, start to end, in processes of their own.

    python -m benchmarks.startup [--repeats 5] [--clients 200] [--quick] [--json FILE]

Commands take turns; the first turn, which compiles kernels and Python's own files, does not count. Beside them stands
what no command can go below: Python itself, and importing torch. `export` writes the personal models of a run, an MLP
64-64-10 for each client, as ONNX; every file is run once and compared with the network.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from benchmarks.markdown import table

FEDSOFT = [sys.executable, "-c", "from fedsoft.cli import main; main()"]
GOALS = {"--help": 0.3, "ls": 0.5, "show": 0.7, "run digits-2 --rounds 1": 3.0, "export": 10.0}
RUNS = ("synthetic-10-90", "digits-2")


def seconds(command: list[str], folder: Path) -> float:
    """Processor seconds of a process and of those that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands(folder: Path, clients: int) -> dict[str, list[str]]:
    """What is measured, once there are runs to show and to export."""
    for preset in RUNS:
        seconds([*FEDSOFT, "run", preset, "--rounds", "5"], folder)
    more = ["K=all", f"dataset.clients={clients}", "dataset.points=[20,20]", "model=mlp", "model.hidden=[64]"]
    line = [*FEDSOFT, "run", "digits-2", "--rounds", "1", "--out", "many"]
    seconds([*line, *(word for change in more for word in ("--set", change))], folder)
    (many,) = (folder / "many").iterdir()
    shown = next(path.name for path in (folder / "runs").iterdir() if path.name.startswith(RUNS[0]))
    export = ["export", str(many), "--what", "clients", "--format", "onnx", "--out", "written"]
    return {
        "python": [sys.executable, "-c", ""],
        "import torch": [sys.executable, "-c", "import torch"],
        "--help": [*FEDSOFT, "--help"],
        "ls": [*FEDSOFT, "ls"],
        "show": [*FEDSOFT, "show", shown],
        "run digits-2 --rounds 1": [*FEDSOFT, "run", "digits-2", "--rounds", "1", "--again", "--out", "again"],
        "export": [*FEDSOFT, *export],
    }


def measure(repeats: int, clients: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = commands(folder, clients)
        found: dict[str, list[float]] = {what: [] for what in known}
        for turn in range(repeats + 1):
            for what, command in known.items():
                if what == "export" and turn > 1:  # long enough to be measured once, after it was warmed up
                    continue
                shutil.rmtree(folder / "written", ignore_errors=True)
                spent = seconds(command, folder)
                if turn:
                    found[what].append(spent)
    return found


def rows(result: dict[str, Any]) -> list[list[str]]:
    """What is shown of each command."""
    found = []
    for what, spent in result["seconds"].items():
        name = f"{result['clients']} personal MLPs to ONNX" if what == "export" else what
        goal = f"{GOALS[what]:g}" if what in GOALS else ""
        times = [f"{value:.2f}" for value in (statistics.median(spent), min(spent), max(spent))]
        found.append([name, *times, goal])
    return found


HEADS = ["command", "median", "least", "most", "goal"]


def part(repeats: int, quick: bool) -> dict[str, Any]:
    """What `make bench` saves."""
    clients = 4 if quick else 200
    return {"clients": clients, "seconds": measure(1 if quick else repeats, clients)}


def block(result: dict[str, Any]) -> str:
    """The same on a page, in processor seconds."""
    found = rows(result)
    return table(HEADS, [[f"`{what}`" if what in GOALS else what, *times] for what, *times in found])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=5, help="turns of each command (default 5)")
    options.add_argument("--clients", type=int, default=200, help="models to export (default 200)")
    options.add_argument("--quick", action="store_true", help="one turn, few models: whether all runs, not how fast")
    options.add_argument("--json", type=Path, metavar="FILE", help="save all numbers here")
    chosen = options.parse_args()
    if chosen.repeats < 1:
        options.error("--repeats should be 1 or more")
    repeats, clients = (1, 4) if chosen.quick else (chosen.repeats, chosen.clients)
    found = measure(repeats, clients)
    result: dict[str, Any] = {"machine": describe(), "clients": clients, "seconds": found}
    shown = Table(*HEADS, title="processor seconds of a command, warm")
    for row in rows(result):
        shown.add_row(*row)
    Console(width=100).print(shown)
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
