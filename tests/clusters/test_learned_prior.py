"""The prior against closed forms: a Gaussian model of Gaussian clients, whose likelihood can be written down."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from fedsoft.clusters.learned_prior import FIRM, ONE_CLIENT, Prior, Sums, improved, squares

CLIENTS, SIZE = 60, 3


class Gaussian:
    """Clients whose points say N(own minimum, curvature^-1) of their models, around one center."""

    def __init__(self, seed: int = 0, known: float = 1.0) -> None:
        rng = torch.Generator().manual_seed(seed)
        root = torch.randn(SIZE, SIZE, generator=rng, dtype=torch.float64)
        self.covariance = root @ root.T + 0.3 * torch.eye(SIZE)
        self.center = torch.randn(SIZE, generator=rng, dtype=torch.float64)
        turn = torch.randn(CLIENTS, SIZE, SIZE, generator=rng, dtype=torch.float64)
        self.curvature = known * (turn @ turn.mT / SIZE + 0.05 * torch.eye(SIZE))
        noise = torch.linalg.cholesky(self.covariance + torch.linalg.inv(self.curvature))
        drawn = torch.randn(CLIENTS, SIZE, 1, generator=rng, dtype=torch.float64)
        self.minimum = self.center + (noise @ drawn)[:, :, 0]

    def sums(self, prior: Prior) -> Sums:
        """What the clients send under this prior, from anywhere: here, from 0."""
        at = torch.zeros(CLIENTS, 1, SIZE, dtype=torch.float64)
        gradient = -(self.curvature @ self.minimum[:, :, None])[:, None, :, 0]
        bend = self.curvature.diagonal(dim1=1, dim2=2) if prior.diagonal else self.curvature
        found = prior.posterior(at, gradient, bend[:, None])
        parts = (found.mean, squares(found.mean, diagonal=prior.diagonal), found.covariance)
        return Sums(torch.tensor([float(CLIENTS)], dtype=torch.float64), *(part.sum(0) for part in parts))

    def log_likelihood(self, center: Tensor, covariance: Tensor) -> Tensor:
        """Of the clients' minima, N(center, covariance + curvature^-1), less the parts that do not depend on these."""
        whole = covariance + torch.linalg.inv(self.curvature)
        d = self.minimum - center
        fit = (d * torch.linalg.solve(whole, d[:, :, None])[:, :, 0]).sum(1)
        return -(torch.linalg.slogdet(whole)[1] + fit).sum() / 2


def start(diagonal: bool = False) -> Prior:
    width = torch.ones(1, SIZE, dtype=torch.float64)
    shares = torch.ones(1, dtype=torch.float64)
    return Prior(torch.zeros(1, SIZE, dtype=torch.float64), width if diagonal else torch.diag_embed(width), shares)


def iterated(clients: Gaussian, prior: Prior, steps: int) -> Prior:
    for _ in range(steps):
        prior = improved(prior, clients.sums(prior), variance=1.0)
    return prior


def test_it_ends_where_the_marginal_likelihood_is_largest() -> None:
    clients = Gaussian()
    found = iterated(clients, start(), 400)
    center, covariance = found.centers[0].requires_grad_(), found.covariance[0].requires_grad_()
    # What was assumed at first counts as much as one client whose model is known.
    assumed = -ONE_CLIENT / 2 * (torch.linalg.slogdet(covariance)[1] + torch.trace(torch.linalg.inv(covariance)))
    (clients.log_likelihood(center, covariance) + assumed).backward()
    assert center.grad is not None
    assert covariance.grad is not None
    assert center.grad.abs().max() < 1e-6
    assert covariance.grad.abs().max() < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_the_likelihood_never_falls_by_much_on_the_way(seed: int) -> None:
    clients, prior = Gaussian(seed), start()
    heights = []
    for _ in range(30):
        heights.append(float(clients.log_likelihood(prior.centers[0], prior.covariance[0])))
        prior = iterated(clients, prior, 1)
    assert all(later >= earlier - 0.5 for earlier, later in itertools.pairwise(heights))
    assert heights[-1] > heights[0]


