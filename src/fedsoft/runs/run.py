"""`Run`: a run in memory that can be saved and played on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn

from fedsoft import training
from fedsoft.core.contract import Algorithm
from fedsoft.core.federation import Federation
from fedsoft.core.local_solve import Solver
from fedsoft.core.model import Builder, Model
from fedsoft.errors import InputError, StoreError
from fedsoft.runs.checkpoints import Checkpoint
from fedsoft.runs.data_summary import DataSummary
from fedsoft.runs.folder import Begun, RunFolder
from fedsoft.runs.given import spec_of
from fedsoft.runs.info import RunInfo
from fedsoft.runs.spec import RunSpec
from fedsoft.runs.user_code import digests
from fedsoft.safety.conditions import Conditions
from fedsoft.training import FitOptions, Limit, Plan


@dataclass(repr=False)
class Run(training.Run):
    """A run in memory, see `training.Run`, with what it takes to save it and to play it on.

    Arguments:
        plan: what was trained, and how.
        spec: of a run that was loaded.
    """

    plan: Plan | None = None
    spec: RunSpec | None = None

    def save(self, folder: str | Path) -> Path:
        """Save the run to a new folder, whole or not at all; `load` gives the same predictions.

        Like every run's folder it holds no training point, and nothing is pickled: `load(folder, model=net)` needs the
        network, where that is an object without a name; see docs/runs.md.
        """
        path = Path(folder)
        if path.exists():
            raise StoreError(f"'{path}' exists: save a run to a new folder")
        if self.lacking and self.saved is None:
            raise InputError(self.lacking)
        self.engine.reach_clients()
        spec = self._spec(path.name)
        point = Checkpoint(self.at_round, self.state, self.engine.client_states)
        info = RunInfo.here(spec, "" if self.lacking else self.federation.fingerprint, self.federation.about)
        info = replace(info, code=digests(spec))
        begun = Begun(self.history[: self.at_round], point, self.outcome())
        RunFolder.create(path, spec, DataSummary.of(self.federation), info, begun)
        return path

    def extend(
        self, rounds: int | Limit, *, federation: Federation | None = None, options: FitOptions | None = None
    ) -> Run:
        """Play more rounds, and return the longer run; this one stays as it is.

        It ends in the same bits as a run that had these rounds from the start.

        Arguments:
            rounds: in all, the earlier ones included, as in `fit`.
            federation: clients that it goes on with, where they are others. Those of the same names keep what they
                know, new ones start as in the first round; the next record says who `joined` and who `left`.
            options: how it is computed, and callbacks; default: as before, without callbacks.
        """
        if self.plan is None:
            raise InputError("this run was not made by fit or load: it is not known how to play it on")
        plan = self.plan.until(rounds, options)
        return training.extend(plan, self, federation, partial(Run, plan=plan))

    def _spec(self, label: str) -> RunSpec:
        if self.spec is not None:
            return replace(self.spec, label=label)
        if self.plan is None:
            raise InputError("this run was not made by fit or load: it is not known what it is made of")
        spec, given = spec_of(self.plan, self.federation, label)
        if given.dropout is not None:
            raise InputError("conditions.dropout is a schedule of your own: such a run cannot be saved")
        return spec


def fit(
    algorithm: Algorithm,
    federation: Federation,
    model: Builder | Model | nn.Module | Callable[[], nn.Module],
    *,
    rounds: int | Limit,
    solver: Solver | None = None,
    seed: int = 0,
    conditions: Conditions | None = None,
    options: FitOptions | None = None,
) -> Run:
    """Train, and return the run.

    Arguments:
        algorithm: for instance `FedSoft(S=2, K=60)`.
        federation: the clients, for instance `Federation.from_clients([(x, y), ...])`.
        model: `models.linear()`, `models.mlp()`, a `torch.nn.Module` or a function that makes one, or
            `models.module(...)`.
        rounds: communication rounds T, or a `Limit` that also bounds client work or bytes.
        solver: what clients solve their problem with; default: `Adam()`.
        seed: of all draws of the run.
        conditions: what clients may do, and what is done about it: dropout, attacks, aggregators, guards, privacy.
        options: how it is computed: device, workers, memory, engine, precision; and `callbacks`.
    """
    plan = Plan.of(
        algorithm, model, rounds=rounds, solver=solver, seed=seed, conditions=conditions, options=options
    )  # fmt: skip
    return training.train(plan, federation, partial(Run, plan=plan))
