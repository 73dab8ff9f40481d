"""Networks of people: learned priors against tuned baselines on writers, on splits that nothing else was chosen on.

    python -m benchmarks.writers --splits 20 21 22     # measure; what is saved is not measured again
    python -m benchmarks.writers --table               # tables from everything that is saved

In each split 20 of the writers come later, with 30 of their images; of the others' images a quarter is held out.
Settings are chosen among those of GRIDS on a third of the training images, by models that were trained on the others:
once by accuracy, once by log-loss. What was chosen is trained on all training images. Fine-tuning starts from the
center of the rate that FedAvg has chosen, and has a rate of its own; ours have FedAvg's rate and choose nothing.
Ours are compared with the baseline that is best on just these points, which flatters it. No split from 20 on has
served to choose anything. `fedsoft data fetch` says how to get the data.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import fedsoft as fs
from benchmarks.nested import METRICS, Column, Nested, Settings, best_of, compared, saved
from fedsoft.core.contract import Algorithm
from fedsoft.core.federation import Federation
from fedsoft.core.metrics import ACCURACY
from fedsoft.core.model import Builder
from fedsoft.evaluation.paired import mean_of
from fedsoft.evaluation.spread import Spread
from fedsoft.machine.threads import one_thread
from fedsoft.runs.run import Run
from fedsoft.runs.run_options import RunOptions
from fedsoft.studies.recommend.candidates import BY_KEY
from fedsoft.studies.recommend.measure import Judge
from fedsoft.studies.recommend.measured import TEST, Journal, Measured, as_array, as_values
from fedsoft.studies.recommend.newcomers import serve
from fedsoft.studies.recommend.split import Split
from fedsoft.training import FitOptions, Plan, train

LATER, POINTS = 20, 30  # writers that come later, and their images
ROUNDS, K = 40, 20  # the preset's
RATES = (0.02, 0.05, 0.1)
OURS: Mapping[str, Algorithm] = {
    "fedprior-1": fs.FedPrior(S=1, K=K), "fedprior-2": fs.FedPrior(S=2, K=K), "fedlevels-2": fs.FedLevels(S=2, K=K),
}  # fmt: skip
TUNING = ((0.05, 1), (0.05, 2), (0.015, 2), (0.015, 4), (0.005, 4), (0.005, 8), (0.002, 8))  # rates, tasks
GRIDS: Mapping[str, Sequence[Settings]] = {
    "fedavg": [{"lr": lr} for lr in RATES],
    "finetune": [{"own_lr": lr, "tasks": tasks} for lr, tasks in TUNING],  # and FedAvg's lr
    "ditto": [{"lr": 0.05, "lam": 0.1}, {"lr": 0.05, "lam": 1.0}, {"lr": 0.02, "lam": 1.0}],
    "ifca": [{"S": 2}, {"S": 3}],  # and FedAvg's lr
    **{key: [{}] for key in OURS},  # and FedAvg's lr
}
OPTIONS = FitOptions(progress=False, workers=1, score_every=ROUNDS)


@dataclass(frozen=True)
class Writers(Nested):
    """One split of the writers."""

    judge: Judge
    averaged: dict[tuple[str, float], Run] = field(default_factory=dict)  # what fine-tuning starts from

    @staticmethod
    def of(seed: int, save: Path) -> Writers:
        split = Split.of(fs.datasets.writers(size=14, held_out=0.25, seed=seed), seed, newcomers=LATER)
        return Writers(split, Journal(save), Judge.of(network()(split.final.shape), split.final, None, RunOptions()))

    def grid(self, key: str) -> Sequence[Settings]:
        found = GRIDS[key]
        return found if "lr" in found[0] else [{"lr": self.chosen("fedavg", "accuracy")["lr"], **one} for one in found]

    def rounds(self, key: str) -> int:
        return ROUNDS

    def train(self, key: str, settings: Settings, part: str) -> Measured:
        began, data = time.process_time(), self.data(part)
        later = self.split.joining(POINTS) if part == TEST else None
        newcomers: dict[int, dict[str, np.ndarray]] = {}
        if key == "finetune":
            run = self._averaged(settings["lr"], part)
            values = self._tuned(run, settings, data)
            newcomers |= {} if later is None else {POINTS: self._tuned(run, settings, later)}
        else:
            run = self._fit(algorithm(key, settings), settings["lr"], data)
            values = self.judge(run.engine, run.state, data.held_out)
            candidate = BY_KEY[key.partition("-")[0]]
            newcomers |= {} if later is None else {POINTS: serve(run, later, self.judge, candidate)}
        return Measured(
            values={name: as_values(found) for name, found in values.items()}, seconds=time.process_time() - began,
            newcomers={n: {name: as_values(found) for name, found in one.items()} for n, one in newcomers.items()},
        )  # fmt: skip

    def _plan(self, algorithm: Algorithm, lr: float) -> Plan:
        solver = fs.SGD(lr=lr, momentum=0.9, batch=20, epochs=2)
        return Plan.of(algorithm, network(), rounds=ROUNDS, solver=solver, seed=self.split.seed, options=OPTIONS)

    def _fit(self, algorithm: Algorithm, lr: float, data: Federation) -> Run:
        plan = self._plan(algorithm, lr)
        return train(plan, data, partial(Run, plan=plan))

    def _averaged(self, lr: float, part: str) -> Run:
        if (part, lr) not in self.averaged:
            self.averaged[part, lr] = self._fit(fs.FedAvg(K=K), lr, self.data(part))
        return self.averaged[part, lr]

    def _tuned(self, start: Run, settings: Settings, data: Federation) -> dict[str, np.ndarray]:
        """Have clients go on from FedAvg's center with a learning rate of their own, and measure."""
        plan = self._plan(fs.FineTune(tasks=settings["tasks"]), settings["own_lr"])
        with closing(plan.engine(data)) as engine, torch.no_grad(), one_thread():
            state = engine.start().update(centers=start.state.centers)
            engine.begin_round(state, 0, last=True)
            engine("tune", engine.everyone, centers=state.centers)
            return self.judge(engine, state, data.held_out)


