"""What can be read from what clients send, with and without each protection, as tables in Markdown.

    python -m benchmarks.attacks [inversion|aimed|sums|membership|centers] [--seeds 5]

Inversion: points of a client that a server reads with trap weights, asked of a node as it stands at an owner's. Aimed:
one point through noise. Sums: points read from the sums of FedRoute. Membership: whether a point was trained on, told
from the models that clients send, and centers: from those that are published. Means and deviations over seeds; delta is
1e-5.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks import inversion, membership, sums
from benchmarks.reliability import table

MANY = 100  # questions about one point
EPSILONS = (None, 1e4, 1000.0, 100.0, 10.0)


def spread(values: Sequence[float], digits: int, percent: bool = False) -> str:
    """Mean and deviation."""
    scale = 100 if percent else 1
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{scale * statistics.mean(values):.{digits}f} ± {scale * deviation:.{digits}f}{' %' * percent}"


def say(what: str) -> None:
    """On the way."""
    print(what, file=sys.stderr, flush=True)


def of_inversion(seeds: range) -> str:
    """Points read of 40."""
    rows = []
    for name, made in inversion.PROTECTIONS.items():
        say(name)
        counts = [
            [inversion.recovered(inversion.invert(made(), data, seed, questions)) for seed in seeds]
            for data in ("normal", "digits") for questions in (1, 10)
        ]  # fmt: skip
        rows.append([name, *(spread(values, 1) for values in counts)])
    heads = ["protection", "20 normal inputs, 1 trap", "10 traps", "64 pixels of digits, 1 trap", "10 traps"]
    return f"points read, of {inversion.POINTS}\n\n{table(heads, rows)}"


def of_aimed(seeds: range) -> str:
    """How far off the point is."""
    rows = []
    for epsilon in EPSILONS:
        say(f"aimed, epsilon = {epsilon}")
        found = [inversion.aim(epsilon, seed, MANY) for seed in seeds]
        cells = [spread([float(e[k]) for e in found], 2) for k in (0, -1)]
        if epsilon is None:
            rows.append(["none", *cells, "", ""])
            continue
        few = [inversion.aim(epsilon, seed, MANY, budget=1.001 * epsilon) for seed in seeds]
        cells += [spread([float(e[-1]) for e in few], 2), spread([float(len(e)) for e in few], 0)]
        rows.append([f"noise on models, ε = {epsilon:g}", *cells])
    heads = ["protection", "1 question", f"{MANY} questions", "with a budget of that ε", "questions answered"]
    return f"one point of 20 normal inputs: 0 is the point, 1 is nothing\n\n{table(heads, rows)}"


def of_sums(seeds: range) -> str:
    """Whether a point is read from sums."""
    rows = []
    for name, (kind, policy) in sums.ATTACKS.items():
        say(name)
        found = [sums.attack(kind, seed, policy) for seed in seeds]
        told = [result for result, _ in found if isinstance(result, float)]
        why = ", ".join(sorted({str(result) for result, _ in found if isinstance(result, str)}))
        rows.append([name, f"{max(told):.0e}" if told else why, spread([float(count) for _, count in found], 0)])
    return f"one point from sums of x x'\n\n{table(['attack and policy', 'largest relative error', 'questions'], rows)}"


def of_membership(seeds: range) -> str:
    """Members told from others by the server."""
    rows = []
    for name, (algorithm, made) in membership.SENT.items():
        say(name)
        found = [membership.passive(algorithm, made(), seed) for seed in seeds]
        cells = [
            spread([told.auc for told, _ in found], 2), spread([told.found for told, _ in found], 0, True)
        ]  # fmt: skip
        cheats = [membership.active(made(), seed) for seed in seeds] if "FedAvg" in name else []
        cells += (
            [spread([t.auc for t in cheats], 2), spread([t.found for t in cheats], 0, True)] if cheats else ["", ""]
        )
        rows.append([name, *cells, spread([right for _, right in found], 1, True)])
    heads = ["protection", "server looks: AUC", "found at 1 %", "server cheats: AUC", "found at 1 %", "accuracy"]
    return f"members told from the model of a client of {membership.POINTS} points\n\n{table(heads, rows)}"


def of_centers(seeds: range) -> str:
    """Members told from others by those who see the center."""
    rows = []
    for name, made in membership.PUBLISHED.items():
        say(f"centers: {name}")
        cells = []
        for clients in (membership.CLIENTS, membership.FEW):
            found = [membership.center(made(), seed, clients) for seed in seeds]
            cells += [
                spread([told.auc for told, _ in found], 2), spread([told.found for told, _ in found], 1, True),
                spread([right for _, right in found], 1, True),
            ]  # fmt: skip
        rows.append([name, *cells])
    more = ["AUC", "found at 1 %", "accuracy"]
    heads = ["protection", f"{membership.CLIENTS} clients: {more[0]}", *more[1:], f"{membership.FEW} clients: AUC"]
    return f"members told from the center\n\n{table([*heads, *more[1:]], rows)}"


PARTS: dict[str, Callable[[range], str]] = {
    "inversion": of_inversion, "aimed": of_aimed, "sums": of_sums, "membership": of_membership, "centers": of_centers,
}  # fmt: skip


def main() -> None:
    """Attack, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=PARTS)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    begun = time.perf_counter()
    for name in [options.what] if options.what else PARTS:
        print(f"\n{name}: {PARTS[name](range(options.seeds))}", flush=True)
    say(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
