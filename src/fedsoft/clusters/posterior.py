"""Which center made which point: mixtures, noise scale and intervals from the losses of points under given centers.

Centers stay as they are here, so the likelihood is concave in the mixture and EM finds its only maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsoft.clusters.importance_weights import as_it_is
from fedsoft.core.client_data import ClientData
from fedsoft.core.metrics import squared_loss
from fedsoft.core.site import Site

STEPS, CLOSE = 1000, 1e-7  # EM ends when no share moves by more than this
ROUGH_STEPS, ROUGH = 200, 1e-4  # the same for many clients, where single shares do not matter
HALVINGS = 24  # the ends of an interval are known to 2^-24
TIED = 0.3  # of the largest posterior is nearly as probable
SWEEPS = 10  # of EM, over a client's own shares and scale, in every round of training


def log_density(losses: Tensor, s2: float | None, outputs: int = 1) -> Tensor:
    """Return the log-likelihood `[points, S]` of points under centers, from their losses, in float64.

    A loss is taken as -log p; squared loss with `s2` as a Gaussian of that variance in every output.
    """
    if s2 is None:
        return -losses.double()
    return -losses.double() / (2 * s2) - outputs / 2 * math.log(2 * math.pi * s2)


def posterior(losses: Tensor, prior: Tensor, s2: Tensor | float = 0.5) -> Tensor:
    """Return q_i(s) proportional to prior_s exp(-loss_s(i) / (2 s2)), from `losses` and `prior`, both `[points, S]`.

    s2 = 1/2 takes the loss as a negative log-likelihood. For squared loss s2 is the variance of the noise.
    """
    tiny = torch.finfo(losses.dtype).tiny
    # One center of every point has 0 here and a finite logarithm of its prior, however small the prior or s2 is.
    beyond = (losses - losses.amin(1, keepdim=True)) / (2 * s2)
    return torch.softmax(prior.clamp(min=tiny).log() - beyond, dim=1)


def summed_outputs(site: Site) -> int:
    """Return how many outputs the loss of a point is a sum over: 1 unless it is squared."""
    return site.data.y[:1].numel() if site.model.loss is squared_loss else 1


def draw_ties(site: Site, q: Tensor) -> Tensor:
    """Draw a center for each point among the most probable one and those nearly as probable."""
    drawn = site.generators("ties").random_each(site.data.sizes.cpu().numpy(), q.shape[1])
    chance = torch.as_tensor(drawn, device=q.device)
    return torch.where(q >= TIED * q.amax(1, keepdim=True), chance, -1.0).argmax(1)


def soft_weights(
    losses: Tensor, data: ClientData, sigma: float, outputs: int | None, sweeps: int = SWEEPS,
    hidden: Callable[[Tensor], Tensor] = as_it_is,
) -> Tensor:  # fmt: skip
    """Return u_ks = max(mean_i q_i(s), sigma), with q and the prior u_k from a few sweeps of EM.

    Shares start uniform. For squared loss over `outputs` every client also estimates the variance of its noise: first
    the mean of the smallest losses, then the expectation under q. Without `outputs` losses are taken as they are.
    `hidden` may add noise to the shares of every sweep: the next one sees only the noisy shares.
    """
    owners, tiny = data.owners, torch.finfo(losses.dtype).tiny
    u = losses.new_full((len(data), losses.shape[1]), 1 / losses.shape[1])
    s2 = losses.new_full((len(data),), 0.5)
    if outputs is not None:
        s2 = (data.mean_by_client(losses.amin(1)) / outputs).clamp(min=tiny)
    for _ in range(sweeps):
        q = posterior(losses, u[owners], s2[owners, None])
        u = hidden(data.mean_by_client(q))
        if outputs is not None:
            s2 = (data.mean_by_client((q * losses).sum(1)) / outputs).clamp(min=tiny)
    return u.clamp(min=sigma)


def mixtures(logp: Tensor, data: ClientData, *, rough: bool = False) -> Tensor:
    """Return the maximum-likelihood mixture of every client, `[m, S]`, by EM from uniform shares."""
    u = logp.new_full((len(data), logp.shape[1]), 1 / logp.shape[1])
    for _ in range(ROUGH_STEPS if rough else STEPS):
        before, u = u, data.mean_by_client(posterior(-logp, u[data.owners]))
        if not float((u - before).abs().nan_to_num().max()) > (ROUGH if rough else CLOSE):
            break
    return u


def noise_scale(losses: Tensor, data: ClientData, outputs: int = 1) -> float:
    """Estimate the variance s2 of squared losses, one for all clients and centers, with their mixtures by EM.

    It starts from the smallest loss of every point, which is too small, and grows until points are shared.
    """
    squares = losses.double()
    floor = torch.finfo(torch.float32).tiny
    s2 = max(float(squares.amin(1).mean()) / outputs, floor)
    u = squares.new_full((len(data), squares.shape[1]), 1 / squares.shape[1])
    for _ in range(ROUGH_STEPS):
        before, q = s2, posterior(squares, u[data.owners], s2)
        u = data.mean_by_client(q)
        s2 = max(float((q * squares).sum(1).mean()) / outputs, floor)
        if abs(s2 - before) <= ROUGH * before:
            break
    return s2


@dataclass(frozen=True)
class Interval:
    """A range for each share, `[S]`."""

    low: Tensor
    high: Tensor


def interval(logp: Tensor, u: Tensor, level: float) -> Interval:
    """Return the profile-likelihood interval of every share of one client with maximum-likelihood mixture `u[S]`.

    A value of a share is inside if, with the best choice of the other shares, the likelihood of the points is at least
    exp(-quantile / 2) times that under `u`, with the quantile of chi-squared with one degree of freedom. The fewer
    points, the wider the interval, up to 0 to 1.

    For a small share and few points that is too short: no point of a center among 20 would rule out a share of 0.07.
    So the interval is extended to cover the one with two additional points, one of the center and one of another (as
    Agresti and Coull do for a binomial proportion).
    """
    from scipy.special import chdtri

    count = len(u)
    if count == 1:
        return Interval(u, u)
    p = (logp - logp.amax(1, keepdim=True)).exp()  # the largest of every point is 1
    drop = float(chdtri(1, 1 - level)) / 2
    asked, others = torch.arange(count), _others(u, torch.arange(count))
    low, high = _span(p, asked, u, others, drop, more=0)
    peak = _peak(p, asked, others)
    with_two = _span(p, asked, peak, others, drop, more=1)
    return Interval(torch.minimum(low, with_two[0]), torch.maximum(high, with_two[1]))


def _height(p: Tensor, asked: Tensor, value: Tensor, others: Tensor, more: int) -> tuple[Tensor, Tensor]:
    """Return `_profile` with `more` additional points of the center in question, and as many of others."""
    height, others = _profile(p, asked, value, others)
    return height + more * (value.log() + (1 - value).log()) if more else height, others


def _peak(p: Tensor, asked: Tensor, others: Tensor) -> Tensor:
    """Find the maximum of `_height`, `[b]`, by ternary search: it is concave."""
    low, high = torch.zeros(len(asked), dtype=p.dtype), torch.ones(len(asked), dtype=p.dtype)
    for _ in range(HALVINGS):
        third = (high - low) / 3
        left, others = _height(p, asked, low + third, others, 1)
        right, others = _height(p, asked, high - third, others, 1)
        low, high = torch.where(left < right, low + third, low), torch.where(left < right, high, high - third)
    return (low + high) / 2


def _span(p: Tensor, asked: Tensor, peak: Tensor, others: Tensor, drop: float, more: int) -> tuple[Tensor, Tensor]:
    """Return the range in which the log-likelihood stays within `drop` of its peak."""
    asked, inside, others = asked.repeat(2), peak.repeat(2), others.repeat(2, 1)  # the lower ends, then the upper ones
    outside = torch.cat([torch.zeros_like(peak), torch.ones_like(peak)])
    least = _height(p, asked, inside, others, more)[0] - drop
    inside = torch.where(_height(p, asked, outside, others, more)[0] >= least, outside, inside)
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        height, others = _height(p, asked, middle, others, more)
        inside, outside = torch.where(height >= least, middle, inside), torch.where(height >= least, outside, middle)
    return inside[: len(peak)], inside[len(peak) :]


def _log_likelihood(p: Tensor, u: Tensor) -> Tensor:
    """Return the log-likelihood of all points under each of the mixtures `u[b, S]`."""
    return (u @ p.T).clamp(min=torch.finfo(p.dtype).tiny).log().sum(1)


def _others(u: Tensor, asked: Tensor) -> Tensor:
    """Return how the centers other than the one in question share the rest, all above 0, `[b, S]`."""
    shares = (u.expand(len(asked), -1) + 1e-3).scatter(1, asked[:, None], 0.0)
    return shares / shares.sum(1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)


def _profile(p: Tensor, asked: Tensor, value: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest log-likelihood with share `asked[b]` at `value[b]`, and how the others then share the rest."""
    rows = asked[:, None]
    for _ in range(STEPS if p.shape[1] > 2 else 1):
        u = ((1 - value[:, None]) * others).scatter(1, rows, value[:, None])
        given = u * ((1 / (u @ p.T).clamp(min=torch.finfo(p.dtype).tiny)) @ p)  # sum_i q_i(s)
        taken = given.scatter(1, rows, 0.0)
        total = taken.sum(1, keepdim=True)
        before, others = others, torch.where(total > 0, taken / total.clamp(min=torch.finfo(p.dtype).tiny), others)
        if not float((others - before).abs().max()) > 1e-6:
            break
    u = ((1 - value[:, None]) * others).scatter(1, rows, value[:, None])
    return _log_likelihood(p, u), others