def network() -> Builder:
    return fs.models.digits_cnn(channels=(16, 32), hidden=128)


def algorithm(key: str, settings: Settings) -> Algorithm:
    """Return a candidate with its settings, but for those of the solver."""
    if key in OURS:
        return OURS[key]
    own = {name: value for name, value in settings.items() if name != "lr"}
    return {"fedavg": fs.FedAvg, "ditto": fs.Ditto, "ifca": fs.IFCA}[key](K=K, **own)


def lines(found: Sequence[Writers], keys: Sequence[str], later: bool) -> Iterator[str]:
    """Yield a table in Markdown: each metric with every candidate tuned by it, and how far ours are ahead."""
    tested = {(key, metric): [one.tested(key, metric) for one in found] for key in keys for metric in METRICS}

    def column(key: str, metric: str) -> Column:
        if later:
            joined = [one.split.joining(POINTS) for one in found]
            names = [one.names for one in joined if one is not None]
            values = [as_array(one.newcomers[POINTS][metric]) for one in tested[key, metric]]
        else:
            names = [one.split.final.names for one in found]
            values = [one.array(metric) for one in tested[key, metric]]
        return Column.of(list(zip(names, values, strict=True)))

    made = {metric: {key: column(key, metric) for key in keys} for metric in METRICS}
    best = {metric: best_of(each, [key for key in keys if key not in OURS], metric) for metric, each in made.items()}
    who = f"those who come later, with {POINTS} points" if later else "members"
    yield f"{who}; {len(found)} splits ({', '.join(str(one.split.seed) for one in found)}); ahead of {best}"
    yield ""
    yield "| | accuracy, % | ahead by | worst decile | log-loss | ahead by |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for key in keys:
        cells = [key]
        for metric in METRICS:
            own = made[metric][key]
            cells += compared(own, made[metric][best[metric]] if key in OURS else None, metric)
            cells += [f"{100 * worst(own.values):.1f}"] if metric == "accuracy" else []
        yield f"| {' | '.join(cells)} |"


def worst(values: np.ndarray) -> float:
    """Return the mean over splits of the accuracy of the tenth of clients that fare worst."""
    found = (Spread.of(torch.from_numpy(row), ACCURACY) for row in values)
    return mean_of([one.worst_decile for one in found if one is not None])


def choices(found: Sequence[Writers], keys: Sequence[str]) -> Iterator[str]:
    """Yield what was chosen for each candidate by each metric, split by split."""
    for key, metric in itertools.product(keys, METRICS):
        yield f"{key} by {metric}: {[one.chosen(key, metric) for one in found]}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--splits", nargs="+", type=int, default=list(range(20, 25)))
    options.add_argument("--candidates", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    options.add_argument("--save", type=Path, default=Path("runs/writers"), help="where results are kept")
    options.add_argument("--table", action="store_true", help="measure nothing, print tables of what is saved")
    given = options.parse_args()
    for seed in [] if given.table else given.splits:
        one = Writers.of(seed, given.save)
        for key, metric in itertools.product(given.candidates, METRICS):
            one.tested(key, metric)
    seeds = saved(given.save, {key: len(GRIDS[key]) for key in given.candidates})
    found = [Writers.of(seed, given.save) for seed in seeds if seed in given.splits]
    if not found:
        print("nothing saved")
        return
    for later in (False, True):
        print("\n".join([*lines(found, given.candidates, later), ""]))
    print("\n".join(choices(found, given.candidates)))


if __name__ == "__main__":
    main()
