"""Rounds as MLflow keeps them."""

from __future__ import annotations

import re
import time
from dataclasses import fields, is_dataclass
from typing import Any

from fedsoft.errors import InputError
from fedsoft.training.callbacks.base import Callback
from fedsoft.training.callbacks.scalars import scalars
from fedsoft.training.records import RoundRecord
from fedsoft.training.run import Run

TAG = "fedsoft.run"
LONGEST = 500  # characters of a parameter


class MLflow(Callback):
    """Log settings, scores of centers, mixtures and cost of every round to an MLflow run.

    Arguments:
        name: of the MLflow run; one of this name in the experiment goes on, so that a resumed run is one curve.
            Default: a new one.
        experiment: of MLflow; made where it does not exist.
        uri: of the tracking server or store; default: as MLflow is set up (MLFLOW_TRACKING_URI).
        held_out: metrics of personal models on held-out points to measure and log, too.
    """

    def __init__(
        self, name: str | None = None, experiment: str = "fedsoft", uri: str | None = None,
        held_out: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        if name is not None and re.search(r"[\"'`\\]", name):
            raise InputError(f"name = {name!r} is not allowed: should have no quotes and no backslash")
        self.name, self.experiment, self.uri, self.wanted = name, experiment, uri, tuple(held_out)
        self.client: Any = None
        self.run_id, self.status = "", "KILLED"

    @property
    def held_out(self) -> tuple[str | None, ...]:
        return self.wanted

    def on_start(self, run: Run, rounds: int) -> None:
        try:
            from mlflow.entities import Param, RunTag
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise InputError("MLflow is not installed: pip install 'fedsoft[mlflow]'") from None
        self.close()
        self.client = MlflowClient(tracking_uri=self.uri)
        found = self.client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else self.client.create_experiment(self.experiment)
        self.run_id, is_new = self._find(experiment)
        if is_new:
            settings = [Param(name, text) for name, text in _settings(run).items()]
            self.client.log_batch(self.run_id, params=settings, tags=[RunTag(TAG, self.name or "")])
        else:
            self.client.update_run(self.run_id, status="RUNNING")

    def _find(self, experiment: str) -> tuple[str, bool]:
        """Return the MLflow run to log to, and whether it is new."""
        if self.name is not None:
            there = self.client.search_runs([experiment], f"tags.`{TAG}` = '{self.name}'", max_results=1)
            if there:
                return there[0].info.run_id, False
        return self.client.create_run(experiment, run_name=self.name).info.run_id, True

    def on_round(self, run: Run, record: RoundRecord) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = {re.sub(r"[^\w\-. :/]", " -", name): value for name, value in scalars(record).items()}
        self.client.log_batch(
            self.run_id, metrics=[Metric(name, value, now, record.round) for name, value in values.items()]
        )

    def on_end(self, run: Run) -> None:
        self.status = "FINISHED"

    def close(self) -> None:
        if self.client is not None and self.run_id:
            self.client.set_terminated(self.run_id, status=self.status)
        self.client, self.run_id, self.status = None, "", "KILLED"


def _settings(run: Run) -> dict[str, str]:
    """Return the settings of algorithm and solver as short text, and what else tells runs apart."""
    training = run.engine.training
    found = {"algorithm": type(training.algorithm).__name__, "solver": type(training.solver).__name__}
    for role, part in (("algorithm", training.algorithm), ("solver", training.solver)):
        if is_dataclass(part):
            found |= {f"{role}.{one.name}": str(getattr(part, one.name))[:LONGEST] for one in fields(part)}
    return found | {"seed": str(training.seed), "clients": str(len(run.federation)), "parameters": str(run.model.size)}
