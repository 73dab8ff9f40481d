"""What clients that fail or lie do to centers, as tables in Markdown.

    python -m benchmarks.reliability [attacks|failures] [--seeds 3] [--jobs 2] [--json FILE]

Attacks: each attack by a tenth, a fifth and three tenths of the clients, against each rule, on synthetic data 10:90.
Failures: each method with clients that fail to answer, as a ratio to the same run without. Errors are those of the best
center, mean over sources, divided by that of the honest run with the plain mean of the same seed; tables hold means
over seeds. With --json every case is saved when it is done, and those that are saved already are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fedsoft as fs
from fedsoft import plugins
from fedsoft.safety import dropouts
from fedsoft.seeds import generator

RULES: dict[str, dict[str, Any] | None] = {
    "mean": None, "guard": None, "median": {}, "trimmed": {"share": 0.35}, "krum": {"share": 0.35, "multi": False},
    "multi-krum": {"share": 0.35}, "clip": {},
}  # fmt: skip
GUARD = 5.0  # of the column `guard`: the plain mean of those that are accepted
ATTACKS: dict[str, dict[str, Any]] = {
    "sign_flip": {"scale": 3.0}, "scaled": {"factor": 10.0}, "gaussian": {"factor": 10.0}, "label_flip": {},
    "lie": {"scale": 3.0},
}  # fmt: skip
SHARES = (0.1, 0.2, 0.3)
FAILURES = {
    "drop-0.1": "10 %", "drop-0.3": "30 %", "drop-0.5": "50 %", "slow": "a third late, 8 of 10 times",
    "never": "a tenth never", "late": "half join in round 10", "leave": "a third leaves in round 15",
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "fedsoft": {"S": 2, "K": 60}, "ifca": {"S": 2}, "fedem": {"S": 2}, "fedroute": {"S": 2}
}  # fmt: skip
ATTACKED = ("fedsoft", "ifca")

Case = tuple[str, int, str, str | None, float, str]
"""Method, seed, rule, attack, share of malicious, and how clients fail."""


def schedule(kind: str, names: list[str], seed: int) -> dropouts.Dropouts | float:
    """Who does not answer."""
    order = sorted(names, key=lambda name: generator(seed, "failure", name).random())
    if kind.startswith("drop-"):
        return float(kind.removeprefix("drop-"))
    if kind == "slow":
        return dropouts.stragglers(1 / 3, late=0.8, seed=seed)
    if kind == "never":
        return dropouts.never(order[: len(order) // 10])
    if kind == "late":
        return dropouts.spans(dict.fromkeys(order[: len(order) // 2], (10, None)))
    if kind == "leave":
        return dropouts.spans(dict.fromkeys(order[: len(order) // 3], (0, 15)))
    return 0.0


def error(case: Case) -> float:
    """The error of the best centers after 30 rounds; infinite where training diverged."""
    method, seed, rule, attack, share, failure = case
    fed = fs.datasets.synthetic(partition="10:90", seed=seed)
    made = RULES[rule]
    conditions = fs.Conditions(
        dropout=schedule(failure, fed.names, seed), guard=GUARD if rule == "guard" else 0.0,
        aggregator=None if made is None else plugins.build("aggregators", rule.removeprefix("multi-"), made),
        attack=None if attack is None else plugins.build("attacks", attack, ATTACKS[attack] | {"share": share}),
    )  # fmt: skip
    try:
        run = fs.fit(
            plugins.build("algorithms", method, METHODS[method]), fed, fs.models.linear(), rounds=30, seed=seed,
            solver=fs.Adam(lr=5e-3), conditions=conditions, options=fs.FitOptions(score_every=30, workers=1),
        )  # fmt: skip
    except fs.DivergedError:
        return math.inf
    return statistics.mean(run.history[-1].best)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(values: Sequence[float]) -> str:
    """The mean of ratios."""
    mean = statistics.mean(values)
    return f"{mean:.2f}" if mean < 100 else f"{mean:.1e}"


def cases_of(what: str | None, seeds: Iterable[int]) -> list[Case]:
    """All cases, those of the first seed first."""
    cases: list[Case] = []
    for seed in seeds:
        cases += [(method, seed, "mean", None, 0.0, "") for method in METHODS]
        if what != "attacks":
            cases += [(method, seed, "mean", None, 0.0, failure) for method in METHODS for failure in FAILURES]
        if what != "failures":
            for method in ATTACKED:
                cases += [(method, seed, rule, None, 0.0, "") for rule in RULES]
                cases += [
                    (method, seed, rule, attack, share, "") for attack in ATTACKS for share in SHARES for rule in RULES
                ]
    return list(dict.fromkeys(cases))


def saved(path: Path | None) -> dict[Case, float]:
    """What a run before this one has found, one case in each line; an unfinished line is left out."""
    found: dict[Case, float] = {}
    if path is not None and path.exists():
        for line in path.read_text("utf-8").splitlines():
            try:
                *case, value = json.loads(line)
            except ValueError:
                continue
            found[tuple(case)] = value
    return found


def results(cases: Sequence[Case], jobs: int, path: Path | None) -> Iterator[tuple[Case, float]]:
    """Every case with its error, in order; saved and counted on the way."""
    known = saved(path)
    todo = [case for case in cases if case not in known]
    yield from ((case, known[case]) for case in cases if case in known)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done, (case, value) in enumerate(zip(todo, pool.map(error, todo), strict=True), 1):
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([*case, value]) + "\n")
            if done % 10 == 0 or done == len(todo):
                print(f"{done} of {len(todo)}", file=sys.stderr, flush=True)
            yield case, value


def main() -> None:
    """Run all cases, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("attacks", "failures"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = range(options.seeds)
    found = dict(results(cases_of(options.what, seeds), options.jobs, options.json))

    def ratio(method: str, rule: str, attack: str | None, share: float, failure: str = "") -> str:
        honest = [found[method, seed, "mean", None, 0.0, ""] for seed in seeds]
        now = [found[method, seed, rule, attack, share, failure] for seed in seeds]
        return number([a / b for a, b in zip(now, honest, strict=True)])

    if options.what != "failures":
        for method in ATTACKED:
            rows = [["nobody lies", "", *(ratio(method, rule, None, 0.0) for rule in RULES)]]
            rows += [
                [attack, f"{share:.0%}", *(ratio(method, rule, attack, share) for rule in RULES)]
                for attack in ATTACKS for share in SHARES
            ]  # fmt: skip
            print(f"\n{method}: error of centers, as a multiple of the honest run with the mean\n")
            print(table(["attack", "malicious", *RULES], rows))
    if options.what != "attacks":
        rows = [[method, *(ratio(method, "mean", None, 0.0, failure) for failure in FAILURES)] for method in METHODS]
        print("\nerror of centers when clients do not answer, as a multiple of the run in which all do\n")
        print(table(["method", *FAILURES.values()], rows))


if __name__ == "__main__":
    main()
