"""Where the differences between clients lie, and the evidence, against closed forms of linear clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.clusters.evidence import Evidence
from fedsoft.clusters.learned_prior import Prior
from fedsoft.clusters.variation import EACH, differences, groups_of, numbers_of
from fedsoft.core.model import Layout
from tests.helpers import Pairs, fitted, regression_clients


def prior(diagonal: bool = False) -> Prior:
    width = torch.tensor([[1.0, 4.0], [2.0, 0.5]], dtype=torch.float64)
    both = width if diagonal else torch.diag_embed(width) + 0.3 * (1 - torch.eye(2, dtype=torch.float64))
    centers = torch.tensor([[0.0, 2.0], [4.0, -1.0]], dtype=torch.float64)
    return Prior(centers, both, torch.tensor([0.25, 0.75], dtype=torch.float64))


def test_by_hand() -> None:
    """One client whose points bend its loss by (2, 6), and who belongs to the second center."""
    own, bend = prior(diagonal=True), torch.tensor([2.0, 6.0], dtype=torch.float64)
    spread = 1 / (bend + own.precision)[None]
    rows = differences(own, spread, torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.arange(2))[0]
    between = torch.tensor([0.25 * 9 + 0.75 * 1, 0.25 * 2.25**2 + 0.75 * 0.75**2]).double()
    within, noise = torch.tensor([2.0, 0.5]).double(), torch.tensor([1 / (2 + 1 / 2), 1 / (6 + 2)]).double()
    for column, width in enumerate((between, within, noise)):
        assert torch.allclose(rows[:2, column], bend * width / 2)
        assert float(rows[2, column]) == pytest.approx(float((bend * width).sum()) / 2)


def test_parameters_that_vary_together_are_traces() -> None:
    own, rng = prior(), torch.Generator().manual_seed(0)
    root = torch.randn(5, 2, 2, 2, generator=rng, dtype=torch.float64)
    bend = root @ root.mT
    r = torch.rand(5, 2, generator=rng, dtype=torch.float64)
    r = r / r.sum(1, keepdim=True)
    spread = torch.linalg.inv(bend + own.precision)
    found = differences(own, spread, r, torch.arange(2))
    apart = own.centers - own.shares @ own.centers
    between = torch.stack([own.shares[s] * torch.outer(apart[s], apart[s]) for s in range(2)]).sum(0).expand(2, 2, 2)
    for k in range(5):
        for column, widths in enumerate((between, own.covariance, spread[k])):
            wanted = sum(r[k, s] * torch.trace(bend[k, s] @ widths[s]) for s in range(2)) / 2
            assert float(found[k, 2, column]) == pytest.approx(float(wanted))
    assert bool((found[:, :, 2] <= found[:, :, 1] + 1e-12).all())  # noise is a part of what lies within


def test_rows_are_parameters_or_tensors() -> None:
    assert groups_of(Layout({"weight": (2, 3), "bias": (2,)})).tolist() == list(range(8))
    large = groups_of(Layout({"weight": (EACH, 3), "bias": (EACH,)}))
    assert large.bincount().tolist() == [3 * EACH, EACH]


def test_numbers_of_a_prior() -> None:
    assert numbers_of(prior()) == 2 * (2 + 3) + 1
    assert numbers_of(prior(diagonal=True)) == 2 * (2 + 2) + 1
    assert Evidence(log=-50.0, points=10, clients=5, numbers=10).charged == pytest.approx(-6.0)


# --- simulated clients ------------------------------------------------------------------------------------------------


def people(ways: np.ndarray, clients: int, points: int = 10, spread: float = 0.4, seed: int = 0) -> Pairs:
    """Clients with one way each, near one of these, and noise of variance 1."""
    rng, pairs = np.random.default_rng(seed), []
    for k in range(clients):
        own = ways[k % len(ways)] + spread * rng.standard_normal(ways.shape[1])
        x = rng.standard_normal((points, ways.shape[1]))
        pairs.append((torch.from_numpy(x), torch.from_numpy(x @ own + rng.standard_normal(points))))
    return pairs


WAYS = np.array([[3.0, -2.0], [-3.0, -1.0], [0.5, 4.0]])


def test_known_variances_are_found_again() -> None:
    """For linear models a difference d costs d' E[x x'] d in mean squared error."""
    spread, ways = 0.5, np.array([[3.0, -2.0], [-3.0, 2.0]])
    pairs = people(ways, clients=100, spread=spread)
    record = fitted(fs.FedPrior(S=2), pairs, 9, seed=1).history[-1]
    rows = np.array(record.variation)
    second = np.mean([(x.T @ x / len(x)).numpy() for x, _ in pairs], axis=0)
    half = (ways[0] - ways[1]) / 2
    assert rows[:2, 0] == pytest.approx(half**2 * second.diagonal(), rel=0.1)
    assert rows[2, 0] == pytest.approx(half @ second @ half, rel=0.1)
    assert rows[2, 1] == pytest.approx(spread**2 * second.trace(), rel=0.3)
    dark = [torch.trace(x.T @ x @ torch.linalg.inv(x.T @ x + torch.eye(2) / spread**2)) / len(x) for x, _ in pairs]
    assert rows[2, 2] == pytest.approx(np.mean(dark), rel=0.15)


def test_the_evidence_of_linear_clients_is_the_marginal_likelihood() -> None:
    """N(y; X c, s2 I + X X' spread^2), summed over clients."""
    pairs, spread = regression_clients((6, 9, 5)), 0.8
    run = fitted(fs.FedPrior(S=1, spread=spread, learn=False, tau=1), pairs, 1)
    c = fitted(fs.FedPrior(S=1), pairs, 0).state.centers[0]
    wanted = 0.0
    for x, y in pairs:
        whole = 0.5 * torch.eye(len(y)) + spread**2 * x @ x.T  # a loss as it is: s2 = 1/2
        wanted += float(torch.distributions.MultivariateNormal(x @ c, whole.double()).log_prob(y))
    evidence = run.history[0].evidence
    assert evidence is not None
    assert evidence.log == pytest.approx(wanted)
    assert evidence.points == 20
    assert evidence.clients == 3


def charged(pairs: Pairs, S: int, rounds: int) -> float:
    history = fitted(fs.FedPrior(S=S), pairs, rounds, seed=1).history
    return [one.evidence.charged for one in history if one.evidence][-1]


def test_evidence_prefers_the_two_centers_that_there_are() -> None:
    pairs = people(WAYS[:2], clients=30)
    one, two, three = (charged(pairs, S, rounds=11) for S in (1, 2, 3))
    assert two > one
    assert two > three


@pytest.mark.slow
@pytest.mark.parametrize("true", [1, 2, 3])
def test_evidence_is_highest_at_the_true_number_of_centers(true: int) -> None:
    pairs = people(WAYS[:true], clients=40, points=12)
    found = {S: charged(pairs, S, rounds=30) for S in (1, 2, 3, 4)}
    assert max(found, key=found.__getitem__) == true, found
