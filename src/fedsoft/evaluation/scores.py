"""Scoring, in one place for all algorithms. The only part that may look at the truth."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.batches import Problem
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Draws
from fedsoft.core.federation import Federation, Truth
from fedsoft.core.local_solve import evaluation_block
from fedsoft.core.metrics import ACCURACY, LABEL_ACCURACY, MSE, Metric
from fedsoft.core.model import Model
from fedsoft.evaluation.cluster_profiles import cluster_profiles
from fedsoft.evaluation.spread import Spread, Yardstick
from fedsoft.evaluation.values import CenterUsage, Scores
from fedsoft.evaluation.yardsticks import yardsticks
from fedsoft.solvers.exact import Exact

FEW = 4  # centers and sources of which all assignments are tried


def center_scores(model: Model, centers: Tensor, tests: Sequence[tuple[Tensor, Tensor]]) -> np.ndarray:
    """The metric of every center on every test set, `[S, sources]`."""
    table = np.empty((len(centers), len(tests)))
    for j, (x, y) in enumerate(tests if len(centers) else ()):  # local training has none
        total = torch.zeros(len(centers), dtype=torch.float64, device=centers.device)
        for part in torch.arange(len(y)).split(evaluation_block(x, len(centers))):
            xs = model.inputs(x[part].to(centers.device), centers.dtype)
            ys = y[part].to(centers.device)
            prediction = model.predict(model.outputs(centers, xs.expand(len(centers), *xs.shape)))
            total += model.metric.per_point(prediction, ys.expand(len(centers), *ys.shape)).double().sum(1)
        table[:, j] = (total / len(y)).cpu().numpy()
    return table


def center_usage(model: Model, centers: Tensor, u: Tensor, federation: Federation) -> list[CenterUsage]:
    """What clients with mixtures `u[N, S]` make of each center."""
    data = federation.held_out if int(federation.held_out.sizes.sum()) else federation.train
    per_point = torch.cat([
        model.metric.per_point(
            model.predict(model.outputs(centers, x.expand(len(centers), *x.shape))), y.expand(len(centers), *y.shape)
        ).double().cpu()
        for x, y in _blocks(model, data, centers)
    ], dim=1)  # fmt: skip
    share = (u / u.sum(1, keepdim=True)).double().cpu()
    n, main = federation.train.sizes.double().cpu(), share.argmax(1)
    whose = main[data.owners.cpu()]
    uses = []
    for s, values in enumerate(per_point):
        own = values[whose == s]
        uses.append(CenterUsage(
            share=float((share[:, s] * n).sum() / n.sum()), clients=int((main == s).sum()),
            on_all=float(values.mean()), on_own=float(own.mean()) if len(own) else None,
        ))  # fmt: skip
    return uses


def _blocks(model: Model, data: ClientData, centers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The points of all clients in large batches, as the model takes them beside the centers."""
    for places in data.points.split(evaluation_block(data.x, len(centers))):
        x = model.inputs(data.x[places].to(centers.device), centers.dtype)
        yield x, data.y[places].to(centers.device)


def align(table: np.ndarray, higher_is_better: bool) -> list[int]:
    """The source that each center stands for: the best one-to-one assignment of centers to sources.

    Centers that are left over, when there are more than sources, stand for the source that they serve best.
    """
    cost = -table if higher_is_better else table
    alignment = cost.argmin(axis=1)
    rows, columns = _assignment(cost)
    alignment[rows] = columns
    return alignment.tolist()


