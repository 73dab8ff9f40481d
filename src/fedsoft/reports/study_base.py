"""What the studies in Python share: data and models made there as well as presets and TOML files, and where runs go."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
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
from fedsoft.runs import spec as specs
from fedsoft.runs.given import Given, named_part, spec_of
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.safety.conditions import Conditions
from fedsoft.solvers.adam import Adam
from fedsoft.studies.methods import Method
from fedsoft.studies.process_pool import ProcessPool, Progress
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
        only: candidates of `recommend`, such as `["fedavg", "finetune", "fedprior-1"]`; default: all.
    """

    folder: str | Path | None = None
    jobs: int = 1
    progress: bool = True
    conditions: Conditions | None = None
    only: Sequence[str] | None = None


@dataclass(frozen=True)
class Study:
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

    def folder(self) -> tuple[Path, object]:
        """Return where to save, and what holds that folder where none is given."""
        scratch = Scratch() if self.options.folder is None else None
        return (scratch.path if scratch is not None else Path(str(self.options.folder))), scratch

    @contextmanager
    def pool(self, title: str, given: Given) -> Iterator[tuple[ProcessPool, object]]:
        """Yield what carries out the runs, and what holds them where no folder is given."""
        options = self.options
        folder, scratch = self.folder()
        with Bar(Console(stderr=True, quiet=not options.progress), "runs") as bar:

            def show(now: Progress) -> None:
                bar.show(title, now.finished, now.total, f"{now.rounds} rounds", now.left or 0.0)

            how, shown = self.run_options(given), show if options.progress else id
            yield ProcessPool(folder, self._jobs(given), how, shown), scratch

    def run_options(self, given: Given) -> RunOptions:
        """Return what runs may use, and what was made in Python."""
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


class Scratch:
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


def listed(seeds: Sequence[int]) -> list[int]:
    """Return each seed once; raises for none."""
    found = [int(seed) for seed in dict.fromkeys(seeds)]
    if not found:
        raise InputError("seeds: none is given, should be at least one")
    return found


def done(found: T | None) -> T:
    """Return the result of a study; raises where it was stopped."""
    if found is None:
        raise KeyboardInterrupt("stopped: what is done is saved where a folder was given, and the same call resumes it")
    return found