def test_it_is_several_times_as_fast_as_plain_expectation_maximization() -> None:
    clients, plain = Gaussian(known=0.05), start()
    for _ in range(20):
        sums = clients.sums(plain)
        mean = sums.first / sums.weight[:, None]
        second = sums.second + sums.spread - sums.weight[:, None, None] * squares(mean, diagonal=False)
        plain = Prior(plain.centers + mean, (second + torch.eye(SIZE)) / (sums.weight[:, None, None] + 1), plain.shares)
    best = iterated(clients, start(), 400)
    quick = iterated(clients, start(), 5)

    def short(prior: Prior) -> float:
        one, other = (clients.log_likelihood(p.centers[0], p.covariance[0]) for p in (best, prior))
        return float(one - other)

    assert short(quick) < short(plain)


def test_without_the_uncertainty_of_clients_the_width_collapses() -> None:
    """Models that are pulled to the center look alike; taken at their word they pull each other ever closer."""
    clients, prior = Gaussian(known=0.05), start()
    for _ in range(200):
        sums = clients.sums(prior)
        blind = Sums(sums.weight, sums.first, sums.second, torch.zeros_like(sums.spread))
        prior = improved(prior, blind, variance=1e-12)
    assert float(prior.covariance.diagonal(dim1=1, dim2=2).max()) < 1e-6
    assert float(iterated(clients, start(), 200).covariance.diagonal(dim1=1, dim2=2).min()) > 0.1


def test_the_evidence_of_gaussian_clients_is_exact() -> None:
    clients, prior = Gaussian(), iterated(Gaussian(), start(), 3)
    at = torch.randn(CLIENTS, 1, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slope = (clients.curvature @ (at[:, 0] - clients.minimum)[:, :, None])[:, None, :, 0]
    loss = ((at[:, 0] - clients.minimum) * slope[:, 0]).sum(1, keepdim=True) / 2
    found = prior.posterior(at, slope, clients.curvature[:, None]).log_evidence - loss
    whole = prior.covariance + torch.linalg.inv(clients.curvature)
    d = clients.minimum - prior.centers
    wanted = -((d * torch.linalg.solve(whole, d[:, :, None])[:, :, 0]).sum(1) + torch.linalg.slogdet(whole)[1]) / 2
    wanted -= torch.linalg.slogdet(clients.curvature)[1] / 2  # the volume that the points themselves leave
    assert torch.allclose(found[:, 0], wanted, atol=1e-9)


def test_a_diagonal_prior_is_a_full_one_whose_parameters_vary_on_their_own() -> None:
    clients = Gaussian()
    clients.curvature = torch.diag_embed(clients.curvature.diagonal(dim1=1, dim2=2))
    one = improved(start(diagonal=True), clients.sums(start(diagonal=True)), 1.0)
    other = improved(start(), clients.sums(start()), 1.0)
    assert torch.allclose(one.centers, other.centers)
    assert one.covariance.shape == (1, SIZE)
    assert clients.sums(one).first.shape == clients.sums(other).first.shape


def test_by_hand() -> None:
    """One parameter, two clients: one that knows its model well, and one that knows half."""
    prior = Prior(torch.zeros(1, 1).double(), torch.full((1, 1), 4.0).double(), torch.ones(1).double())
    sums = Sums(torch.tensor([2.0]), torch.tensor([[3.0]]), torch.tensor([[5.0]]), torch.tensor([[2.0]]))
    sums = Sums(*(part.double() for part in (sums.weight, sums.first, sums.second, sums.spread)))
    found = improved(prior, sums, variance=1.0)
    kept = 2 - 2 / 4
    assert float(found.centers) == pytest.approx(3 / (kept + 2 * FIRM))
    assert float(found.covariance) == pytest.approx(math.sqrt((5 - 9 / 2 + 1) * 4 / (kept + 1)))
    assert float(found.shares) == 1.0


def test_a_center_without_clients_stays() -> None:
    prior = Prior(torch.ones(2, SIZE).double(), torch.ones(2, SIZE).double(), torch.tensor([0.5, 0.5]).double())
    sums = Sums(torch.tensor([0.0, 4.0]).double(), *(torch.ones(2, SIZE).double() for _ in range(3)))
    found = improved(prior, sums, 1.0)
    assert torch.equal(found.centers[0], prior.centers[0])
    assert torch.equal(found.covariance[0], prior.covariance[0])
    assert 0 < float(found.shares[0]) < float(found.shares[1])
