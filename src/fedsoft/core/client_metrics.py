"""Metrics of each client's predictions, for many clients at once: those with a name, and a user's own.

A metric of `core.metrics` is a mean over points. Those here need all points of a client together, such as the area
under the ROC curve: sums by client stand in for a loop over clients.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.client_data import ClientData, DataShape, Task
from fedsoft.core.metrics import Metric
from fedsoft.errors import InputError, unknown

BINS = 10  # of confidence, for the calibration error
INFINITE = float("inf")


@dataclass(frozen=True)
class Judged:
    """Targets and predictions of the points of many clients.

    Arguments:
        y: targets, `[points]` or `[points, outputs]`.
        prediction: values or probabilities, `[points, ...]`.
        owners: the row of the client that each point belongs to, `[points]`.
        clients: how many clients there are.
    """

    y: Tensor
    prediction: Tensor
    owners: Tensor
    clients: int

    @staticmethod
    def of(data: ClientData, prediction: Tensor) -> Judged:
        """Judge what clients predict for their points, in the order of `data.points`."""
        return Judged(data.y.cpu()[data.points.cpu()], prediction.cpu(), data.owners.cpu(), len(data))

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum over each client's points of `values[points, ...]`."""
        total = torch.zeros((self.clients, *values.shape[1:]), dtype=torch.float64, device=values.device)
        return total.index_add_(0, self.owners, values.double())

    def means(self, values: Tensor) -> Tensor:
        """Return the mean over each client's points; NaN for a client without points."""
        return self.sums(values) / self.counts.view(-1, *[1] * (values.ndim - 1))

    @property
    def counts(self) -> Tensor:
        """How many points each client has."""
        return torch.bincount(self.owners, minlength=self.clients)

    def tally(self, classes: Tensor, outputs: int, among: Tensor | slice = slice(None)) -> Tensor:
        """Return how many points of each client, `among` these, are of each of `classes[points]`."""
        places = (self.owners * outputs + classes)[among]
        return torch.bincount(places, minlength=self.clients * outputs).view(self.clients, outputs).double()


@dataclass(frozen=True)
class ClientMetric:
    """A number for each client, from its targets and predictions.

    Arguments:
        name: in tables and files.
        higher_is_better: which way is better.
        values: one number for each client; NaN where it is not defined.
        tasks: that it is defined for.
        least, most: the smallest and largest value that there can be.
        is_mean: whether it is a mean over points.
    """

    name: str
    higher_is_better: bool
    values: Callable[[Judged], Tensor]
    tasks: tuple[Task, ...] = ("regression", "classification", "multilabel")
    least: float = 0.0
    most: float = 1.0
    is_mean: bool = False


@dataclass(frozen=True)
class OwnMetric:
    """A function of a user: (y, prediction) of one client, as arrays, to a number; NaN where it is not defined.

    Arguments:
        function: y is as in the data, with classes as numbers; prediction holds values, or a probability for each
            class or label.
        higher_is_better: which way is better.
    """

    function: Callable[[np.ndarray, np.ndarray], float]
    higher_is_better: bool = True


MetricChoice = Sequence[str] | Mapping[str, "str | Metric | OwnMetric | Callable[[np.ndarray, np.ndarray], float]"]
"""Names of metrics, or names of the user's with what stands behind them."""


# --- by name ----------------------------------------------------------------------------------------------------------


def _accuracy(judged: Judged) -> Tensor:
    if judged.y.ndim == 1:
        return judged.means(judged.prediction.argmax(-1) == judged.y)
    return judged.means((judged.prediction > 0.5) == (judged.y > 0.5)).mean(1)


def _log_loss(judged: Judged) -> Tensor:
    tiny = torch.finfo(judged.prediction.dtype).eps  # a probability of 0 for what happened would make it infinite
    p = judged.prediction.clamp(tiny, 1 - tiny).double()
    if judged.y.ndim == 1:
        return judged.means(-p.gather(1, judged.y[:, None])[:, 0].log())
    y = judged.y.double()
    return judged.means(-(y * p.log() + (1 - y) * (1 - p).log())).mean(1)


