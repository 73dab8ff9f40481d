"""Tastes and sources side by side: two priors of S centers each, learned from clients that are partly of either kind.

Rows of tastes come first: where something has 2 S rows, the last S are those of sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.laplace import shares_of_points, unit, variance_of
from fedsoft.clusters.learned_prior import HALF_CLIENT, Prior, Sums, blended, improved
from fedsoft.core.replies import Answer, ClientState, Reply
from fedsoft.core.site import Site

FLOOR = 0.05  # least share of all clients for either level: the one that is behind keeps being trained


def prior_of(named: Mapping[str, Tensor]) -> Prior:
    """Return tastes and sources as one prior of 2 S centers, in float64."""
    return Prior(named["models"].double(), named["covariance"].double(), named["shares"].double())


def counted(p: Tensor, opened: Tensor) -> Tensor:
    """Return how probable sources are, `p` if both levels are open."""
    return torch.where(opened.bool().all(), p, opened[1].to(p))


def levels(p: Tensor, rho: Tensor, opened: Tensor) -> Tensor:
    """Return the weights `[m, 2]` of clients for tastes and sources: by `p[m]`, and some for a level that has none.

    If one level is closed the other one has all clients.
    """
    least = (FLOOR - torch.stack([1 - rho, rho])).clamp(min=0)
    weights = torch.stack([1 - p, p], 1) * (1 - least.sum()) + least
    return torch.where(opened.bool() & ~opened.bool().all(), 1.0, weights)


def summed(answer: Answer, name: str, *, due: bool) -> Tensor:
    """Return sums over clients, `[2 S, ...]`; between estimations they sent S rows of the kind that they drew."""
    if due:
        return answer[name].weighted(torch.ones(1, len(answer.ids), dtype=torch.float64))[0]
    return answer[name].weighted(answer["level"].gather().T.double()).flatten(0, 1)


def next_levels(old: Prior, answer: Answer, clients: int, variances: tuple[float, float], *, due: bool) -> Prior:
    """Return both priors after what clients told, of so many; `variances` are what was assumed at first."""
    sums = [summed(answer, name, due=due) for name in ("weight", "first", "second", "spread")]
    everybody = torch.ones(1, len(answer.ids), dtype=torch.float64)
    level, S, parts = answer["level"].weighted(everybody)[0], len(old.centers) // 2, []
    for one, rows in enumerate((slice(0, S), slice(S, None))):
        before = Prior(old.centers[rows], old.covariance[rows], old.shares[rows])
        # As if all clients were of this kind, and as far as they took part.
        scale = clients / float(level[one].clamp(min=torch.finfo(torch.float32).tiny))
        after = improved(before, Sums(*(each[rows] for each in sums)).times(scale), variances[one])
        parts.append(blended(before, after, (len(answer.ids) if due else float(level[one])) / clients))
    return Prior(*(torch.cat(each) for each in zip(*((p.centers, p.covariance, p.shares) for p in parts), strict=True)))


def noise_of(answer: Answer, old: Tensor, *, due: bool) -> Tensor:
    """Return the variance of the noise: squared errors over the points that decide no parameter, as the better kind.

    Were it larger for the kind that is behind, which has clients of the other kind in part, that kind would fit nobody.
    """
    noise = summed(answer, "noise", due=due).view(2, -1, 3).sum(1)
    return torch.where(noise[:, 1] > 0, variance_of(noise), old.double()).amin().expand(2)


def kinds_of(answer: Answer, numbers: int, points: int) -> dict[str, Tensor]:
    """Return the share of clients that have sources, and which kinds add enough to the evidence of all to be open.

    A kind is open if it adds what BIC charges for `numbers` that are learned from so many points; the better one is.
    """
    everybody = torch.ones(1, len(answer.ids), dtype=torch.float64)
    rho = (answer["p"].weighted(everybody)[0] + HALF_CLIENT) / (len(answer.ids) + 2 * HALF_CLIENT)
    gain = answer["gain"].weighted(everybody)[0]
    return {"rho": rho, "open": (gain > numbers / 2 * math.log(points)) | (gain == gain.max())}


def units(site: Site, shared: Reply) -> Tensor:
    """Return `[m, 2]`, by which losses are divided to be negative log-likelihoods of tastes, and of sources."""
    kinds = zip(shared["s2"], shared["models"].chunk(2), strict=True)
    return torch.stack([unit(site, s2, centers) for s2, centers in kinds], 1)


def routed(site: Site, mine: ClientState, shared: Reply) -> tuple[Tensor, Tensor]:
    """Return where the client's models start `[m, 2 S, P]`, and how probable each source is for each point."""
    tastes, own = mine["w"].chunk(2, 1)
    sources = shared["models"].chunk(2)[1].expand(len(site), -1, -1)
    own = torch.where(mine["fresh"][:, None, None], sources, own)
    q = shares_of_points(site, own, mine["u"], units(site, shared)[:, 1])
    return torch.cat([tastes, own], 1), q


def drawn(site: Site, mine: ClientState, shared: Reply, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw 1 `[m]` for clients with sources and 0 for a taste, the models `[m, S]` used, and that of each point."""
    chance = torch.as_tensor(site.generators("kind").random(2), device=q.device)
    p, rho = (counted(value.double(), shared["open"]) for value in (mine["p"], shared["rho"]))
    kind, last = (chance[:, 0] < levels(p, rho, torch.ones_like(shared["open"]))[:, 1]).long(), q.shape[1] - 1
    taste = (mine["r"].double().cumsum(1) < chance[:, 1:]).sum(1).clamp(max=last)
    each = torch.as_tensor(site.generators("sources").random_each(site.data.sizes.cpu().numpy(), 1), device=q.device)
    source = (q.cumsum(1) < each).sum(1).clamp(max=last)
    used = torch.where(kind[:, None] == 1, 1.0, one_hot(taste, q.shape[1]).double())
    return kind, used, torch.where(kind[site.data.owners] == 1, source, taste[site.data.owners])
