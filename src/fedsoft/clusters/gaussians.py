"""A mixture of Gaussians over the inputs of all clients, fitted from sums, and shares of models that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsoft.clusters.ensemble import added
from fedsoft.core.model import as_numbers
from fedsoft.core.replies import Reply
from fedsoft.core.site import Site
from fedsoft.errors import InputError
from fedsoft.seeds import generator

RIDGE = 1e-3  # of the mean variance of all points, added to every variance: no component may shrink to a point


def projection(inputs: Tensor, dimension: int, seed: int) -> Tensor:
    """Draw orthonormal directions `[inputs, dimension]`, the same for everybody; all of them where there are few."""
    if inputs.is_floating_point() or inputs.dtype == torch.uint8:
        size = math.prod(inputs.shape[1:])
        if size <= dimension:
            return torch.eye(size, dtype=torch.float64, device=inputs.device)
        drawn = generator(seed, "projection").standard_normal((size, dimension))
        return torch.from_numpy(np.linalg.qr(drawn)[0]).to(inputs.device)
    raise InputError("Gaussians over inputs need inputs that are numbers: this data has tokens or several inputs")


def projected(x: Tensor, directions: Tensor) -> Tensor:
    """Return inputs `[points, ...]` along the directions, in float64."""
    return as_numbers(x, torch.float64).flatten(1) @ directions


@dataclass(frozen=True)
class Gaussians:
    """G components, `means[G, d]` and `covariances[G, d, d]`."""

    means: Tensor
    covariances: Tensor

    def log_density(self, z: Tensor) -> Tensor:
        """Return the logarithm of each density at each point, `[points, G]`."""
        lower = torch.linalg.cholesky(self.covariances)
        away = torch.linalg.solve_triangular(lower, (z - self.means[:, None]).mT, upper=False)  # [G, d, points]
        size = z.shape[1] * math.log(2 * math.pi) + 2 * lower.diagonal(dim1=1, dim2=2).log().sum(1)
        return -(away.square().sum(1) + size[:, None]).T / 2

    def improved(self, n: Tensor, first: Tensor, second: Tensor) -> Gaussians:
        """Return the maximum of the likelihood, from sums over all points: `n[G]`, `[G, d]`, `[G, d, d]`.

        A component without points stays as it was.
        """
        tiny, used = torch.finfo(torch.float64).tiny, n > 0
        mean, found = _moments(n.clamp(min=tiny), first, second)
        _, overall = _moments(n.sum().clamp(min=tiny), first.sum(0), second.sum(0))
        floor = RIDGE * overall.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
        found = found + floor * torch.eye(found.shape[-1], dtype=found.dtype, device=found.device)
        return Gaussians(
            torch.where(used[:, None], mean, self.means), torch.where(used[:, None, None], found, self.covariances)
        )

    def spread(self, rng: np.random.Generator, count: int) -> Gaussians:
        """Return `count` components of the first one's covariance, at points drawn from it."""
        lower = torch.linalg.cholesky(self.covariances[0])
        drawn = torch.from_numpy(rng.standard_normal((count, len(lower)))).to(lower)
        return Gaussians(self.means[0] + drawn @ lower.T, self.covariances[:1].repeat(count, 1, 1))


def _moments(n: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return means `[..., d]` and covariances `[..., d, d]` from sums."""
    mean = first / n[..., None]
    found = second / n[..., None, None] - mean[..., :, None] * mean[..., None, :]
    return mean, (found + found.mT) / 2


def input_sums(site: Site, z: Tensor, q: Tensor) -> Reply:
    """Return sums over each client's points of q, q z and q z z', for shares `q[points, G]`.

    Sums that rest on fewer points than may be sent are 0.
    """
    data, n = site.data, site.data.sizes.double()

    def total(values: Tensor) -> Tensor:
        return data.mean_by_client(values) * n.view(-1, *[1] * (values.ndim - 1))

    first = q[:, :, None] * z[:, None, :]
    found = {"n": total(q), "first": total(first), "second": total(first[:, :, :, None] * z[:, None, None, :])}
    few = found["n"].square() / total(q.square()).clamp(min=torch.finfo(torch.float64).tiny) < site.least_points - 0.5
    return {
        name: value.masked_fill(few.view(*few.shape, *[1] * (value.ndim - 2)), 0.0) for name, value in found.items()
    }


@dataclass(frozen=True)
class InputShares:
    """Shares of models that depend on the input: p_k(s | x) ~ sum_g pi_kgs N(x; mu_g, Sigma_g). See `contract.Gate`.

    Arguments:
        gaussians: over inputs along `directions`.
        pi: shares of component and model of m clients, `[m, G, S]`.
    """

    gaussians: Gaussians
    directions: Tensor
    pi: Tensor

    def shares(self, x: Tensor, owners: Tensor) -> Tensor:
        """Return the shares of inputs `x[points, ...]` of the clients `owners[points]`, `[points, S]`."""
        log = self.gaussians.log_density(projected(x, self.directions))
        near = (log - log.amax(1, keepdim=True)).exp()
        found = torch.einsum("ng,ngs->ns", near, self.pi.double()[owners])
        total = found.sum(1, keepdim=True)
        even = self.pi.double().sum(1)[owners]
        return torch.where(total > 0, found / total.clamp(min=torch.finfo(torch.float64).tiny), even)

    def combined(self, x: Tensor, owners: Tensor, each: Tensor) -> Tensor:
        """Add up the predictions `each[J, points, ...]` by these shares."""
        return added(self.shares(x, owners).to(each), each)

    def row(self, k: int) -> InputShares:
        """Return the gate of one client alone."""
        return InputShares(self.gaussians, self.directions, self.pi[k : k + 1])
