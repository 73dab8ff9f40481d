"""Sums over real nodes: SuperNodes of their own processes, TLS and node keys on, all that crosses kept by a proxy.

    python -m benchmarks.secure_nodes --nodes 16 [--rounds 3]

Two clients at each node. Prints the largest difference from the same run in one process without masks, as a share of
the largest number in the centers, how many of the clients' last models and mixtures were found in what crossed, and for
each kind of message the time and the bytes of a node. Needs the tests' proxy.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from tests.flower.places import alone, events, spec, state
from tests.flower.processes import Door, Submitted

from benchmarks.reliability import table
from fedsoft.flower.local_cluster.cluster import LocalCluster
from fedsoft.flower.node.client_memory import ClientMemory

PATIENCE = 1800.0  # seconds for an answer: all nodes share one machine


def kept(cluster: LocalCluster, nodes: int, path: Path) -> list[bytes]:
    """The last models and mixtures of all clients, as their nodes keep them."""
    experiment = json.loads((path / "federation.json").read_text("utf-8"))["experiment"]
    found = []
    for k in range(nodes):
        last = ClientMemory(cluster.node(k) / "memory" / "runs" / experiment).last
        assert last is not None
        found += [row.numpy().tobytes() for name in ("w", "u") for row in last.tensors()[name]]
    return found


def measure(folder: Path, nodes: int, rounds: int) -> None:
    data = {"name": "synthetic", "clients": 2 * nodes, "points": [20, 40], "dimension": 3, "test_points": 20}
    what = spec("fedsoft", rounds=rounds, dataset=data, partition="10:90", secure=True)
    cluster = LocalCluster(folder / "f")
    cluster.create(nodes)
    (cluster.folder / "terms.toml").write_text(f"timeout = {PATIENCE}\nassembly = {PATIENCE}\n", "utf-8")
    door = Door(cluster)
    try:
        began = time.perf_counter()
        cluster.up(nodes, through=door.address)
        print(f"{nodes} nodes are up after {time.perf_counter() - began:.0f} s", flush=True)
        began = time.perf_counter()
        run = Submitted(cluster, what, folder / "run")
        far = run.finished()
        print(f"{rounds} rounds in {time.perf_counter() - began:.0f} s", flush=True)
        passed = b"".join(into + out for _, into, out in door.passed)
        rows = kept(cluster, nodes, run.path)
        print(f"{sum(row in passed for row in rows)} of {len(rows)} models and mixtures in {len(passed):,} bytes")
    finally:
        cluster.down()
        door.close()
    plain = alone(spec("fedsoft", rounds=rounds, dataset=data, partition="10:90"), folder / "plain")
    a, b = state(far)["centers"], state(plain)["centers"]
    same = state(alone(what, folder / "same"))["centers"]
    print(f"largest difference {float((a - b).abs().max() / b.abs().max()):.1e}, from the simulation "
          f"{float((a - same).abs().max() / b.abs().max()):.1e}")  # fmt: skip
    print(f"left a sum: {len(events(far, 'left a sum'))}, failed: {len(events(far, 'failed sum'))}")
    lines = [e for e in run.lines("wire.jsonl") if e["kind"] in ("job", "sum")]
    rows_of: dict[str, list[dict[str, float]]] = {}
    for entry in lines:
        rows_of.setdefault(f"{entry['way']} {entry.get('stage', entry.get('job'))}", []).append(entry)
    print(table(["message", "number", "bytes, mean", "largest"], [
        [name, str(len(found)), f"{sum(e['head'] + e['body'] for e in found) / len(found):,.0f}",
         f"{max(e['head'] + e['body'] for e in found):,}"] for name, found in rows_of.items()
    ]))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.nodes, options.rounds)


if __name__ == "__main__":
    main()
