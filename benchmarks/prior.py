"""How much the results of fedprior depend on what is set by hand in it: each constant times and divided by 4.

    python -m benchmarks.prior [--data electricity ...] [--splits 100 101] [--rounds 20] [--save FILE]

Personal models on held-out choices of people: log-likelihood and accuracy, means over clients and splits, as
differences from the values that fedprior comes with. What was computed is saved after each run and not computed again.
`fedsoft data fetch` gets the data.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.table import Table

import fedsoft as fs
from fedsoft.algorithms import fedprior
from fedsoft.clusters import learned_prior
from fedsoft.storage.atomic import write_folder

DATA = ("electricity", "train", "swissmetro")
CENTERS, TIMES = 4, 4


@dataclass(frozen=True)
class Variant:
    """Settings of fedprior, and constants of its modules, that differ from those that it comes with."""

    name: str
    settings: dict[str, int | float] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def set(self) -> Iterator[fs.FedPrior]:
        """Give the constants their values for a while."""
        with contextlib.ExitStack() as stack:
            for name, value in self.constants.items():
                module = fedprior if name in vars(fedprior) else learned_prior
                stack.enter_context(mock.patch.object(module, name, value))
            yield fs.FedPrior(**{"S": CENTERS, **self.settings})


def variants() -> list[Variant]:
    """Return fedprior as it is, and each of its constants larger and smaller."""
    usual = fs.FedPrior()
    found = [Variant("as it is")]
    for name in ("ONE_CLIENT", "HALF_CLIENT", "FIRM"):
        value = getattr(learned_prior, name)
        found += [Variant(f"{name} = {new:g}", constants={name: new}) for new in (value * TIMES, value / TIMES)]
    found += [Variant(f"spread = {v:g}", {"spread": v}) for v in (usual.spread * TIMES, usual.spread / TIMES)]
    found += [Variant(f"tau = {tau}", {"tau": tau}) for tau in (1, 2 * TIMES)]
    return [*found, Variant("FULL = 0 (diagonal)", constants={"FULL": 0})]


def measured(variant: Variant, data: str, split: int, rounds: int) -> dict[str, float]:
    """Return what personal models reach on held-out choices."""
    federation = getattr(fs.datasets, data)(seed=split)
    model = fs.models.conditional_logit(available=data == "swissmetro")
    with variant.set() as algorithm:
        run = fs.fit(algorithm, federation, model, rounds=rounds, solver=fs.Newton(), seed=split)
        found = run.scores(["log_loss", "accuracy"]).metrics
    spreads = {name: one.held_out for name, one in found.items()}
    return {name: spread.mean for name, spread in spreads.items() if spread is not None}


def table(results: dict[str, dict[str, float]], data: list[str], splits: list[int], rounds: int) -> Table:
    """Return a row for each variant that is measured, as differences from the first."""
    shown = Table(title="Held-out log-likelihood and accuracy (%) of personal models")
    for head in ("", *data):
        shown.add_column(head, justify="right" if head else "left")
    first: dict[str, tuple[float, float]] = {}
    for variant in variants():
        cells = []
        for name in data:
            runs = [results.get(key(variant, name, split, rounds)) for split in splits]
            there = [run for run in runs if run is not None]
            if len(there) < len(splits):
                cells.append("")
                continue
            value = (
                -statistics.fmean(run["log_loss"] for run in there),
                statistics.fmean(100 * run["accuracy"] for run in there),
            )
            usual = first.setdefault(name, value)
            apart = value[0] - usual[0], value[1] - usual[1]
            cells.append(f"{value[0]:.3f} / {value[1]:.1f}" if usual is value else f"{apart[0]:+.3f} / {apart[1]:+.1f}")
        shown.add_row(variant.name, *cells)
    return shown


def key(variant: Variant, data: str, split: int, rounds: int) -> str:
    """Return what a result is saved under."""
    return f"{variant.name}, {data}, split {split}, {rounds} rounds"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    options.add_argument("--splits", nargs="+", type=int, default=[100, 101])
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--save", type=Path, default=Path("runs/prior.json"), help="where results are kept")
    chosen = options.parse_args()
    results = json.loads(chosen.save.read_text("utf-8")) if chosen.save.exists() else {}
    for variant in variants():
        for data in chosen.data:
            for split in chosen.splits:
                if (name := key(variant, data, split, chosen.rounds)) not in results:
                    results[name] = measured(variant, data, split, chosen.rounds)
                    write_folder(chosen.save.parent, {chosen.save.name: json.dumps(results, indent=1).encode()})
    Console(width=110).print(table(results, chosen.data, chosen.splits, chosen.rounds))


if __name__ == "__main__":
    main()
