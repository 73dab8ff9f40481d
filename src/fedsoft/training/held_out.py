"""How well personal models do on their clients' held-out points, round by round: never on the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedsoft.core.client_metrics import ClientMetric, read_metrics
from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.engine.base import Engine
from fedsoft.errors import InputError
from fedsoft.machine.threads import one_thread
from fedsoft.training.records import RoundRecord


@dataclass(frozen=True)
class HeldOut:
    """What is measured after every round: means over clients of metrics of their personal models.

    Arguments:
        own: whether the model's own metric is among them.
        further: the others.
    """

    own: bool
    further: tuple[ClientMetric, ...]

    @staticmethod
    def of(names: Sequence[str | None], engine: Engine, federation: Federation) -> HeldOut:
        """Find metrics by name; None stands for the model's own."""
        if not int(federation.held_out.sizes.sum()):
            raise InputError("a run can be watched by its held-out points only where clients have some: held_out > 0")
        own = engine.model.metric.name
        found = {name: _metric(name, engine, federation) for name in names if name is not None and name != own}
        return HeldOut(any(name in (None, own) for name in names), tuple(found.values()))

    def __call__(self, engine: Engine, federation: Federation, state: State) -> dict[str, float]:
        """Return the means over clients that have such a number, by the names of the metrics."""
        data, found = federation.held_out, {}
        with torch.no_grad(), one_thread():
            if self.own:
                found[engine.model.metric.name] = engine.personal_scores(state, data)
            columns = engine.personal_metrics(state, data, self.further)
        found |= {metric.name: columns[:, j] for j, metric in enumerate(self.further)}
        means = {name: float(values.double().nanmean()) for name, values in found.items()}
        return {name: value for name, value in means.items() if math.isfinite(value)}


def higher_is_better(metric: str, engine: Engine, federation: Federation) -> bool:
    """Return which way a metric is better."""
    own = engine.model.metric
    return own.higher_is_better if metric == own.name else _metric(metric, engine, federation).higher_is_better


def best_round(records: Sequence[RoundRecord], metric: str, higher: bool, least: float = 0.0) -> int | None:
    """Return the round that no later one beats by more than `least`; None where none was measured.

    Rounds that were not measured count for nothing.
    """
    best, found = -math.inf, None
    for record in records:
        value = record.held_out.get(metric)
        if value is not None and (score := value if higher else -value) > best + (least if found else 0.0):
            best, found = score, record.round
    return found


def _metric(name: str, engine: Engine, federation: Federation) -> ClientMetric:
    for metric in engine.metrics:
        if metric.name == name:
            return metric
    return read_metrics([name], federation.shape)[0]
