"""What a cluster is: whose it is, and which inputs and predictions tell its center from the others."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsoft.clusters.variation import EACH
from fedsoft.core.client_data import ClientData
from fedsoft.core.federation import Columns, Federation
from fedsoft.core.local_solve import evaluation_block
from fedsoft.core.metrics import cross_entropy, squared_loss
from fedsoft.core.model import Model
from fedsoft.evaluation.values import ClassLean, ClusterProfile, ClusterProfiles, Effect
from fedsoft.evaluation.variance_table import parameter_names

MOST_POINTS = 2048  # at which centers are compared, evenly from those of all clients
MOST_CENTERS = 64  # that are compared
MEMBERS = 3  # clients that are named as typical
MOST_CLASSES = 100  # with more, single ones are not named
CONSTANT = 1e-4  # as a share of its size: what varies less is rounding


def cluster_profiles(model: Model, centers: Tensor, u: Tensor, federation: Federation) -> ClusterProfiles | None:
    """Compare centers that clients with mixtures `u[N, S]` use, at points of these clients.

    None where there is nothing to compare: a single center or very many, no points here, or a loss of a user's own.
    """
    data = federation.held_out if len(federation.held_out.y) else federation.train
    if not 1 < len(centers) <= MOST_CENTERS or not len(data.y) or model.loss not in (cross_entropy, squared_loss):
        return None
    x, y = _some_points(model, data, centers)
    mixture = (u / u.sum(1, keepdim=True)).double().cpu()
    shares = mixture.mean(0)
    outputs = _outputs(model, centers, x)
    predictions = model.predict(outputs).double().cpu().reshape(*outputs.shape[:2], -1)
    together = torch.tensordot(shares, predictions, 1)
    far = _apart(model, predictions, [*predictions, together], y)
    effects, classes = _effects(model, centers, shares, x, outputs, federation.columns), [[] for _ in centers]
    if model.loss is cross_entropy and predictions.shape[2] <= MOST_CLASSES:
        names = federation.columns.outcomes or federation.columns.classes
        classes = [_leans(own - together, names) for own in predictions]
    main = mixture.argmax(1)
    members = [_members(mixture[:, s], main == s, federation) for s in range(len(centers))]
    profiles = [
        ClusterProfile(
            share=float(shares[s]), clients=int((main == s).sum()), members=members[s],
            apart=far[s][-1], effects=effects[s], classes=classes[s],
        )
        for s in range(len(centers))
    ]  # fmt: skip
    return ClusterProfiles(profiles, [row[:-1] for row in far])


def _some_points(model: Model, data: ClientData, like: Tensor) -> tuple[Tensor, Tensor]:
    places = data.points
    if len(places) > MOST_POINTS:
        places = places[torch.linspace(0, len(places) - 1, MOST_POINTS).long()]
    return model.inputs(data.x[places].to(like.device), like.dtype), data.y[places].cpu()


def _outputs(model: Model, w: Tensor, x: Tensor) -> Tensor:
    """Return the outputs `[models, points, ...]` of models `w[models, P]` at the same points."""
    parts = x.split(evaluation_block(x, len(w)))
    return torch.cat([model.outputs(w, part.expand(len(w), *part.shape)) for part in parts], 1)


def _apart(model: Model, predictions: Tensor, others: list[Tensor], y: Tensor) -> list[list[float | None]]:
    """Return how far each prediction is from each of the others."""
    if model.loss is cross_entropy:
        taken = predictions.argmax(2)
        return [[float((own != other.argmax(1)).double().mean()) for other in others] for own in taken]
    y = y.double().reshape(len(y), -1)
    scale = y.std(0, correction=0).mean().clamp(min=torch.finfo(torch.float32).tiny)
    return [[float((own - other).square().mean().sqrt() / scale) for other in others] for own in predictions]


def _effects(
    model: Model, centers: Tensor, shares: Tensor, x: Tensor, outputs: Tensor, columns: Columns
) -> list[list[Effect]]:
    """Return the effects of each center's weights; none for models that are large, or not linear in them."""
    none: list[list[Effect]] = [[] for _ in centers]
    if model.size > EACH:
        return none
    mean = (shares.to(centers) @ centers)[None]
    base, blend = _outputs(model, mean, x), torch.tensordot(shares.to(outputs), outputs, 1)
    if not torch.allclose(base[0], blend, rtol=1e-3, atol=1e-3 * float(outputs.std())):
        return none
    steps = _outputs(model, mean + torch.eye(model.size, dtype=mean.dtype, device=mean.device), x) - base
    spread = torch.stack([_spread(step.double().cpu().reshape(len(step), -1)) for step in steps])
    names, weights = parameter_names(model.layout, columns), centers.double().cpu()
    far = (weights - shares @ weights) * spread
    found = [
        [Effect(*one) for one in zip(names, own.tolist(), effect.tolist(), strict=True)]
        for own, effect in zip(weights, far, strict=True)
    ]
    return [sorted(row, key=lambda one: -abs(one.effect)) for row in found]


def _spread(step: Tensor) -> Tensor:
    """Return the standard deviation with which a weight moves outputs, from its steps `[points, outputs]`.

    What moves all outputs of a point alike changes no odds. A constant, such as a bias, counts as it is.
    """
    touched = step.abs().amax(0) > 0
    own = step[:, touched]
    if own.shape[1] > 1:
        return (own - own.mean(1, keepdim=True)).square().mean().sqrt()
    if not own.numel():
        return step.new_zeros(())
    spread, size = own.std(correction=0), own.abs().mean()
    return spread if spread > CONSTANT * size else size


def _leans(apart: Tensor, names: tuple[str, ...] | None) -> list[ClassLean]:
    """Return the classes by how much more often they are predicted, from differences `[points, classes]`."""
    more = apart.mean(0).tolist()
    named = names if names and len(names) == len(more) else tuple(map(str, range(len(more))))
    return sorted((ClassLean(*one) for one in zip(named, more, strict=True)), key=lambda one: -abs(one.more))


def _members(share: Tensor, main: Tensor, federation: Federation) -> list[str]:
    """Return the clients with the largest share, of equal ones those with the most points."""
    sizes, own = federation.train.sizes.tolist(), torch.nonzero(main)[:, 0].tolist()
    order = sorted(own, key=lambda k: (-round(float(share[k]), 3), -sizes[k], k))
    return [federation.names[k] for k in order[:MEMBERS]]
