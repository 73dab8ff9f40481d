"""Train a candidate on some clients and measure it, client by client, on the points that they hold out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsoft import plugins
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_metrics import NAMED, ClientMetric, Judged, by_point, read_metrics
from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.core.metrics import ACCURACY, LABEL_ACCURACY, MSE
from fedsoft.core.model import Model
from fedsoft.engine.base import Engine
from fedsoft.errors import DivergedError, FedsoftError, InputError
from fedsoft.evaluation.paired import mean_of
from fedsoft.evaluation.yardsticks import constants, judged_as
from fedsoft.machine.threads import one_thread
from fedsoft.runs.run import Run
from fedsoft.runs.run_options import RunOptions, plan_of
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.methods import variant
from fedsoft.studies.recommend.candidates import Candidate
from fedsoft.studies.recommend.measured import Measured, as_values
from fedsoft.studies.recommend.newcomers import serve
from fedsoft.studies.recommend.split import COUNTS, Split
from fedsoft.training import train
from fedsoft.training.callbacks import Callback
from fedsoft.training.prepare import as_model
from fedsoft.training.records import RoundRecord, Totals

SCORED = 16  # times that a run is measured on the way, to see whether it has come to rest
UNSCORED = 10**6  # rounds between two scores of centers, which nothing here looks at
LOG = logging.getLogger("fedsoft")


@dataclass(frozen=True)
class Judge:
    """What personal models are measured by.

    Arguments:
        metric: what is tuned and decided by.
        beside: the model's own metric and its loss, as far as they are others: so trials serve whatever is decided by.
        takes_constants: whether a constant prediction can be measured.
        is_own: whether the metric is the model's own.
    """

    metric: ClientMetric
    beside: tuple[ClientMetric, ...]
    takes_constants: bool
    is_own: bool

    @staticmethod
    def of(model: Model, federation: Federation, metric: str | None, options: RunOptions) -> Judge:
        """Find a metric by name: one that the run gives, one that has a name, or by default the model's own."""
        own, shape, given = model.metric, federation.shape, options.given
        usual = own in (MSE, ACCURACY, LABEL_ACCURACY)
        further = given.metrics if given is not None and isinstance(given.metrics, Mapping) else {}
        first = read_metrics([own.name], shape)[0] if usual else by_point(own)
        if metric is None or metric == own.name:
            chosen = first
        elif metric in further:
            chosen = read_metrics({metric: further[metric]}, shape)[0]
        elif usual:
            chosen = read_metrics([metric], shape)[0]
        else:
            raise InputError(f"--metric {metric} is not allowed: this model has a loss of its own, use '{own.name}'")
        loss = NAMED["mse" if shape.task == "regression" else "log_loss"] if usual else first
        beside = {one.name: one for one in (first, loss) if one.name != chosen.name}
        return Judge(chosen, tuple(beside.values()), usual, chosen.name == first.name)

    @property
    def metrics(self) -> tuple[ClientMetric, ...]:
        return (self.metric, *self.beside)

    def __call__(self, engine: Engine, state: State, data: ClientData) -> dict[str, np.ndarray]:
        """Return for each metric a number for each client, NaN where it has no points."""
        with torch.no_grad(), one_thread():
            return self.judged(Judged.of(data, engine.personal_predictions(state, data)))

    def judged(self, judged: Judged) -> dict[str, np.ndarray]:
        return {one.name: one.values(judged).double().numpy() for one in self.metrics}


@dataclass
class _Course(Callback):
    """Measures a run now and then."""

    judge: Judge
    every: int
    values: dict[str, list[float]] = field(default_factory=dict)

    def on_round(self, run: Any, record: RoundRecord) -> None:
        closes = record.last and run.engine.algorithm.closing_tasks
        if (record.round % self.every == 0 or record.last) and not closes:
            found = self.judge(run.engine, run.state, run.federation.held_out)
            for name, each in found.items():
                self.values.setdefault(name, []).append(mean_of(each))


