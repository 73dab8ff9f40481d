"""The metrics that a run asks for, of personal models and of centers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedsoft.core.client_metrics import NAMED, ClientMetric, Judged
from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.core.local_solve import evaluation_block
from fedsoft.core.model import Model
from fedsoft.evaluation.spread import Spread
from fedsoft.evaluation.values import MetricScores, Values
from fedsoft.evaluation.yardsticks import yardsticks


def score_metrics(
    metrics: Sequence[ClientMetric], federation: Federation, train: Tensor, held_out: Tensor
) -> dict[str, MetricScores]:
    """Sum up `train[N, metrics]` and `held_out[N, metrics]`, and score constant predictors beside them."""
    here = len(federation.train.y) > 0
    known = [one.values for one in NAMED.values()]  # a function of a user's own may take no constant
    found = {}
    for i, metric in enumerate(metrics):
        columns = (train[:, i], federation.train.sizes), (held_out[:, i], federation.held_out.sizes)
        spread_train, spread_held_out = (
            Spread.of(values, metric, sizes if here else None) for values, sizes in columns
        )
        constants = yardsticks(federation, metric, metric.values) if metric.values in known else []
        found[metric.name] = MetricScores(
            metric.higher_is_better, spread_train, spread_held_out, int(torch.isnan(train[:, i]).sum()),
            int(torch.isnan(held_out[:, i]).sum()), constants,
            by_client_train=listed(train[:, i]), by_client_held_out=listed(held_out[:, i]),
        )  # fmt: skip
    return found


def with_centers(
    found: Mapping[str, MetricScores], metrics: Sequence[ClientMetric], federation: Federation, model: Model,
    state: State,
) -> dict[str, MetricScores]:  # fmt: skip
    """Return the same with the metrics of centers: on test sets, and on clients' points where these are here."""
    centers, u = state.centers, state.mixture
    scored = dict(found)
    tests = federation.truth.tests if federation.truth is not None and len(centers) else ()
    columns = []
    for x, y in tests:
        judged = _of_centers(_predictions(model, centers, x, torch.arange(len(y))), y.cpu())
        columns.append([listed(metric.values(judged)) for metric in metrics])
    if columns:
        for i, metric in enumerate(metrics):
            table = [[column[i][s] for column in columns] for s in range(len(centers))]
            scored[metric.name] = replace(scored[metric.name], centers=table)
    data = federation.held_out if len(federation.held_out.y) else federation.train
    if u is None or not len(centers) or not len(data.y):
        return scored
    y, whose = data.y[data.points].cpu(), u.argmax(1).cpu()[data.owners.cpu()]
    prediction = _predictions(model, centers, data.x, data.points.cpu())
    every, own = _of_centers(prediction, y), Judged(y, prediction[whose, torch.arange(len(y))], whose, len(centers))
    for metric in metrics:
        on_all, on_own = listed(metric.values(every)), listed(metric.values(own))
        scored[metric.name] = replace(scored[metric.name], on_all=on_all, on_own=on_own)
    return scored


def _predictions(model: Model, centers: Tensor, x: Tensor, places: Tensor) -> Tensor:
    """Return what every center predicts for these points of the pool, `[S, points, ...]`."""
    parts = []
    for part in places.split(evaluation_block(x, len(centers))):
        inputs = model.inputs(x[part].to(centers.device), centers.dtype)
        parts.append(model.predict(model.outputs(centers, inputs.expand(len(centers), *inputs.shape))).cpu())
    return torch.cat(parts, 1)


def _of_centers(prediction: Tensor, y: Tensor) -> Judged:
    """Judge every center on the same points."""
    count = len(prediction)
    owners = torch.arange(count).repeat_interleave(len(y))
    return Judged(y.repeat(count, *[1] * (y.ndim - 1)), prediction.flatten(0, 1), owners, count)


def listed(values: Tensor) -> Values:
    """Return numbers as plain values, None for NaN."""
    return [None if value != value else value for value in values.tolist()]
