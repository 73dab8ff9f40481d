"""What privacy costs: the error of centers with noise on counts or on centers, as tables in Markdown.

    python -m benchmarks.privacy [counts|centers] [--seeds 3] [--json FILE]

Epsilons are those of the whole run, delta is 1e-5; with noise of almost 0, updates are still clipped. On synthetic data
errors are those of the best centers divided by those of the same run without noise; on digits-2 accuracies are shown.
Tables hold means and deviations over seeds. With --json every run is saved when it is done, and those that are saved
already are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedsoft as fs
from benchmarks.reliability import table
from fedsoft.safety.privacy import Privacy, noise_for

DELTA = 1e-5
EPSILONS = (math.inf, 1e6, 100.0, 30.0, 10.0, 3.0, 1.0)  # the first: nothing done; the second: as good as no noise
ROUNDS, TAU = 30, 2

Case = tuple[str, str, float, int]
"""Mechanism, data, epsilon of the run (infinite for none), seed."""


def outcome(case: Case) -> float:
    """The score of the best centers, mean over sources."""
    mechanism, data, epsilon, seed = case
    if data == "synthetic":
        federation = fs.datasets.synthetic(partition="10:90", clients=CLIENTS[mechanism], seed=seed)
        model: Any = fs.models.linear()
        local, clip = fs.Adam(lr=5e-3), 1.0
    else:
        federation = fs.datasets.digits(clients=CLIENTS[mechanism], points=(40, 60), seed=seed)
        model, local, clip = fs.models.linear(), fs.Adam(lr=5e-3), 0.5
    clients = len(federation)
    privacy = None
    if mechanism == "counts" and epsilon < math.inf:
        privacy = Privacy(counts=noise_for(epsilon, DELTA, math.ceil(ROUNDS / TAU)), delta=DELTA)
    elif epsilon < math.inf:
        privacy = Privacy(clip=clip, noise=noise_for(epsilon, DELTA, ROUNDS), delta=DELTA)
    run = fs.fit(
        fs.FedSoft(S=2, K=clients // 2, tau=TAU), federation, model, rounds=ROUNDS, seed=seed, solver=local,
        conditions=fs.Conditions(privacy=privacy), options=fs.FitOptions(score_every=ROUNDS, workers=1),
    )  # fmt: skip
    if privacy is not None:
        told = run.history[-1].privacy
        spent = None if told is None else told.counts_epsilon if mechanism == "counts" else told.epsilon
        assert spent is not None
        assert abs(spent / epsilon - 1) < 1e-3, (spent, epsilon)
    return statistics.mean(run.history[-1].best)


CLIENTS = {"counts": 100, "centers": 400}


def saved(path: Path | None) -> dict[Case, float]:
    """What a run before this one has found."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.endswith("]")]
    return {(mechanism, data, epsilon, seed): value for mechanism, data, epsilon, seed, value in lines}


def spread(values: Sequence[float], percent: bool) -> str:
    """Mean and deviation."""
    scale, digits = (100, 1) if percent else (1, 2)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{scale * statistics.mean(values):.{digits}f} ± {scale * deviation:.{digits}f}{' %' * percent}"


def main() -> None:
    """Run all cases, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("counts", "centers"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mechanisms = [options.what] if options.what else ["counts", "centers"]
    cases = [
        (mechanism, data, epsilon, seed)
        for seed in range(options.seeds) for mechanism in mechanisms for data in ("synthetic", "digits-2")
        for epsilon in EPSILONS
    ]  # fmt: skip
    found = saved(options.json)
    for done, case in enumerate(cases, 1):
        if case not in found:
            found[case] = outcome(case)
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([*case, found[case]]) + "\n")
        print(f"{done} of {len(cases)}", file=sys.stderr, flush=True)
    for mechanism in mechanisms:
        rows = []
        for data in ("synthetic", "digits-2"):
            cells = []
            for epsilon in EPSILONS:
                values = [found[mechanism, data, epsilon, seed] for seed in range(options.seeds)]
                if data == "synthetic":
                    values = [v / found[mechanism, data, math.inf, seed] for seed, v in enumerate(values)]
                cells.append(spread(values, percent=data != "synthetic"))
            rows.append([data, *cells])
        heads = ["as it is", "noise of almost 0", *(f"ε = {epsilon:g}" for epsilon in EPSILONS[2:])]
        print(f"\nnoise on {mechanism}, {CLIENTS[mechanism]} clients, {ROUNDS} rounds\n")
        print(table(["data", *heads], rows))


if __name__ == "__main__":
    main()
