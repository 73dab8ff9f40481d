"""Which center made which point: mixtures, noise scale and intervals from the losses of points under given centers.

Centers stay as they are here, so the likelihood is concave in the mixture and EM finds its only maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsoft.centers.mixing import as_it_is
from fedsoft.clientdata import ClientData

STEPS, CLOSE = 1000, 1e-7  # EM ends when no share moves by more than this
ROUGH_STEPS, ROUGH = 200, 1e-4  # the same where many clients are looked at, and nobody reads a single share
HALVINGS = 24  # an end of an interval is known to 2^-24
SWEEPS = 10  # of EM, over a client's own shares and scale, in every round of training


def log_density(losses: Tensor, s2: float | None, outputs: int = 1) -> Tensor:
    """The log-likelihood `[points, S]` of points under centers, from their losses, in float64.

    A loss is taken for -log p as it is; squared loss with `s2` for a Gaussian of that variance in every output.
    """
    if s2 is None:
        return -losses.double()
    return -losses.double() / (2 * s2) - outputs / 2 * math.log(2 * math.pi * s2)


def posterior(losses: Tensor, prior: Tensor, s2: Tensor | float = 0.5) -> Tensor:
    """q_i(s) in proportion to prior_s exp(-loss_s(i) / (2 s2)), from `losses[points, S]` and a `prior` of that form.

    s2 = 1/2 takes the loss as it is: the negative logarithm of a likelihood. For squared loss it is the variance of
    the noise.
    """
    tiny = torch.finfo(losses.dtype).tiny
    # One center of every point has 0 here and a finite logarithm beside it, however small the prior or s2 became.
    beyond = (losses - losses.amin(1, keepdim=True)) / (2 * s2)
    return torch.softmax(prior.clamp(min=tiny).log() - beyond, dim=1)


def soft_weights(
    losses: Tensor, data: ClientData, sigma: float, outputs: int | None, sweeps: int = SWEEPS,
    hidden: Callable[[Tensor, int], Tensor] = as_it_is,
) -> Tensor:  # fmt: skip
    """u_ks = max(mean_i q_i(s), sigma), q and the prior u_k learnt from each other in a few sweeps of EM.

    They start at even shares. For squared loss of so many `outputs` every client finds the variance of its noise beside
    them: the mean of the smallest losses at first, then of those that q expects. Without `outputs` losses are taken as
    they are. `hidden` may put noise on the shares of every sweep: the next one sees only those.
    """
    owners, tiny = data.owners, torch.finfo(losses.dtype).tiny
    u = losses.new_full((len(data), losses.shape[1]), 1 / losses.shape[1])
    s2 = losses.new_full((len(data),), 0.5)
    if outputs is not None:
        s2 = (data.mean_by_client(losses.amin(1)) / outputs).clamp(min=tiny)
    for sweep in range(sweeps):
        q = posterior(losses, u[owners], s2[owners, None])
        u = hidden(data.mean_by_client(q), sweep)
        if outputs is not None:
            s2 = (data.mean_by_client((q * losses).sum(1)) / outputs).clamp(min=tiny)
    return u.clamp(min=sigma)


def mixtures(logp: Tensor, data: ClientData, *, rough: bool = False) -> Tensor:
    """The mixture of every client under which its points are most likely, `[m, S]`, by EM from equal shares."""
    u = logp.new_full((len(data), logp.shape[1]), 1 / logp.shape[1])
    for _ in range(ROUGH_STEPS if rough else STEPS):
        before, u = u, data.mean_by_client(posterior(-logp, u[data.owners]))
        if not float((u - before).abs().nan_to_num().max()) > (ROUGH if rough else CLOSE):
            break
    return u


def noise_scale(losses: Tensor, data: ClientData, outputs: int = 1) -> float:
    """The variance s2 that squared losses tell of, one for all clients and centers, with their mixtures by EM.

    It starts from the smallest loss of every point: too small, so that it grows to where points are shared.
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
    """From where to where each share `[S]` may be."""

    low: Tensor
    high: Tensor


def interval(logp: Tensor, u: Tensor, level: float) -> Interval:
    """The profile-likelihood interval of every share of one client whose likeliest mixture is `u[S]`.

    A value of a share is inside when the points are, with the best choice of the other shares, less likely than under
    `u` by no more than a factor exp(-quantile / 2), the quantile being that of chi-squared with one degree of freedom.
    Few points tell few values apart, so it widens as they become few, up to 0 to 1.

    Where a share is small and points are few that is too short: no point of a center in 20 would rule out a share of
    0.07. So the interval is widened to hold also the one that two further points give, one of the center and one of
    another (as Agresti and Coull do for a binomial share).
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
    """See `_profile`, with so many further points of the center that is asked about, and of any other."""
    height, others = _profile(p, asked, value, others)
    return height + more * (value.log() + (1 - value).log()) if more else height, others


def _peak(p: Tensor, asked: Tensor, others: Tensor) -> Tensor:
    """Where that is largest, `[b]`, by ternary search: it is concave."""
    low, high = torch.zeros(len(asked), dtype=p.dtype), torch.ones(len(asked), dtype=p.dtype)
    for _ in range(HALVINGS):
        third = (high - low) / 3
        left, others = _height(p, asked, low + third, others, 1)
        right, others = _height(p, asked, high - third, others, 1)
        low, high = torch.where(left < right, low + third, low), torch.where(left < right, high, high - third)
    return (low + high) / 2


def _span(p: Tensor, asked: Tensor, peak: Tensor, others: Tensor, drop: float, more: int) -> tuple[Tensor, Tensor]:
    """From where to where the log-likelihood stays within `drop` of its peak."""
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
    """Of all points under each of the mixtures `u[b, S]`."""
    return (u @ p.T).clamp(min=torch.finfo(p.dtype).tiny).log().sum(1)


def _others(u: Tensor, asked: Tensor) -> Tensor:
    """How the centers besides the one that is asked about share what it leaves, all above 0, `[b, S]`."""
    shares = (u.expand(len(asked), -1) + 1e-3).scatter(1, asked[:, None], 0.0)
    return shares / shares.sum(1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)


def _profile(p: Tensor, asked: Tensor, value: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The largest log-likelihood with share `asked[b]` at `value[b]`, and how the others share the rest then."""
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
