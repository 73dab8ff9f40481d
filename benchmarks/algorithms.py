"""The time of a synthetic round of every algorithm per unit of client work, as a multiple of FedSoft's.

    python -m benchmarks.algorithms [--repeats 3] [--quick] [--json FILE]

One process, one thread. The federation is the paper's (100 clients of 100 to 200 points, linear regression in 10
dimensions, 10 epochs, batch 10, Adam). Work is counted by the engine in gradient evaluations; the figure is the median
over rounds after the first, each divided by that round's work. Algorithms and FedSoft take turns, so that a slow moment
of the machine hits both.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import fedsoft as fs
from fedsoft import plugins

ROUNDS = 6


def seconds_per_gradient(name: str, federation: fs.Federation) -> tuple[float, float]:
    """Microseconds per 1,000 gradient evaluations, and the gradients of a round."""
    known = plugins.parameters(plugins.find("algorithms", name))
    wanted = {"S": 2, "K": 60, "warm": 2, "after": 2}
    algorithm = plugins.build("algorithms", name, {k: v for k, v in wanted.items() if k in known})
    run = fs.fit(algorithm, federation, fs.models.linear(), rounds=ROUNDS, seed=0, options=fs.FitOptions(workers=1))
    rounds = [r for r in run.history[1:] if r.gradients]
    rate = statistics.median(r.seconds / r.gradients for r in rounds)
    return rate * 1e9, statistics.median(r.gradients for r in rounds)


def measure(repeats: int, quick: bool) -> dict[str, dict[str, float]]:
    """Every algorithm and FedSoft in turns."""
    names = ["fedavg", "ifca"] if quick else plugins.names("algorithms")
    federation = fs.datasets.synthetic(partition="10:90", clients=70 if quick else 100, seed=0)
    seconds_per_gradient("fedsoft", federation)  # warms up
    found = {}
    for name in names:
        ratios, own, work = [], 0.0, 0.0
        seconds_per_gradient(name, federation)
        for _ in range(repeats):
            reference, _ = seconds_per_gradient("fedsoft", federation)
            own, work = seconds_per_gradient(name, federation)
            ratios.append(own / reference)
        found[name] = {"ratio": statistics.median(ratios), "us_per_1000_gradients": own, "gradients_per_round": work}
    return found


def part(repeats: int, quick: bool) -> dict[str, Any]:
    """What `make bench` saves."""
    return {"algorithms": measure(1 if quick else min(3, repeats), quick)}


def block(result: dict[str, Any]) -> str:
    """A sentence on a page."""
    ratios = {name: row["ratio"] for name, row in result["algorithms"].items() if name != "fedsoft"}
    order = sorted(ratios, key=lambda name: ratios[name])
    middle, ends = order[len(order) // 2], [*order[:1], *order[-3:]]
    told = ", ".join(f"{ratios[name]:.2g} (`{name}`)" for name in dict.fromkeys(ends))
    return (
        f"Per unit of client work on synthetic data, {len(order)} other algorithms take a median of "
        f"{ratios[middle]:.2g} times as long as FedSoft; the least and the three most: {told}."
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=3, help="turns that each algorithm takes against FedSoft")
    options.add_argument("--quick", action="store_true", help="few clients, two algorithms, one turn")
    options.add_argument("--json", type=Path, help="save the figures here")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    found = measure(1 if chosen.quick else chosen.repeats, chosen.quick)
    table = Table("algorithm", "gradients a round", "µs per 1,000 gradients", "multiple of FedSoft")
    for name, row in sorted(found.items(), key=lambda item: item[1]["ratio"]):
        table.add_row(
            name, f"{row['gradients_per_round']:,.0f}", f"{row['us_per_1000_gradients']:.0f}", f"{row['ratio']:.2f}"
        )
    Console().print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