def _f1(judged: Judged) -> Tensor:
    """The mean over the classes or labels that a client has, or predicts, of its F1."""
    if judged.y.ndim == 1:
        outputs, guess = judged.prediction.shape[1], judged.prediction.argmax(-1)
        true, guessed = judged.tally(judged.y, outputs), judged.tally(guess, outputs)
        hits = judged.tally(judged.y, outputs, guess == judged.y)
    else:
        y, guess = judged.y > 0.5, judged.prediction > 0.5
        true, guessed, hits = judged.sums(y), judged.sums(guess), judged.sums(y & guess)
    return (2 * hits / (true + guessed)).nanmean(1)


def _auc(judged: Judged) -> Tensor:
    """The mean over the classes or labels of which a client has points and others of the area under the ROC curve."""
    if judged.y.ndim > 1:
        pairs = [(judged.prediction[:, c], judged.y[:, c] > 0.5) for c in range(judged.y.shape[1])]
    elif judged.prediction.shape[1] == 2:
        pairs = [(judged.prediction[:, 1], judged.y == 1)]
    else:
        pairs = [(judged.prediction[:, c], judged.y == c) for c in range(judged.prediction.shape[1])]
    return torch.stack([_area(judged, score, positive) for score, positive in pairs], 1).nanmean(1)


def _area(judged: Judged, score: Tensor, positive: Tensor) -> Tensor:
    """The share of pairs of a positive and a negative point that are in order, ties by half: from sums of ranks."""
    order = torch.argsort(score, stable=True)
    order = order[torch.argsort(judged.owners[order], stable=True)]
    owners, score, positive = judged.owners[order], score[order], positive[order].double()
    first = torch.ones(len(score), dtype=torch.bool, device=score.device)
    first[1:] = (score[1:] != score[:-1]) | (owners[1:] != owners[:-1])
    tie = torch.cumsum(first, 0) - 1  # points of one client and score share a rank, the mean of theirs
    counts = judged.counts
    place = torch.arange(1, len(score) + 1, device=score.device) - (torch.cumsum(counts, 0) - counts)[owners]
    size = torch.bincount(tie, minlength=1).double()
    rank = (torch.zeros_like(size).index_add_(0, tie, place.double()) / size)[tie]
    total = torch.zeros(judged.clients, dtype=torch.float64, device=score.device)
    ranks, up = total.index_add(0, owners, rank * positive), total.index_add(0, owners, positive)
    return (ranks - up * (up + 1) / 2) / (up * (counts - up))


def _calibration(judged: Judged) -> Tensor:
    """How far confidence is from the share of hits: the mean of the gap over bins of confidence, weighted by points."""
    if judged.y.ndim == 1:
        confidence, guess = judged.prediction.max(-1)
        confidence, hit = confidence[:, None], (guess == judged.y)[:, None]
    else:
        confidence, hit = judged.prediction, judged.y > 0.5
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gap = hit.double() - confidence.double()
    total = torch.zeros(judged.clients * BINS, dtype=torch.float64, device=gap.device)
    total.index_add_(0, (judged.owners[:, None] * BINS + bins).flatten(), gap.flatten())
    return total.view(judged.clients, BINS).abs().sum(1) / (judged.counts * gap.shape[1])


def _errors(judged: Judged) -> Tensor:
    return _columns(judged.prediction) - _columns(judged.y)


def _columns(values: Tensor) -> Tensor:
    """Values as `[points, outputs]`."""
    return (values[:, None] if values.ndim == 1 else values.flatten(1)).double()


def _mse(judged: Judged) -> Tensor:
    return judged.means(_errors(judged).square().sum(1))


def _mae(judged: Judged) -> Tensor:
    return judged.means(_errors(judged).abs().mean(1))


def _r2(judged: Judged) -> Tensor:
    """The mean over outputs of 1 - (squared error) / (squared distance from the client's own mean)."""
    y = _columns(judged.y)
    around = judged.sums((y - judged.means(y)[judged.owners]).square())
    left = judged.sums(_errors(judged).square())
    constant = around <= 1e-12 * judged.sums(y.square())  # what rounding leaves of a constant explains nothing
    return torch.where(constant, torch.nan, 1 - left / around).nanmean(1)


