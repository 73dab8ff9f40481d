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

import numpy as np

from fedsoft.evaluation.paired import Difference, mean_of, paired
from fedsoft.runs import spec
from fedsoft.runs.run_options import RunOptions, federation_of
from fedsoft.studies.recommend.candidates import BY_KEY
from fedsoft.studies.recommend.measure import Trainer
from fedsoft.studies.recommend.measured import TEST, Journal, Measured, Task
from fedsoft.studies.recommend.split import Split

DATA = ("electricity", "train", "swissmetro")
METRICS = {"accuracy": True, "log_loss": False}  # and whether higher is better
OURS = ("fedprior-1", "fedprior", "fedlevels")
ROUNDS, OUR_ROUNDS = 60, 40  # the presets' for baselines; ours need fewer
Settings = dict[str, Any]


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
class Federation:
    """One split of one set of people, with what was measured on it."""

    data: str
    split: Split
    trainer: Trainer
    journal: Journal

    @staticmethod
    def of(data: str, seed: int, save: Path) -> Federation:
        base = spec.read(data).with_seed(seed)
        split = Split.of(federation_of(base), seed)
        trainer = Trainer.of(base, split.final, RunOptions(), None)
        return Federation(data, split, trainer, Journal(save / data))

    def measured(self, key: str, part: str, settings: Settings) -> Measured:
        """Return what was measured before, or measure it now."""
        rounds = OUR_ROUNDS if key in OURS else ROUNDS
        task = Task(candidate=key, seed=self.split.seed, part=part, settings=settings, rounds=rounds)
        found = self.journal.read(task, "accuracy")
        if found is None:
            data = self.split.final if part == TEST else self.split.tuning(int(part))
            found = self.trainer.measure(BY_KEY[key], settings, data, rounds)
            self.journal.write(task, found)
            print(f"{self.data} {self.split.seed} {part} {key} {settings}: {found.seconds:.1f} s", flush=True)
        return found

    def chosen(self, key: str, metric: str) -> Settings:
        """Return the settings that are best on tuning points."""
        sign = 1 if METRICS[metric] else -1

        def score(settings: Settings) -> float:
            mean = self.measured(key, "0", settings).mean(metric)
            return sign * mean if mean == mean else -np.inf

        return max(GRIDS[key], key=score)

    def measure(self, keys: Sequence[str]) -> None:
        """Measure everything that is not saved."""
        for key in keys:
            for metric in METRICS:
                self.measured(key, TEST, self.chosen(key, metric))


@dataclass(frozen=True)
class Column:
    """What one candidate reaches by one metric that it was tuned by, `[splits, clients]`, and the settings chosen."""

    values: np.ndarray
    settings: tuple[Settings, ...]

    @property
    def mean(self) -> float:
        return mean_of(self.values.ravel())


def columns(data: str, seeds: Sequence[int], keys: Sequence[str], metric: str, save: Path) -> dict[str, Column]:
    """Return the candidates that are measured on all splits; a column of the table is a client."""
    found = [Federation.of(data, seed, save) for seed in seeds]
    place = {name: k for k, name in enumerate(sorted({n for one in found for n in one.split.final.names}))}
    made = {}
    for key in keys:
        table, chosen = np.full((len(seeds), len(place)), np.nan), []
        for row, one in enumerate(found):
            chosen.append(one.chosen(key, metric))
            values = one.measured(key, TEST, chosen[-1]).array(metric)
            table[row, [place[name] for name in one.split.final.names]] = values
        made[key] = Column(table, tuple(chosen))
    return made


def saved(data: str, keys: Sequence[str], save: Path) -> list[int]:
    """Return the splits on which all candidates are measured."""
    wanted = {key: 2 if key == "constant" else len(GRIDS[key]) for key in keys}
    found: dict[int, dict[tuple[str, str], int]] = {}
    for path in (save / data).glob("*.json"):
        key, seed, part, _ = path.stem.rsplit("-", 3)
        counts = found.setdefault(int(seed.removeprefix("s")), {})
        counts[key, part] = counts.get((key, part), 0) + 1
    return sorted(
        seed for seed, counts in found.items()
        if all(counts.get((key, "0"), 0) >= count and counts.get((key, TEST), 0) for key, count in wanted.items())
    )  # fmt: skip


def lines(data: str, seeds: Sequence[int], keys: Sequence[str], save: Path) -> Iterator[str]:
    """Yield a table in Markdown: each metric with every candidate tuned by it, and how far ours are ahead."""
    made = {metric: columns(data, seeds, keys, metric, save) for metric in METRICS}
    best = {
        metric: (max if higher else min)(
            (key for key in keys if key not in OURS), key=lambda key: made[metric][key].mean
        )
        for metric, higher in METRICS.items()
    }
    clients = int(np.isfinite(made["accuracy"][keys[0]].values).any(0).sum())
    yield f"{data}: {len(seeds)} splits ({seeds[0]} to {seeds[-1]}), {clients} clients; ahead of {best}"
    yield ""
    yield "| | accuracy, % | ahead by | log-loss | ahead by |"
    yield "| --- | --- | --- | --- | --- |"
    for key in keys:
        cells = [key]
        for metric, higher in METRICS.items():
            factor, digits = (100, 1) if metric == "accuracy" else (1, 3)
            cells.append(f"{factor * made[metric][key].mean:.{digits}f}")
            rival = made[metric][best[metric]]
            gain = paired(made[metric][key].values, rival.values, higher_is_better=higher) if key in OURS else None
            cells.append("" if gain is None else interval(gain, factor, digits))
        yield f"| {' | '.join(cells)} |"


def interval(gain: Difference, factor: float, digits: int) -> str:
    """Return a difference with its 95 % interval."""
    mean, low, high = (f"{factor * value:+.{digits}f}" for value in (gain.mean, gain.low, gain.high))
    return f"{mean} ({low} to {high})"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    options.add_argument("--splits", nargs="+", type=int, default=list(range(10)))
    options.add_argument("--candidates", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    options.add_argument("--save", type=Path, default=Path("runs/people"), help="where results are kept")
    options.add_argument("--table", action="store_true", help="measure nothing, print tables of what is saved")
    given = options.parse_args()
    for seed, data in itertools.product([] if given.table else given.splits, given.data):
        Federation.of(data, seed, given.save).measure(given.candidates)
    for data in given.data:
        seeds = [seed for seed in saved(data, given.candidates, given.save) if seed in given.splits]
        print("\n".join([*lines(data, seeds, given.candidates, given.save), ""]) if seeds else f"{data}: nothing saved")


if __name__ == "__main__":
    main()
