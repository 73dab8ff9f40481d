"""A mixture of Gaussians over the models of clients, learned from sums over clients.

    w_k ~ sum_s pi_s N(c_s, Sigma_s)

A client's model w_ks under center s is the mode of its posterior, and V_ks the covariance of that posterior (Laplace).
What a client's points say of its model is one part of it, what they leave to the center the other: of a difference
m_k - c_s between a client's own minimum and the center, w_ks - c_s keeps the share G_ks = I - V_ks Sigma_s^-1.
Plain EM (c_s the mean of w_ks, Sigma_s that of (w_ks - c_s)(w_ks - c_s)' + V_ks) therefore takes small steps where
clients have few points. The steps here have the same fixed points and correct for what the center itself contributed:

    c_s     += [sum_k r_ks G_ks]^-1 sum_k r_ks (w_ks - c_s)
    Sigma_s A_s Sigma_s = C_s,   A_s = Sigma_s^-1 sum_k r_ks G_ks,   C_s = sum_k r_ks d_ks d_ks'

where d_ks are the differences less their mean: a step of a minorization-maximization algorithm for variance components,
whose positive solution is the geometric mean of A_s^-1 and C_s.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsoft.core.batches import Prox

ONE_CLIENT = 1.0  # the weight, in clients, of the variance that was assumed at first
HALF_CLIENT = 0.5  # added to the clients of every center: none dies out for good
FIRM = 1e-3  # share of the clients' information that a step of a center takes for granted, against steps without end


@dataclass(frozen=True)
class Prior:
    """Centers `[S, P]`, covariances `[S, P]` (diagonal) or `[S, P, P]`, and shares of the clients `[S]`."""

    centers: Tensor
    covariance: Tensor
    shares: Tensor

    @property
    def diagonal(self) -> bool:
        """Whether parameters vary on their own."""
        return self.covariance.ndim == self.centers.ndim

    def chosen(self, s: Tensor) -> Prior:
        """Return the one center of each of m clients, with an axis for it: `[m, 1, P]`."""
        return Prior(self.centers[s, None], self.covariance[s, None], self.shares[s, None])

    @property
    def precision(self) -> Tensor:
        """The inverse covariances."""
        return 1 / self.covariance if self.diagonal else torch.linalg.inv(self.covariance)

    def pull(self, weights: Tensor, strength: Tensor) -> Prox:
        """Return `strength_k sum_s weights_ks (w - c_s)' Sigma_s^-1 (w - c_s) / 2` for m clients, weights `[m, S]`."""
        weights, precision = weights * strength[:, None], self.precision
        towards = precision * self.centers if self.diagonal else (precision @ self.centers[:, :, None])[:, :, 0]
        return Prox(torch.tensordot(weights, precision, 1), weights @ towards)

    def energy(self, w: Tensor) -> Tensor:
        """Return `(w_ks - c_s)' Sigma_s^-1 (w_ks - c_s) / 2` of models `w[m, S, P]`."""
        d = w - self.centers
        return (d * self._times(self.precision, d)).sum(2) / 2

    def posterior(self, w: Tensor, gradient: Tensor, curvature: Tensor) -> Posterior:
        """Return the posterior of models near `w[m, S, P]`, from gradient and curvature of their summed losses there.

        Where a local solver stopped short of the minimum, one Newton step is taken on paper: the posterior is that of
        the quadratic that the loss looks like from `w`. So what no point tells stays at the center.
        """
        precision = curvature + self.precision
        covariance = 1 / precision if self.diagonal else torch.linalg.inv(precision)
        slope = gradient + self._times(self.precision, w - self.centers)
        step = self._times(covariance, slope)
        log_volume = -(self._log_det(precision) + self._log_det(self.covariance)) / 2
        return Posterior(w - step - self.centers, covariance, log_volume - self.energy(w) + (step * slope).sum(-1) / 2)

    def log_volume(self, spread: Tensor) -> Tensor:
        """Return `1/2 log |V_ks| / |Sigma_s|` of posterior covariances `[..., S, P(, P)]`."""
        return (self._log_det(spread) - self._log_det(self.covariance)) / 2

    def kept_share(self, spread: Tensor) -> Tensor:
        """Return `sum_p G_pp` of posterior covariances `[..., S, P(, P)]`: how many parameters the points decide."""
        if self.diagonal:
            return (1 - spread * self.precision).sum(-1)
        return self.centers.shape[-1] - (spread * self.precision).sum((-1, -2))

    def _times(self, matrix: Tensor, d: Tensor) -> Tensor:
        return matrix * d if self.diagonal else (matrix @ d[..., None])[..., 0]

    def _log_det(self, matrix: Tensor) -> Tensor:
        return matrix.log().sum(-1) if self.diagonal else torch.linalg.slogdet(matrix)[1]


@dataclass(frozen=True)
class Posterior:
    """Gaussians of m clients under S centers: what their models may be.

    Arguments:
        mean: differences from the centers, `[m, S, P]`.
        covariance: `[m, S, P]` or `[m, S, P, P]`.
        log_evidence: `[m, S]`, but for the log-likelihood at the models themselves.
    """

    mean: Tensor
    covariance: Tensor
    log_evidence: Tensor


@dataclass(frozen=True)
class Sums:
    """What the server learns of clients: sums over them, weighted by r_ks.

    Arguments:
        weight: of r_ks, `[S]`.
        first: of w_ks - c_s, `[S, P]`.
        second: of the products of these differences, `[S, P]` or `[S, P, P]`.
        spread: of V_ks, alike.
    """

    weight: Tensor
    first: Tensor
    second: Tensor
    spread: Tensor

    def times(self, factor: float) -> Sums:
        """Return the sums of more clients of the same kind."""
        return Sums(self.weight * factor, self.first * factor, self.second * factor, self.spread * factor)


def squares(d: Tensor, *, diagonal: bool) -> Tensor:
    """Return the products `d d'` of differences `[..., P]`, or their squares."""
    return d.square() if diagonal else d[..., :, None] * d[..., None, :]


def improved(prior: Prior, sums: Sums, variance: float) -> Prior:
    """Return the next prior. `variance` is what was assumed at first; a center without clients stays as it was."""
    used = sums.weight > 0
    weight = sums.weight.clamp(min=torch.finfo(torch.float64).tiny)
    shares = shares_of(sums.weight)
    mean = sums.first / weight[:, None]
    if prior.diagonal:
        kept = (weight[:, None] - sums.spread / prior.covariance).clamp(min=0)
        step = sums.first / (kept + FIRM * weight[:, None])
        second = sums.second - weight[:, None] * mean.square() + ONE_CLIENT * variance
        covariance = (second * prior.covariance / (kept + ONE_CLIENT)).sqrt()
    else:
        eye = torch.eye(prior.centers.shape[1], dtype=prior.centers.dtype, device=prior.centers.device)
        precision = prior.precision
        kept = weight[:, None, None] * eye - sums.spread @ precision
        step = torch.linalg.solve(kept + FIRM * weight[:, None, None] * eye, sums.first[:, :, None])[:, :, 0]
        second = sums.second - weight[:, None, None] * squares(mean, diagonal=False) + ONE_CLIENT * variance * eye
        covariance = _geometric_mean(precision @ (kept + ONE_CLIENT * eye), second)
    rows = used.view(-1, *[1] * (covariance.ndim - 1))
    return Prior(
        torch.where(used[:, None], prior.centers + step, prior.centers),
        torch.where(rows, covariance, prior.covariance),
        shares,
    )


def shares_of(weight: Tensor) -> Tensor:
    """Return the shares pi of centers from the weights of their clients, `[S]`."""
    return (weight + HALF_CLIENT) / (weight + HALF_CLIENT).sum()


def blended(old: Prior, new: Prior, share: float) -> Prior:
    """Return a prior between both, for rounds in which only a share of the clients takes part."""
    parts = zip((old.centers, old.covariance, old.shares), (new.centers, new.covariance, new.shares), strict=True)
    return Prior(*(torch.lerp(a, b, share) for a, b in parts))


def _geometric_mean(a: Tensor, c: Tensor) -> Tensor:
    """Return the positive X with X A X = C, for positive `a` and `c`, `[S, P, P]`."""
    a = (a + a.mT) / 2
    root = _root(a)
    back = torch.linalg.inv(root)
    found = back @ _root(root @ c @ root) @ back
    return (found + found.mT) / 2


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    floor = values.amax(-1, keepdim=True) * torch.finfo(matrix.dtype).eps
    return vectors @ (torch.maximum(values, floor).sqrt()[..., None] * vectors.mT)
