"""What an ask costs on four Flower nodes, and how it grows with clients.

    python -m benchmarks.federation [--clients 100,1000] [--K 10]

For each number of clients one short run of FedSoft on loopback: seconds and bytes per ask, from the logs of messages
and of rounds.
Run it when the machine has nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from fedsoft.flower.local_cluster.cluster import LocalCluster
from fedsoft.flower.submit import follow
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import read

NODES, ROUNDS = 4, 6


def measure(folder: Path, clients: int, K: str) -> dict[str, float]:
    """One run."""
    federation = LocalCluster(folder / "federation")
    try:
        federation.up(NODES)
        changes = [f"rounds={ROUNDS}", f"K={K}", f"dataset.clients={clients}"]
        spec = read("synthetic-10-90", changes)
        run, _ = follow(federation, spec, folder / "run", RunOptions())
    finally:
        federation.down()
    wire = [json.loads(line) for line in (run.path / "wire.jsonl").read_text("utf-8").splitlines()]
    jobs = [entry for entry in wire if entry["kind"] == "job"]
    asks = len({(entry["round"], entry["ask"]) for entry in jobs})
    total = {way: sum(e["head"] + e["body"] for e in jobs if e["way"] == way) for way in ("down", "up")}
    records = run.records()
    return {
        "seconds per ask": sum(record.seconds for record in records) / asks,
        "kB down per ask": total["down"] / asks / 1e3,
        "kB up per ask": total["up"] / asks / 1e3,
        "dropped": sum(record.dropped or 0 for record in records),
    }


def main() -> None:
    """Measure, and print one line for each number of clients."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", default="100", help="how many, separated by commas")
    parser.add_argument("--K", default="10", help="clients drawn for each center, or all")
    told = parser.parse_args()
    for clients in (int(size) for size in told.clients.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), clients, told.K)
        text = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        print(f"{clients} clients: {text}", flush=True)


if __name__ == "__main__":
    main()
