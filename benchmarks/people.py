"""Personal models of people: learned priors against tuned baselines, on splits that nothing else was chosen on.

    python -m benchmarks.people --data electricity --splits 0 1 2      # measure; what is saved is not measured again
    python -m benchmarks.people --table                                # tables from everything that is saved

For each split, settings are chosen among those of GRIDS on a third of the training points, by models that were trained
on the others: once by accuracy, once by log-loss. The chosen ones are trained on all training points and measured on
held-out points, client by client. Ours are compared with the baseline that is best on just these points, which flatters
it. The grids were made from splits 100 and above. `fedsoft data fetch` gets the data.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.nested import METRICS, Column, Nested, Settings, best_of, compared, saved
from fedsoft.runs import spec
from fedsoft.runs.run_options import RunOptions, federation_of
from fedsoft.studies.recommend.candidates import BY_KEY
from fedsoft.studies.recommend.measure import Trainer
from fedsoft.studies.recommend.measured import Journal, Measured
from fedsoft.studies.recommend.split import Split

DATA = ("electricity", "train", "swissmetro")
OURS = ("fedprior-1", "fedprior", "fedlevels")
ROUNDS, OUR_ROUNDS = 60, 40  # the presets' for baselines; ours need fewer


def grid(**values: Sequence[Any]) -> list[Settings]:
    """Return all combinations; `lr` is that of the solver, without one it is `newton`."""
    found = []
    for one in itertools.product(*values.values()):
        given = dict(zip(values, one, strict=True))
        rate = {"solver.lr": given.pop("lr")} if "lr" in given else {"solver.name": "newton"}
        found.append(rate | given)
    return found


GRIDS: Mapping[str, list[Settings]] = {
    "constant": [{"own": 0}, {"own": 1}],
    "fedavg": grid(lr=(0.1, 0.3, 0.9)),
    "local": grid(lr=(0.3, 0.9, 2.7)),
    "finetune": [*grid(lr=(0.3, 0.9), tasks=(1, 2, 4)), *grid(lr=(0.1,), tasks=(4,))],
    "ditto": [*grid(lr=(0.3, 0.9), lam=(0.03, 0.1, 0.3)), *grid(lam=(0.03, 0.1, 0.3))],
    "fedsoft": [*grid(lr=(0.3, 0.9), lam=(0.1,), S=(2, 8)), *grid(lam=(0.03, 0.1, 0.3), S=(2, 8))],
    "ifca": grid(lr=(0.9, 2.7), S=(4, 8)),
    "fedem": grid(lr=(0.9, 2.7), S=(4, 8)),
    "fedroute": grid(lr=(0.1, 0.3), S=(8, 16)),
    "fedprior-1": [{"solver.name": "newton"}],
    "fedprior": grid(S=(2, 4, 8)),
    "fedlevels": grid(S=(2, 4)),
}


@dataclass(frozen=True)
class People(Nested):
    """One split of one set of people."""

    trainer: Trainer

    @staticmethod
    def of(data: str, seed: int, save: Path) -> People:
        base = spec.read(data).with_seed(seed)
        split = Split.of(federation_of(base), seed)
        return People(split, Journal(save / data), Trainer.of(base, split.final, RunOptions(), None))

    def grid(self, key: str) -> Sequence[Settings]:
        return GRIDS[key]

    def rounds(self, key: str) -> int:
        return OUR_ROUNDS if key in OURS else ROUNDS

    def train(self, key: str, settings: Settings, part: str) -> Measured:
        return self.trainer.measure(BY_KEY[key], settings, self.data(part), self.rounds(key))


def lines(data: str, seeds: Sequence[int], keys: Sequence[str], save: Path) -> Iterator[str]:
    """Yield a table in Markdown: each metric with every candidate tuned by it, and how far ours are ahead."""
    found = [People.of(data, seed, save) for seed in seeds]

    def column(key: str, metric: str) -> Column:
        return Column.of([(one.split.final.names, one.tested(key, metric).array(metric)) for one in found])

    made = {metric: {key: column(key, metric) for key in keys} for metric in METRICS}
    best = {metric: best_of(each, [key for key in keys if key not in OURS], metric) for metric, each in made.items()}
    clients = made["accuracy"][keys[0]].values.shape[1]
    yield f"{data}: {len(seeds)} splits ({', '.join(map(str, seeds))}), {clients} clients; ahead of {best}"
    yield ""
    yield "| | accuracy, % | ahead by | log-loss | ahead by |"
    yield "| --- | --- | --- | --- | --- |"
    for key in keys:
        cells = [key]
        for metric in METRICS:
            cells += compared(made[metric][key], made[metric][best[metric]] if key in OURS else None, metric)
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    options.add_argument("--splits", nargs="+", type=int, default=list(range(10)))
    options.add_argument("--candidates", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    options.add_argument("--save", type=Path, default=Path("runs/people"), help="where results are kept")
    options.add_argument("--table", action="store_true", help="measure nothing, print tables of what is saved")
    given = options.parse_args()
    for seed, data in itertools.product([] if given.table else given.splits, given.data):
        one = People.of(data, seed, given.save)
        for key, metric in itertools.product(given.candidates, METRICS):
            one.tested(key, metric)
    wanted = {key: len(GRIDS[key]) for key in given.candidates}
    for data in given.data:
        seeds = [seed for seed in saved(given.save / data, wanted) if seed in given.splits]
        print("\n".join([*lines(data, seeds, given.candidates, given.save), ""]) if seeds else f"{data}: nothing saved")


if __name__ == "__main__":
    main()
