"""What Ray costs against the engine of this process, and how a round grows with clients.

    python -m benchmarks.engines [--rounds 6] [--sizes 1000,10000] [--presets synthetic-10-90,digits-2] [--json FILE]

Both engines have the same cores. They play the same rounds in turns, in one process, so that what else the machine does
meets both; the medians of their rounds are compared. The processor time of this process in a round with Ray is the
server's own part, which more workers do not make shorter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tests.helpers import engine_for

import fedsoft as fs
from benchmarks.machine import describe
from fedsoft.engine import registry as engines
from fedsoft.engine.base import Engine
from fedsoft.engine.ray import RayEngine
from fedsoft.machine.threads import one_thread
from fedsoft.runs import spec
from fedsoft.runs.run_options import RunOptions, build


def in_turns(name: str, local: Engine, other: Engine, rounds: int) -> dict[str, Any]:
    """The same rounds by both; seconds and bytes of each round after the first."""
    assert isinstance(other, RayEngine)
    seconds: dict[str, list[float]] = {"local": [], "ray": [], "server": []}
    crossed = []
    with contextlib.closing(other), torch.no_grad(), one_thread():
        states = {"local": local.start(), "ray": other.start()}
        for t in range(rounds + 1):  # the first one warms up
            for kind, engine in (("local", local), ("ray", other)):
                before = other.wire.down, other.wire.up
                began, used = time.perf_counter(), time.process_time()
                states[kind], _ = engine.round(states[kind], t)
                if t:
                    seconds[kind].append(time.perf_counter() - began)
                    if kind == "ray":
                        seconds["server"].append(time.process_time() - used)
                        crossed.append((other.wire.down - before[0], other.wire.up - before[1]))
        apart = float((states["local"].centers - states["ray"].centers).abs().max())
        kept = sum(form.row_bytes for form in other.forms.values())
    median = {f"{kind}_seconds": statistics.median(values) for kind, values in seconds.items()}
    down, up = (statistics.median(values) for values in zip(*crossed, strict=True))
    return {
        "what": name, "clients": len(local.names), "workers": len(other.cuts) - 1, **median,
        "ratio": median["ray_seconds"] / median["local_seconds"], "down": down, "up": up,
        "points_bytes": other.wire.points, "kept_bytes_per_client": kept, "centers_apart": apart,
    }  # fmt: skip


def preset(name: str, rounds: int, workers: int) -> dict[str, Any]:
    """A preset as it is."""
    wanted = spec.read(name, [])
    _, local = build(wanted, RunOptions(workers=workers))
    _, other = build(wanted, RunOptions(workers=workers, engine="ray"))
    return in_turns(name, local, other, rounds)


def synthetic(clients: int, rounds: int, workers: int) -> dict[str, Any]:
    """The paper's synthetic data with more clients; the K that are trained stay 60, all estimate every other round."""
    federation = fs.datasets.synthetic(clients=clients, points=(50, 100), test_points=100)

    def made(engine: str) -> Engine:
        return engine_for(
            fs.FedSoft(S=2, K=60, tau=2), federation, fs.models.linear(), seed=0, solver=fs.Adam(epochs=5),
            workers=workers, engine=engines.find(engine),
        )  # fmt: skip

    return in_turns("synthetic", made("local"), made("ray"), rounds)


def show(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Ray against this process, medians of rounds in turns")
    heads = (
        "what",
        "clients",
        "local s",
        "Ray s",
        "ratio",
        "server s",
        "down kB",
        "up kB",
        "points MB",
        "centers apart",
    )
    for head in heads:
        table.add_column(head, justify="left" if head == "what" else "right")
    for r in rows:
        table.add_row(
            r["what"], f"{r['clients']:,}", f"{r['local_seconds']:.3f}", f"{r['ray_seconds']:.3f}", f"{r['ratio']:.2f}",
            f"{r['server_seconds']:.3f}", f"{r['down'] / 1e3:.1f}", f"{r['up'] / 1e3:.1f}",
            f"{r['points_bytes'] / 1e6:.1f}", f"{r['centers_apart']:.0e}",
        )  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--presets", default="synthetic-10-90,digits-2")
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    rows = [preset(name, told.rounds, told.workers) for name in told.presets.split(",") if name]
    rows += [synthetic(int(size), told.rounds, told.workers) for size in told.sizes.split(",") if size]
    Console(width=160).print(show(rows))
    if told.json:
        told.json.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
