"""One Gaussian for all clients, learned beside several: centers that nobody needs should cost nothing.

Where clients are all alike, several centers divide them by chance, and each is learned from a part of them. So every
estimation also asks how probable a client's points are under one prior for everybody, with no further task: from the
quadratic that its loss looks like around the best of its models. If several centers explain all clients by less than
one for each number that they consist of (Akaike's correction) better than that, clients predict under the one prior.

Widths are not counted among these numbers: they are not free, but held by what was assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedsoft.clusters.laplace import Fit, fit, statistics
from fedsoft.clusters.learned_prior import Posterior, Prior, Sums, blended, improved
from fedsoft.core.replies import Answer, Reply
from fedsoft.core.site import Site

NARROW = 0.1  # a width that is assumed where clients may be all alike, as a share of that of tastes
STEPS = 3  # of Newton on paper, counted with the look at where they begin


def begun(c: Tensor, width: Tensor) -> dict[str, Tensor]:
    """Return the one prior before the first round, at the first center and narrow: it widens faster than it narrows."""
    return {"one": c[:1].clone(), "one_covariance": width[:1] * NARROW**2, "merged": c.new_zeros(())}


def one_of(extra: Mapping[str, Tensor]) -> Prior:
    """Return the one prior of a state, or of what clients received, in float64."""
    center = extra["one"].double()
    return Prior(center, extra["one_covariance"].double(), center.new_ones(1))


def told(site: Site, shared: Reply, w: Tensor, scale: Tensor) -> tuple[Tensor, Reply]:
    """Return models `[m, P]` under the one prior, from clients' best `w[m, P]`, and what the server sums of them."""
    prior = one_of(shared)
    w, found = _fitted(site, prior, w[:, None], scale[:, None])
    # At the models themselves: what the quadratic promises beyond them may be far from what the loss does there.
    height = found.loss + prior.energy(w.double())
    there = replace(found.posterior, mean=w.double() - prior.centers)
    sums = statistics(prior, there, torch.ones_like(found.loss))
    reply = {f"one_{name}": sums[name][:, 0] for name in ("first", "second", "spread")}
    evidence = prior.log_volume(there.covariance) - height
    return w[:, 0], {"one_evidence": evidence[:, 0], **reply}


def _fitted(site: Site, prior: Prior, w: Tensor, scale: Tensor) -> tuple[Tensor, Fit]:
    """Take Newton's steps from `w[m, 1, P]`, none that makes it worse; return models and the fit there."""
    found = fit(site, prior, w, scale)
    for _ in range(STEPS - 1):
        near = (prior.centers + found.posterior.mean).to(w.dtype)
        further = fit(site, prior, near, scale)
        better = further.loss + prior.energy(near.double()) <= found.loss + prior.energy(w.double())
        w = torch.where(better[:, :, None], near, w)
        found = _either(better, further, found)
    return w, found


def _either(first: Tensor, one: Fit, two: Fit) -> Fit:
    """Return the one fit for clients `first[m, 1]`, the other for the rest."""

    def of(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(first.view(*first.shape, *[1] * (a.ndim - 2)), a, b)

    both = zip(_parts(one.posterior), _parts(two.posterior), strict=True)
    return Fit(of(one.loss, two.loss), Posterior(*(of(a, b) for a, b in both)), of(one.points, two.points))


def _parts(found: Posterior) -> tuple[Tensor, Tensor, Tensor]:
    return found.mean, found.covariance, found.log_evidence


def learned(extra: Mapping[str, Tensor], answer: Answer, clients: int, spread: float) -> dict[str, Tensor]:
    """Return the one prior, improved by what clients told, of which there are so many."""
    everybody, share = torch.ones(1, len(answer.ids), dtype=torch.float64), len(answer.ids) / clients
    parts = [answer[f"one_{name}"].weighted(everybody) for name in ("first", "second", "spread")]
    sums = Sums(everybody.sum(1), *parts).times(1 / share)
    old = one_of(extra)
    new = blended(old, improved(old, sums, (NARROW * spread) ** 2), share)
    return {"one": new.centers, "one_covariance": new.covariance}


def explained(answer: Answer) -> float:
    """Return the log evidence of all clients under the one prior."""
    return float(answer["one_evidence"].weighted(torch.ones(1, len(answer.ids), dtype=torch.float64))[0])


def merged(evidence: float, one: float, S: int, size: int) -> bool:
    """Return whether S centers of this log evidence are not worth what they consist of, beside `one`."""
    return evidence - (S - 1) * (size + 1) < one
