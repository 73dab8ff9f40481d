"""compare, tune and choose in Python, for data and models made there as well as for presets and TOML files."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from torch import nn

from fedsoft import plugins
from fedsoft.core.federation import Federation
from fedsoft.core.local_solve import Solver
from fedsoft.core.model import Builder, Model
from fedsoft.errors import InputError
from fedsoft.reports.bar import Bar
from fedsoft.reports.choice import ChoiceReport
from fedsoft.reports.comparison import ComparisonReport
from fedsoft.reports.trials import TuningReport
from fedsoft.runs import spec as specs
from fedsoft.runs.given import Given, named_part, spec_of
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.safety.conditions import Conditions
from fedsoft.solvers.adam import Adam
from fedsoft.studies import center_count, tuning
from fedsoft.studies.compare import Budget
from fedsoft.studies.compare import compare as run_comparison
from fedsoft.studies.methods import Algorithms, Method, read_methods
from fedsoft.studies.process_pool import ProcessPool, Progress
from fedsoft.studies.trials import Grid
from fedsoft.training import FitOptions, Limit, Plan
from fedsoft.training.callbacks import EarlyStopping

LOG = logging.getLogger("fedsoft")
Data = Federation | Callable[[int], Federation] | RunSpec | str | Path
Network = Builder | Model | nn.Module | Callable[[], nn.Module]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StudyOptions(FitOptions):
    """How the runs of a study are carried out, beyond `FitOptions`.

    Arguments:
        folder: where runs are saved; what is saved there is not run again, and a study that was stopped goes on.
            Default: a folder that is gone with the result.
        jobs: runs at the same time, each in a process of its own; 0: one per core. Default: one after the other in this
            process. A script that asks for processes has to stand under `if __name__ == "__main__":`.
        progress: whether to show a bar.
        conditions: what clients may do, and what is done about it, as for `fit`.
    """

    folder: str | Path | None = None
    jobs: int = 1
    progress: bool = True
    conditions: Conditions | None = None


def compare(
    algorithms: Algorithms,
    data: Data,
    model: Network | None = None,
    *,
    rounds: int | Limit | None = None,
    solver: Solver | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    budget: Budget = "rounds",
    options: StudyOptions | None = None,
) -> ComparisonReport:
    """Compare algorithms on the same federations with the same initial weights.

    Arguments:
        algorithms: a list of `FedSoft(S=2)`, of names with settings such as `"ifca(S=3, solver.lr=0.1)"`, or of both.
        data: a `Federation`, a function that makes that of a seed, or a preset or TOML file by name, which has a model.
        model, solver: as for `fit`.
        rounds: communication rounds; default: those of the preset.
        seeds: every method is run with each of them.
        budget: what is the same for all: `rounds`, or the client `work` or `bytes` of the first.
        options: how runs are carried out and where they are saved.
    """
    study = _Study(data, model, rounds, solver, options or StudyOptions())
    methods, seeds = read_methods(algorithms), _listed(seeds)
    base, given = study.base(methods.listed[0], seeds)
    with study.pool("comparing", given) as (pool, scratch):
        return ComparisonReport.of(_done(run_comparison(base, methods, seeds, pool, budget=budget)), scratch)


def tune(
    algorithms: Algorithms,
    data: Data,
    model: Network | None = None,
    *,
    rounds: int | Limit | None = None,
    solver: Solver | None = None,
    seeds: Sequence[int] = tuning.SEEDS,
    grid: Mapping[str, Sequence[float]] | None = None,
    options: StudyOptions | None = None,
) -> TuningReport:
    """Tune every method on held-out client points, under the client work of the first one as it is given.

    Arguments:
        algorithms, data, model, rounds, solver, options: as for `compare`.
        seeds: of the trials; none that a table of results uses.
        grid: values to try: `lr` and `epochs` of the solver, and settings of the algorithms by name. Default: around
            the rate and the epochs of the solver, and what each algorithm declares; widened where the best is at the
            edge.
    """
    study = _Study(data, model, rounds, solver, options or StudyOptions())
    methods, seeds, tried = read_methods(algorithms), _listed(seeds), dict(grid or {})
    base, given = study.base(methods.listed[0], seeds)
    with study.pool("tuning", given) as (pool, scratch):
        epochs = tried.pop("epochs", None)
        wanted = Grid.around(
            base, tried.pop("lr", None), None if epochs is None else [*map(int, epochs)], further=tried
        )
        return TuningReport(_done(tuning.tune(base, methods, seeds, wanted, pool)), scratch)


def choose(
    S: Sequence[int],
    data: Data,
    model: Network | None = None,
    *,
    rounds: int | Limit | None = None,
    solver: Solver | None = None,
    seeds: Sequence[int] = center_count.SEEDS,
    algorithm: str = center_count.ALGORITHM,
    options: StudyOptions | None = None,
) -> ChoiceReport:
    """Recommend a number of centers, or say that there is no cluster structure; see docs/choose.md.

    Arguments:
        S: the numbers of centers to try.
        data, model, rounds, solver, options: as for `compare`; the federation is that of the first seed.
        seeds: of the runs.
        algorithm: one that has S.
    """
    study = _Study(data, model, rounds, solver, options or StudyOptions())
    seeds = _listed(seeds)
    base, given = study.base(read_methods(algorithm).listed[0], seeds)
    with study.pool("choosing", given) as (pool, scratch):
        found = center_count.choose(base, S, pool, algorithm=algorithm, seeds=seeds)
        return ChoiceReport(_done(found), scratch)


@dataclass(frozen=True)
class _Study:
    """What the runs of a study share."""

    data: Data
    model: Network | None
    rounds: int | Limit | None
    solver: Solver | None
    options: StudyOptions

    def base(self, first: Method, seeds: Sequence[int]) -> tuple[RunSpec, Given]:
        """Return the run that all others are variants of, and what no name stands for."""
        data, options = self.data, self.options
        if isinstance(data, str | Path | RunSpec):
            if self.model is not None or options.conditions is not None or options.metrics is not None:
                raise InputError(f"'{data}' has a model, conditions and metrics of its own: change them in its file")
            return self._named(), Given()
        if self.model is None:
            raise InputError("model is missing: give one such as fedsoft.models.linear(), or a torch.nn.Module")
        if self.rounds is None:
            raise InputError("rounds is missing: should be a whole number, or a Limit")
        own = {key: value for key, value in first.settings.items() if not key.startswith("solver.") and key != "source"}
        plan = Plan.of(
            plugins.build("algorithms", first.name, own, [first.name]), self.model, rounds=self.rounds,
            solver=self.solver or Adam(), seed=seeds[0], conditions=options.conditions, options=options,
        )  # fmt: skip
        return spec_of(plan, data, "study", of_study=True)

    def _named(self) -> RunSpec:
        base = self.data if isinstance(self.data, RunSpec) else specs.read(str(self.data))
        if isinstance(self.rounds, Limit):
            base = replace(base, rounds=self.rounds.rounds, work=self.rounds.work, bytes=self.rounds.bytes)
        elif self.rounds is not None:
            base = replace(base, rounds=self.rounds)
        return base if self.solver is None else replace(base, solver=named_part("solver", self.solver))

    @contextmanager
    def pool(self, title: str, given: Given) -> Iterator[tuple[ProcessPool, object]]:
        """Yield what carries out the runs, and what holds them where no folder is given."""
        options = self.options
        scratch = _Scratch() if options.folder is None else None
        folder = scratch.path if scratch is not None else Path(str(options.folder))
        with Bar(Console(stderr=True, quiet=not options.progress), "runs") as bar:

            def show(now: Progress) -> None:
                bar.show(title, now.finished, now.total, f"{now.rounds} rounds", now.left or 0.0)

            how, shown = self._run_options(given), show if options.progress else id
            yield ProcessPool(folder, self._jobs(given), how, shown), scratch

    def _run_options(self, given: Given) -> RunOptions:
        o = self.options
        by_spec = given.data is not None  # where early stopping is part of the run
        callbacks = [one for one in o.callbacks if not (by_spec and isinstance(one, EarlyStopping))]
        return RunOptions(
            device=o.device, chunk=o.chunk, workers=o.workers, memory=o.memory, engine=o.engine, address=o.address,
            backend=o.backend, callbacks=callbacks, given=given,
        )  # fmt: skip

    def _jobs(self, given: Given) -> int | None:
        """Return the number of processes; None where everything has to stay in this one."""
        if self.options.jobs == 1:
            return None
        problem = _stays(given)
        if problem:
            LOG.warning("runs one after the other in this process, as %s cannot be sent to another one", problem)
            return None
        return self.options.jobs


class _Scratch:
    """A folder that is gone when nobody holds it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedsoft-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _stays(given: Given) -> str:
    """Return what cannot be sent to other processes; empty where all can."""
    main = sys.modules.get("__main__")
    for name, part in {"data": given.data, **given.parts, "dropout": given.dropout, "metrics": given.metrics}.items():
        own = getattr(part, "__module__", None) == "__main__" or type(part).__module__ == "__main__"
        if own and not hasattr(main, "__file__"):  # typed into a notebook, which other processes do not see
            return name
        try:
            ForkingPickler.dumps(part)
        except Exception:  # whatever a user's object raises
            return name
    return ""


def _listed(seeds: Sequence[int]) -> list[int]:
    found = [int(seed) for seed in dict.fromkeys(seeds)]
    if not found:
        raise InputError("seeds: none is given, should be at least one")
    return found


def _done(found: T | None) -> T:
    if found is None:
        raise KeyboardInterrupt("stopped: what is done is saved where a folder was given, and the same call resumes it")
    return found
