"""What clients that fail or lie do to centers, as tables in Markdown.

    python -m benchmarks.reliability [attacks|dropouts] [--seeds 3] [--jobs 2] [--json FILE]

Attacks: each attack by a tenth, a fifth and three tenths of the clients, against each rule, on synthetic data 10:90.
Dropouts: each method with clients that fail to answer, as a ratio to the same run without. Errors are those of the best
center, mean over sources, divided by that of the honest run with the plain mean of the same seed; tables hold means
over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fedsoft as fs
from fedsoft import plugins

RULES: dict[str, dict[str, Any] | None] = {
    "mean": None, "median": {}, "trimmed": {"share": 0.35}, "krum": {"share": 0.35, "multi": False},
    "multi-krum": {"share": 0.35}, "clip": {},
}  # fmt: skip
ATTACKS: dict[str, dict[str, Any]] = {
    "sign_flip": {"scale": 3.0}, "scaled": {"factor": 10.0}, "gaussian": {"factor": 10.0}, "label_flip": {},
    "lie": {"scale": 3.0},
}  # fmt: skip
SHARES = (0.1, 0.2, 0.3)
DROPS = (0.1, 0.3, 0.5)
METHODS: dict[str, dict[str, Any]] = {
    "fedsoft": {"S": 2, "K": 60}, "ifca": {"S": 2}, "fedem": {"S": 2}, "fedroute": {"S": 2}
}  # fmt: skip
ATTACKED = ("fedsoft", "ifca")

Case = tuple[str, int, str, str | None, float, float]
"""Method, seed, rule, attack, share of liars, share of clients that do not answer."""


def error(case: Case) -> float:
    """The error of the best centers after 30 rounds; infinite where training diverged."""
    method, seed, rule, attack, share, drop = case
    fed = fs.datasets.synthetic(partition="10:90", seed=seed)
    made = RULES[rule]
    try:
        run = fs.fit(
            plugins.build("algorithms", method, METHODS[method]), fed, fs.models.linear(),
            rounds=30, seed=seed, local=fs.Adam(lr=5e-3), score_every=30, dropout=drop, workers=1,
            robust=None if made is None else plugins.build("rules", rule.removeprefix("multi-"), made),
            attack=None if attack is None else plugins.build("attacks", attack, ATTACKS[attack] | {"share": share}),
        )  # fmt: skip
    except fs.DivergedError:
        return float("inf")
    return statistics.mean(run.history[-1]["best"])


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(values: Sequence[float]) -> str:
    """The mean of ratios."""
    mean = statistics.mean(values)
    return f"{mean:.2f}" if mean < 100 else f"{mean:.1e}"


def main() -> None:
    """Run all cases, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("attacks", "dropouts"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = range(options.seeds)
    cases: list[Case] = [(method, seed, "mean", None, 0.0, 0.0) for method in METHODS for seed in seeds]
    if options.what != "dropouts":
        attacked = [(attack, share) for attack in ATTACKS for share in SHARES]
        for method in ATTACKED:
            cases += [(method, seed, rule, None, 0.0, 0.0) for rule in RULES for seed in seeds]
            cases += [(method, seed, rule, *attack, 0.0) for rule in RULES for attack in attacked for seed in seeds]
    if options.what != "attacks":
        cases += [(method, seed, "mean", None, 0.0, drop) for method in METHODS for drop in DROPS for seed in seeds]
    cases = list(dict.fromkeys(cases))
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        found = dict(zip(cases, pool.map(error, cases, chunksize=4), strict=True))

    def ratio(method: str, rule: str, attack: str | None, share: float, drop: float = 0.0) -> str:
        honest = [found[method, seed, "mean", None, 0.0, 0.0] for seed in seeds]
        now = [found[method, seed, rule, attack, share, drop] for seed in seeds]
        return number([a / b for a, b in zip(now, honest, strict=True)])

    if options.what != "dropouts":
        for method in ATTACKED:
            rows = [["nobody lies", "", *(ratio(method, rule, None, 0.0) for rule in RULES)]]
            rows += [
                [attack, f"{share:.0%}", *(ratio(method, rule, attack, share) for rule in RULES)]
                for attack in ATTACKS for share in SHARES
            ]  # fmt: skip
            print(f"\n{method}: error of centers, as a multiple of the honest run with the mean\n")
            print(table(["attack", "liars", *RULES], rows))
    if options.what != "attacks":
        rows = [[method, *(ratio(method, "mean", None, 0.0, drop) for drop in DROPS)] for method in METHODS]
        print("\nerror of centers when clients do not answer, as a multiple of the run in which all do\n")
        print(table(["method", *(f"{drop:.0%}" for drop in DROPS)], rows))
    if options.json:
        options.json.write_text(json.dumps([[*case, value] for case, value in found.items()]) + "\n", "utf-8")


if __name__ == "__main__":
    main()