def _assignment(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns whose pairs cost least together."""
    if max(cost.shape) > FEW or not np.isfinite(cost).all():
        from scipy.optimize import linear_sum_assignment  # takes half a second to import

        return linear_sum_assignment(cost)
    few, many = sorted(cost.shape)
    own = np.arange(few)
    wide = cost if cost.shape[0] == few else cost.T
    chosen = min(itertools.permutations(range(many), few), key=lambda taken: wide[own, [*taken]].sum())
    taken = np.array(chosen, dtype=np.int64)
    return (own, taken) if cost.shape[0] == few else (taken, own)


def recovery(u: Tensor, truth: Tensor, alignment: list[int]) -> float:
    """Mean absolute error of the estimated mixture, its columns added up by the source that each center stands for."""
    estimate = torch.zeros_like(truth)
    estimate.index_add_(1, torch.tensor(alignment), (u / u.sum(1, keepdim=True)).to(truth))
    return float((estimate - truth).abs().mean())


def weights_by_source(u: Tensor, truth: Tensor) -> list[list[float]]:
    """Mean u of the clients whose largest share is source j, for each j: the lower half of the paper's Fig. 1."""
    major = truth.argmax(1)
    return [u[major == j].double().mean(0).tolist() if bool((major == j).any()) else [] for j in range(truth.shape[1])]


def oracle_models(model: Model, federation: Federation) -> Tensor | None:
    """The least-squares model of each source's own training points `[sources, P]`; None where that is not possible."""
    truth = federation.truth
    if truth is None or model.features is None:
        return None
    train, masks = federation.train, [truth.train_sources == s for s in range(len(truth.names))]
    pools = [(train.x[mask].double(), train.y[mask].double()) for mask in masks]
    if any(len(y) == 0 for _, y in pools):
        return None
    data = ClientData.concat(pools)
    problem = Problem(model, data, prox=None, point_weights=None, draws=lambda: Draws(0, names=()))
    return Exact().solve(problem, torch.zeros(len(pools), model.size, dtype=torch.float64), {})[0]


def oracle_scores(model: Model, federation: Federation) -> tuple[list[float], float] | None:
    """Test error of the oracle on each source, and the mean squared distance between the oracle models."""
    models = oracle_models(model, federation)
    if models is None or federation.truth is None:
        return None
    table = center_scores(model, models, federation.truth.tests)
    distances = torch.cdist(models, models).square()
    pairs = max(1, len(models) * (len(models) - 1))
    return np.diagonal(table).tolist(), float(distances.sum() / pairs)


@dataclass(frozen=True)
class CenterView:
    """What scoring sees of the centers in one round."""

    centers: list[list[float]]
    weights: list[list[float]] | None

    @staticmethod
    def of(model: Model, centers: Tensor, u: Tensor | None, truth: Truth, fractions: Tensor) -> CenterView:
        """Score the centers against the truth, `fractions[N, sources]` being the true shares of each client."""
        table = center_scores(model, centers, truth.tests)
        weights = None if u is None else weights_by_source(u.cpu(), fractions)
        return CenterView(table.tolist(), weights)


def score(
    federation: Federation, model: Model, centers: Tensor, u: Tensor | None, personal_train: Tensor,
    personal_held_out: Tensor,
) -> Scores:  # fmt: skip
    """Everything that is reported about the end of a run."""
    metric, truth, here = model.metric, federation.truth, len(federation.train.y) > 0
    table = alignment = best = error = guess = shares = None  # a method may have no centers
    oracle = oracle_scores(model, federation)
    if truth is not None and len(centers):
        table = center_scores(model, centers, truth.tests)
        alignment = align(table, metric.higher_is_better)
        best = (table.argmax(0) if metric.higher_is_better else table.argmin(0)).tolist()
        if u is not None:
            fractions = truth.fractions(federation.train)
            shares, error = weights_by_source(fractions, fractions), recovery(u.cpu(), fractions, alignment)
            guess = float((fractions - 1 / fractions.shape[1]).abs().mean())
    return Scores(
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        sources=list(truth.names) if truth else [],
        centers=None if table is None else table.tolist(),
        alignment=alignment,
        best=best,
        recovery=error,
        recovery_uniform=guess,
        shares=shares,
        personal_train=Spread.of(personal_train, metric, federation.train.sizes if here else None),
        personal_held_out=Spread.of(personal_held_out, metric, federation.held_out.sizes if here else None),
        oracle=oracle[0] if oracle else None,
        noise_floor=truth.noise_floor if truth else None,
        distance=oracle[1] if oracle else None,
        served=None if u is None or not len(centers) else center_usage(model, centers, u, federation),
        clusters=None if u is None else cluster_profiles(model, centers, u, federation),
        yardsticks=_constants(federation, metric),
    )


def _constants(federation: Federation, metric: Metric) -> list[Yardstick]:
    """Score constant predictors by the model's own metric; a user's loss may take no such prediction."""
    if metric not in (MSE, ACCURACY, LABEL_ACCURACY):
        return []
    return yardsticks(
        federation, metric, lambda judged: judged.means(metric.per_point(judged.prediction[None], judged.y[None])[0])
    )
