from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedsoft as fs
from fedsoft.clusters.laplace import STIFF, fit, mixture_evidence, own_pull, shares_of_points
from fedsoft.clusters.learned_prior import Prior
from fedsoft.core.local_solve import Solver, Work
from fedsoft.core.site import Site
from tests.helpers import federation, regression_clients


def site_of(sizes: tuple[int, ...], solver: Solver | None = None) -> Site:
    fed = federation(regression_clients(sizes))
    model, data = fs.models.linear()(fed.shape), fed.train.to("cpu", torch.float64)
    return Site(model, data, solver or fs.Exact(), list(fed.names), 0, 0, torch.float64, work=Work.none(len(sizes)))


def exact(logp: Tensor) -> float:
    """log p(points) of one client, over all ways to share them out among the sources; shares integrated over."""
    n, S = logp.shape
    total = []
    for z in itertools.product(range(S), repeat=n):
        counts = [z.count(s) for s in range(S)]
        prior = math.lgamma(S) - math.lgamma(S + n) + sum(math.lgamma(count + 1) for count in counts)
        total.append(prior + sum(float(logp[i, s]) for i, s in enumerate(z)))
    return float(torch.tensor(total, dtype=torch.float64).logsumexp(0))


FIVE = site_of((5,))


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_the_evidence_of_a_mixture_is_never_above_the_truth(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logp = torch.from_numpy(3 * rng.standard_normal((5, 2)))
    q = torch.from_numpy(rng.dirichlet(np.ones(2), 5))
    found, u = mixture_evidence(FIVE, q, (q * logp).sum(0)[None])
    assert float(found) <= exact(logp) + 1e-9
    assert u[0].tolist() == pytest.approx(((q.sum(0) + 1) / 7).tolist())


def test_the_evidence_of_a_mixture_is_the_truth_where_sources_are_sure() -> None:
    """Three points of one source and two of the other: all shares equally probable, B(4, 3) of them fit."""
    logp = torch.tensor([[0.0, -50.0]] * 3 + [[-50.0, 0.0]] * 2).double()
    q = logp.softmax(1)
    found, _ = mixture_evidence(FIVE, q, (q * logp).sum(0)[None])
    assert float(found) == pytest.approx(math.log(math.gamma(4) * math.gamma(3) / math.gamma(7)), abs=1e-9)
    assert float(found) == pytest.approx(exact(logp), abs=1e-9)


def test_the_evidence_of_a_taste_is_that_of_gaussian_regression() -> None:
    """For squared loss Laplace is exact: y is Gaussian with covariance s2 I + X Sigma X'."""
    site, s2 = site_of((6, 9)), 0.7
    prior = Prior(torch.ones(1, 3).double(), 0.5 * torch.eye(3).double()[None], torch.ones(1).double())
    found = fit(site, prior, torch.zeros(2, 1, 3).double(), torch.full((2, 1), 2 * s2).double())
    for k in range(2):
        x, y = site.data.client(k)
        spread = s2 * torch.eye(len(y)).double() + 0.5 * x @ x.T
        wanted = torch.distributions.MultivariateNormal(x.sum(1), spread).log_prob(y)
        assert float(found.evidence[k, 0]) == pytest.approx(float(wanted))


def test_points_that_count_half_are_half_the_evidence_of_data() -> None:
    site = site_of((6, 9))
    prior = Prior(torch.zeros(1, 3).double(), torch.eye(3).double()[None], torch.ones(1).double())
    w, scale = torch.zeros(2, 1, 3).double(), torch.ones(2, 1).double()
    whole, half = (fit(site, prior, w, scale, torch.full((15, 1), q).double()) for q in (1.0, 0.5))
    assert torch.allclose(half.loss, whole.loss / 2)
    assert half.points[:, 0].tolist() == [3, 4.5]


def test_shares_of_points_follow_losses_and_counts() -> None:
    site = site_of((4,))
    w = torch.stack([torch.zeros(3), torch.ones(3)])[None].double()
    x, y = site.data.client(0)
    u = torch.tensor([[0.75, 0.25]]).double()
    q = shares_of_points(site, w, u, torch.tensor([0.8]).double())
    losses = torch.stack([y**2, (x.sum(1) - y) ** 2], 1)
    wanted = (torch.digamma(u * 6) - losses / 0.8).softmax(1)
    assert torch.allclose(q, wanted)


def test_first_order_solvers_are_given_no_stiff_pull() -> None:
    prior = Prior(torch.ones(2, 3).double(), torch.tensor([[1.0] * 3, [1e-4] * 3]).double(), torch.ones(2).double() / 2)
    j, strength = torch.tensor([0, 1]), torch.full((2,), 0.5).double()
    pull, whole = own_pull(site_of((6, 9), fs.SGD()), prior, j, strength)
    assert whole.tolist() == [True, False]
    assert pull.strength.amax(1).tolist() == pytest.approx([0.5, STIFF])
    assert torch.allclose(pull.target, pull.strength)  # towards the centers, which are all ones
    pull, whole = own_pull(site_of((6, 9)), prior, j, strength)
    assert whole.all()
    assert pull.strength.amax(1).tolist() == pytest.approx([0.5, 5000])


def test_a_site_in_parts_works_on_each_part_alone() -> None:
    site = site_of((4, 5))
    part = torch.tensor([0, 1, 0, 1, 1, 1, 1, 1, 1])
    wide = site.parts(part, 2)
    assert wide.data.sizes.tolist() == [2, 2, 0, 5]
    w = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    x, y = site.data.client(0)
    mine = part[:4] == 1
    wanted = 2 * (x[mine] @ w[1] - y[mine]) @ x[mine] / 2
    assert torch.allclose(wide.gradient(w)[1], wanted)
    assert torch.equal(wide.gradient(w)[2], torch.zeros(3).double())
    site.count_parts(wide)
    assert site.work.gradients.tolist() == [8, 10]  # two gradients of every point
