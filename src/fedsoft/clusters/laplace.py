"""What clients find out under a prior: their models, how uncertain those are, and how well the prior explains them.

Points may count in part: `q[points, J]` holds the share with which each of them belongs to each of J models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.learned_prior import Posterior, Prior, squares
from fedsoft.clusters.posterior import summed_outputs
from fedsoft.core.batches import Prox
from fedsoft.core.local_solve import FirstOrder
from fedsoft.core.metrics import binary_cross_entropy, squared_loss
from fedsoft.core.replies import ClientState, Reply
from fedsoft.core.site import Site

MOST_TASKS, RESTS = 20, 1e-3  # a new client solves so often at most, until no parameter moves by more than this share
STIFF = 1.0  # of a pull on the mean loss of a client's points: the strongest that first-order solvers are given
UNIFORM = 1.0  # the parameter of the Dirichlet distribution of a client's shares: all mixtures are equally probable


Estimate = Callable[[Site, ClientState, Reply], tuple[ClientState, Reply]]
"""A job that solves under a prior from models `w[m, J, P]` that clients keep."""


@dataclass(frozen=True)
class Fit:
    """J models of each of m clients: negative log-likelihoods `[m, J]` at them, the posterior around them, points."""

    loss: Tensor
    posterior: Posterior
    points: Tensor

    @property
    def evidence(self) -> Tensor:
        """The log-probability `[m, J]` of the points under each prior (Laplace)."""
        return self.posterior.log_evidence - self.loss


def unit(site: Site, s2: Tensor, centers: Tensor) -> Tensor:
    """Return `[m]`, by which losses are divided to be negative log-likelihoods: 2 s2 for squared loss."""
    if site.model.loss is binary_cross_entropy:  # the mean over labels
        return torch.full((len(site),), 1 / site.data.y[:1].numel(), dtype=torch.float64, device=site.data.x.device)
    s2 = s2.double().expand(len(site))
    if bool((s2 > 0).all()):
        return 2 * s2
    # Not known yet: as if all centers explained nothing, so that they share all clients at first.
    first = site.data.mean_by_client(site.losses(centers).double().mean(1))
    return 2 * first.clamp(min=torch.finfo(torch.float32).tiny) / summed_outputs(site)


def own_pull(site: Site, prior: Prior, j: Tensor, strength: Tensor) -> tuple[Prox, Tensor]:
    """Return the pull of prior `j[m]` on each client, `strength[m]` times as hard, and for whom it is the whole pull.

    Steps along gradients overshoot where a pull is stiff, and narrow priors make stiff pulls. So first-order solvers
    are given one of at most STIFF, and what is missing of it is made up for by the Newton step of the posterior.
    """
    pull = prior.pull(one_hot(j, len(prior.centers)).double(), strength)
    stiff = pull.strength if prior.diagonal else pull.strength.diagonal(dim1=1, dim2=2)
    share = torch.ones_like(strength)
    if isinstance(site.solver, FirstOrder):
        share = (STIFF / stiff.amax(1)).clamp(max=1)
    weak = Prox(pull.strength * share.view(-1, *[1] * (pull.strength.ndim - 1)), pull.target * share[:, None])
    return Prox(weak.strength.to(site.dtype), weak.target.to(site.dtype)), share == 1


def kept_models(prior: Prior, found: Posterior, w: Tensor, whole: Tensor) -> Tensor:
    """Return what clients keep: models `w[m, J, P]` where their solver felt the `whole[m, J]` pull, else the mean."""
    return torch.where(whole[:, :, None], w, (prior.centers + found.mean).to(w.dtype))


def fit(site: Site, prior: Prior, w: Tensor, scale: Tensor, q: Tensor | None = None) -> Fit:
    """Return what models `w[m, J, P]` are worth, with losses in units of `scale[m, J]`."""
    sizes, each = site.data.sizes, 1 / scale
    shares = [None] * w.shape[1] if q is None else [one.contiguous() for one in q.to(w.dtype).unbind(1)]
    losses, slopes, bends, points = [], [], [], []
    for one, share in zip(w.unbind(1), shares, strict=True):
        loss = site.point_losses(one).double()
        losses.append(_total(site, loss if share is None else loss * share))
        points.append(sizes.double() if share is None else _total(site, share.double()))
        slopes.append(site.gradient(one, share).double() * sizes[:, None])
        bends.append(site.curvature(one, diagonal=prior.diagonal, point_weights=share).double())
    bend = torch.stack(bends, 1)
    found = prior.posterior(
        w.double(), torch.stack(slopes, 1) * each[:, :, None], bend * each.view(*each.shape, *[1] * (bend.ndim - 2))
    )
    loss, points = torch.stack(losses, 1) * each, torch.stack(points, 1)
    if site.model.loss is squared_loss:  # a Gaussian has to be normalized where noises of two sizes compete
        loss = loss + points * summed_outputs(site) / 2 * (torch.pi * scale).log()
    return Fit(loss, found, points)


def statistics(prior: Prior, found: Posterior, weight: Tensor) -> Reply:
    """Return what the server sums: models as seen from their centers, squared, and uncertain, times `weight[m, J]`."""
    d, spread = found.mean, found.covariance
    wide = weight.view(*weight.shape, *[1] * (spread.ndim - 2))
    return {
        "weight": weight, "first": weight[:, :, None] * d, "second": wide * squares(d, diagonal=prior.diagonal),
        "spread": wide * spread,
    }  # fmt: skip


def noise(site: Site, prior: Prior, found: Fit, weight: Tensor, scale: Tensor) -> Tensor:
    """Return `[m, J, 3]` for squared loss: errors, points and parameters that these decide, times `weight[m, J]`."""
    outputs = summed_outputs(site)
    errors = (found.loss - found.points * outputs / 2 * (torch.pi * scale).log()) * scale / outputs
    decided = prior.kept_share(found.posterior.covariance) / outputs
    return torch.stack([weight * one for one in (errors, found.points, decided)], 2)


def variance_of(noise: Tensor) -> Tensor:
    """Return the variance `[...]` that follows from sums `[..., 3]` of `noise`."""
    errors, points, decided = noise.unbind(-1)
    tiny = torch.finfo(torch.float32).tiny
    return (errors / torch.maximum(points - decided, points / 10).clamp(min=tiny)).clamp(min=tiny)


def shares_of_points(site: Site, w: Tensor, u: Tensor, scale: Tensor) -> Tensor:
    """Return how probable each of the client's models `w[m, S, P]` is for each point, `[points, S]`.

    `u[m, S]` is the mean of the client's shares after n points, whose Dirichlet distribution is taken into account.
    """
    owners, S = site.data.owners, w.shape[1]
    counts = u.double() * (site.data.sizes[:, None] + S * UNIFORM)
    losses = torch.stack([site.point_losses(one) for one in w.unbind(1)], 1).double()
    return (counts.digamma()[owners] - losses / scale[owners, None]).softmax(1)


def mixture_evidence(site: Site, q: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability `[m]` of all points under S sources, and the mean shares `[m, S]`.

    Arguments:
        q: how probable each source is for each point, `[points, S]`.
        found: the evidence of each source from its part of the points, `[m, S]`.
    """
    n, S = site.data.sizes.double(), q.shape[1]
    counts, total = _total(site, q), torch.full_like(n, S * UNIFORM)
    each = (counts + UNIFORM).lgamma() - math.lgamma(UNIFORM)
    prior = total.lgamma() - (total + n).lgamma() + each.sum(1)  # of counts, all mixtures being equally probable
    entropy = -_total(site, torch.special.xlogy(q, q).sum(1))
    return found.sum(1) + entropy + prior, (counts + UNIFORM) / (total + n)[:, None]


def settled(estimate: Estimate, site: Site, mine: ClientState, shared: Reply) -> ClientState:
    """Repeat a job with shared models as they are, until the client's own models `w` rest."""
    for task in range(MOST_TASKS):
        before, (mine, _) = mine["w"], estimate(replace(site, t=task), mine, shared)
        if bool(((mine["w"] - before).abs() <= RESTS * (1 + before.abs())).all()):
            break
    return mine


def _total(site: Site, values: Tensor) -> Tensor:
    """Return sums over each client's points; 0 for a client without points."""
    return values.new_zeros((len(site), *values.shape[1:])).index_add_(0, site.data.owners, values)
