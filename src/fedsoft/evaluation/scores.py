"""Scoring, in one place for all algorithms. The only part that may look at the truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedsoft.core.batches import Problem
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Draws
from fedsoft.core.federation import Federation, Truth
from fedsoft.core.local_solve import evaluation_block
from fedsoft.core.metrics import ACCURACY, LABEL_ACCURACY, MSE, Metric
from fedsoft.core.model import Model
from fedsoft.evaluation.cluster_profiles import ClusterProfiles, cluster_profiles
from fedsoft.evaluation.metric_scores import MetricScores
from fedsoft.evaluation.remarks import remarks_on
from fedsoft.evaluation.spread import Spread
from fedsoft.evaluation.variance_table import PriorSummary
from fedsoft.evaluation.yardsticks import Yardstick, yardsticks
from fedsoft.solvers.exact import Exact


@dataclass(frozen=True)
class CenterUsage:
    """How clients use one center; needs no truth.

    Arguments:
        share: of all points, by the clients' mixtures.
        clients: how many have it as their largest part.
        on_all: its metric on the points of all clients.
        on_own: on those of the clients whose largest part it is; None where there are none.
    """

    share: float
    clients: int
    on_all: float
    on_own: float | None


@dataclass(frozen=True)
class Scores:
    """How good a run is. Entries that need a truth are None where it is unknown.

    Arguments:
        metric: what the errors are: `mse`, `accuracy` or `loss`.
        sources: the names of the sources.
        centers: the metric of every center (rows) on the test set of every source (columns).
        alignment: for each center the source that it stands for.
        best: for each source the center that serves it best.
        recovery: mean absolute error of u against the true mixture, after alignment.
        recovery_uniform: that of equal shares, which anybody could guess.
        shares: the true mean mixture of the clients whose largest share is source j, for each j.
        personal_train, personal_held_out: personal models on the clients' own points.
        oracle: the metric on each source of a model trained on that source's points alone, where it is known exactly.
        noise_floor: the error that no model can beat.
        served: what clients make of each center, on their held-out points, or all where none are held out.
        distance: mean over pairs of sources of |theta_s - theta_r|^2 of the oracle models: the scale of the errors.
        yardsticks: how constant predictors fare where the personal models are scored.
        metrics: what else the run asked for, by name.
        clusters: what tells the centers apart, where clients have mixtures of several and their points are here.
        prior: what a learned prior says of the clients, where the algorithm has one.
    """

    metric: str
    higher_is_better: bool
    sources: list[str]
    centers: list[list[float]] | None
    alignment: list[int] | None
    best: list[int] | None
    recovery: float | None
    recovery_uniform: float | None
    shares: list[list[float]] | None
    personal_train: Spread | None
    personal_held_out: Spread | None
    oracle: list[float] | None = None
    noise_floor: float | None = None
    distance: float | None = None
    served: list[CenterUsage] | None = None
    yardsticks: list[Yardstick] = field(default_factory=list)
    metrics: dict[str, MetricScores] = field(default_factory=dict)
    clusters: ClusterProfiles | None = None
    prior: PriorSummary | None = None

    @property
    def of_best(self) -> list[float] | None:
        """For each source the metric of the center that serves it best; None without centers."""
        if not self.centers or self.best is None:
            return None
        return [self.centers[s][j] for j, s in enumerate(self.best)]

    @property
    def clients(self) -> int:
        """How many clients have training points."""
        return 0 if self.personal_train is None else self.personal_train.clients

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Scores:
        """Read what `to_dict` gave; raises ValueError for a field that is missing or of another type."""
        return _adapter().validate_python(values)

    def __str__(self) -> str:
        """A few lines for a Python session; the command line has tables."""
        lines = []
        for j, source in enumerate(self.sources if self.centers and self.best else []):
            values = [center[j] for center in self.centers or []]
            known = [("oracle", self.oracle[j] if self.oracle else None), ("noise floor", self.noise_floor)]
            beside = "".join(f", {name} {value:.4g}" for name, value in known if value is not None)
            errors = " ".join(f"{'*' * (s == (self.best or [])[j])}{value:.4g}" for s, value in enumerate(values))
            lines.append(f"{self.metric} of the centers on {source}: {errors} (*: best){beside}")
        for s, use in enumerate(self.served or []):
            own = "" if use.on_own is None else f", {use.on_own:.4g} on those of its own"
            lines.append(f"center {s}: {use.share:.0%} of the points, the largest part of {use.clients} clients; "
                         f"{self.metric} {use.on_all:.4g} on all clients{own}")  # fmt: skip
        for what, spread in (("training", self.personal_train), ("held-out", self.personal_held_out)):
            if spread is not None:
                parts = f"mean {spread.mean:.4g}, median {spread.median:.4g}, worst tenth {spread.worst_decile:.4g}"
                lines.append(f"{self.metric} of personal models on {what} points: {parts} of {spread.clients} clients")
        for name, one in self.metrics.items():
            if (spread := one.held_out or one.train) is not None:
                what = "training" if one.held_out is None else "held-out"
                parts = f"mean {spread.mean:.4g}, worst tenth {spread.worst_decile:.4g}"
                lines.append(f"{name} of personal models on {what} points: {parts} of {spread.clients} clients")
        if self.recovery is not None:
            guess = "" if self.recovery_uniform is None else f", equal shares would give {self.recovery_uniform:.3f}"
            lines.append(f"mean |u - true share| = {self.recovery:.3f}{guess}")
        for yardstick in self.yardsticks:
            if yardstick.held_out is not None:
                lines.append(f"{self.metric} of the {yardstick.name} on held-out points: {yardstick.held_out.mean:.4g}")
        for s, one in enumerate(self.clusters.profiles if self.clusters else []):
            lines.append(f"what tells center {s} apart: {one.told_by()}" if one.told_by() else "")
        lines += self.prior.sentences if self.prior else []
        return "\n".join([*filter(None, lines), *(f"note: {remark.text}" for remark in remarks_on(self))])


@cache
def _adapter() -> TypeAdapter[Scores]:
    return TypeAdapter(Scores)


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
    from scipy.optimize import linear_sum_assignment  # takes half a second to import

    cost = -table if higher_is_better else table
    alignment = cost.argmin(axis=1)
    rows, columns = linear_sum_assignment(cost)
    alignment[rows] = columns
    return alignment.tolist()


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