_CLASSES: tuple[Task, ...] = ("classification", "multilabel")
_VALUES: tuple[Task, ...] = ("regression",)
NAMED = {
    one.name: one
    for one in (
        ClientMetric("accuracy", True, _accuracy, _CLASSES, is_mean=True),
        ClientMetric("log_loss", False, _log_loss, _CLASSES, most=INFINITE, is_mean=True),
        ClientMetric("f1", True, _f1, _CLASSES),
        ClientMetric("auc", True, _auc, _CLASSES),
        ClientMetric("calibration", False, _calibration, _CLASSES),
        ClientMetric("mse", False, _mse, _VALUES, most=INFINITE, is_mean=True),
        ClientMetric("mae", False, _mae, _VALUES, most=INFINITE, is_mean=True),
        ClientMetric("r2", True, _r2, _VALUES, least=-INFINITE),
    )
}
"""The metrics that a run file may name, and that may be computed at nodes of a federation."""


def check_names(names: Sequence[str]) -> None:
    """Raise for a metric that has no such name, or is named twice."""
    for name in names:
        if name not in NAMED:
            raise unknown("metric", name, NAMED)
    if len(set(names)) != len(names):
        raise InputError(f"metrics = {list(names)} is not allowed: should name each metric once")


# --- a user's own -----------------------------------------------------------------------------------------------------


def read_metrics(given: MetricChoice | None, shape: DataShape) -> tuple[ClientMetric, ...]:
    """Return the metrics that a user names or gives; raise InputError for one that the task does not have."""
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise InputError(f"metrics = {given!r} is not allowed: should be a list of names, or functions by name")
    named = given if isinstance(given, Mapping) else {str(name): name for name in given}
    if len(named) != len(given):
        raise InputError(f"metrics = {list(given)} is not allowed: should name each metric once")
    return tuple(_read(str(name), one, shape) for name, one in named.items())


def _read(name: str, given: Any, shape: DataShape) -> ClientMetric:
    if isinstance(given, str):
        check_names([given])
        metric = NAMED[given]
        if shape.task not in metric.tasks:
            fitting = ", ".join(one.name for one in NAMED.values() if shape.task in one.tasks)
            raise InputError(f"metrics: '{given}' is not for {shape.task}, which has {fitting}")
        return metric if name == given else replace(metric, name=name)
    if isinstance(given, Metric):
        return by_point(given, name)
    own = given if isinstance(given, OwnMetric) else OwnMetric(given)
    if not callable(own.function):
        raise InputError(f"metrics: '{name}' = {given!r} is not allowed: should be a function of (y, prediction)")
    return ClientMetric(name, own.higher_is_better, lambda judged: _by_function(name, own, judged))


def by_point(metric: Metric, name: str | None = None) -> ClientMetric:
    """Return a metric of points as one of clients: the mean over their points."""

    def values(judged: Judged) -> Tensor:
        return judged.means(metric.per_point(judged.prediction[None], judged.y[None])[0])

    return ClientMetric(name or metric.name, metric.higher_is_better, values)


def _by_function(name: str, own: OwnMetric, judged: Judged) -> Tensor:
    counts = judged.counts.tolist()
    order = torch.argsort(judged.owners, stable=True)
    targets = judged.y[order].cpu().split(counts)
    predictions = judged.prediction[order].cpu().split(counts)
    found = torch.full((judged.clients,), torch.nan, dtype=torch.float64)
    for k, (y, prediction) in enumerate(zip(targets, predictions, strict=True)):
        if not len(y):
            continue
        try:
            value = own.function(y.numpy(), prediction.numpy())
        except Exception as error:
            raise InputError(
                f"metric '{name}' failed for the client in row {k} ({len(y)} points): {error} (return NaN where it is "
                "not defined)"
            ) from error
        if not isinstance(value, numbers.Real) and (isinstance(value, str) or np.ndim(value) != 0):
            raise InputError(f"metric '{name}' gave {type(value).__name__}, should be one number for each client")
        found[k] = float(value)
    return found