@dataclass(frozen=True)
class Trainer:
    """Trains candidates as variants of one run.

    Arguments:
        base: the run: data, model, solver, rounds, and how many clients take part in a round.
        options: what may be used of the machine, and what was made in Python.
        judge: what is measured.
        parameters: of a model.
    """

    base: RunSpec
    options: RunOptions
    judge: Judge
    parameters: int

    @staticmethod
    def of(base: RunSpec, federation: Federation, options: RunOptions, metric: str | None) -> Trainer:
        model = as_model(plan_of(base, options).recipe.model, federation)
        return Trainer(base, options, Judge.of(model, federation, metric, options), model.size)

    def measure(
        self, candidate: Candidate, settings: Mapping[str, Any], federation: Federation, rounds: int
    ) -> Measured:
        """Train, and measure on held-out points. What goes wrong is a result, too."""
        return self._measured(candidate, settings, federation, rounds)[0]

    def final(
        self, candidate: Candidate, settings: Mapping[str, Any], split: Split, rounds: int, save: Path | None
    ) -> Measured:
        """Train on all training points, measure on test points and with newcomers, and save the run."""
        began = time.perf_counter()
        found, run = self._measured(candidate, settings, split.final, rounds)
        newcomers: dict[int, dict[str, np.ndarray]] = {}
        for points in COUNTS:
            joining = split.joining(points)
            if joining is None or found.problem:
                continue
            with suppress(DivergedError):  # the table has no number then
                newcomers[points] = (
                    self._constant(joining, settings, split.final)
                    if run is None
                    else serve(run, joining, self.judge, candidate)
                )
        if run is not None and save is not None and not save.exists():
            run.save(save)
        return replace(
            found, seconds=time.perf_counter() - began,
            newcomers={n: {name: as_values(v) for name, v in one.items()} for n, one in newcomers.items()},
        )  # fmt: skip

    def _measured(
        self, candidate: Candidate, settings: Mapping[str, Any], federation: Federation, rounds: int
    ) -> tuple[Measured, Run | None]:
        began = time.perf_counter()
        if candidate.algorithm is None:
            return Measured(values=_plain(self._constant(federation, settings, federation))), None
        course = _Course(self.judge, max(1, rounds // SCORED))
        try:
            run = self._trained(candidate, settings, federation, rounds, course)
            values = self.judge(run.engine, run.state, federation.held_out)
        except FedsoftError as error:
            return Measured(problem=str(error), seconds=time.perf_counter() - began), None
        totals, clients = Totals.of(run.history), len(federation)
        found = Measured(
            values=_plain(values), course={name: tuple(each) for name, each in course.values.items()},
            gradients=totals.gradients / clients,
            bytes_down=totals.bytes_down / clients, bytes_up=totals.bytes_up / clients,
            seconds=time.perf_counter() - began,
        )  # fmt: skip
        return found, run

    def _trained(
        self, candidate: Candidate, settings: Mapping[str, Any], federation: Federation, rounds: int, course: _Course
    ) -> Run:
        assert candidate.algorithm is not None
        given = {**candidate.settings, **settings}
        known = plugins.parameters(plugins.find("algorithms", candidate.algorithm))
        most = self.base.algorithm.settings.get("K")
        if "K" in known and isinstance(most, int) and most > len(federation):
            given["K"] = "all"
        spec = replace(variant(self.base, candidate.algorithm, given), rounds=rounds, score_every=UNSCORED)
        plan = plan_of(spec, self.options)
        plan = replace(plan, options=replace(plan.options, callbacks=[course], progress=False))
        with _silent():
            return train(plan, federation, partial(Run, plan=replace(plan, options=_saved(plan.options))))

    def _constant(
        self, federation: Federation, settings: Mapping[str, Any], known: Federation
    ) -> dict[str, np.ndarray]:
        """Measure a constant guess: that of all `known` clients, or each client's own with one point of them."""
        (_, own), _ = constants(federation)
        _, (_, overall) = constants(known)
        overall, sizes = overall[:1].expand_as(own), federation.train.sizes.double()
        sizes = sizes.view(-1, *[1] * (own.ndim - 1))
        guess = (own * sizes + overall) / (sizes + 1) if settings["own"] else overall
        return self.judge.judged(judged_as(federation.held_out, guess))


def _saved(options: Any) -> Any:
    return replace(options, callbacks=())


def _plain(values: Mapping[str, np.ndarray]) -> dict[str, tuple[float | None, ...]]:
    return {name: as_values(found) for name, found in values.items()}


@contextmanager
def _silent() -> Iterator[None]:
    """Let trials say nothing: of those that do badly nobody wants to know why a center collapsed."""
    before = LOG.level
    LOG.setLevel(logging.ERROR)
    try:
        yield
    finally:
        LOG.setLevel(before)
