"""FedSoft beyond the paper: shared points, unmixed centers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.clusters.averaging import unmix
from fedsoft.clusters.posterior import SWEEPS, posterior, soft_weights
from fedsoft.core.client_data import ClientData
from fedsoft.errors import InputError
from tests.helpers import RAGGED, Held, class_clients, fitted, regression_clients

# --- weights = soft ---------------------------------------------------------------------------------------------------


def test_a_posterior_by_hand() -> None:
    q = posterior(torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[0.25, 0.75]]).double())
    a, b = 0.25 * np.exp(-1), 0.75 * np.exp(-2)
    assert q[0].tolist() == pytest.approx([a / (a + b), b / (a + b)])
    # A squared loss of noise of variance 2 counts a quarter of itself.
    q = posterior(torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[0.5, 0.5]]).double(), 2.0)
    assert float(q[0, 0]) == pytest.approx(1 / (1 + np.exp(-0.25)))


def test_a_posterior_is_finite_for_any_losses() -> None:
    losses = torch.tensor([[1e30, 0.0], [1e30, 1e30]])
    q = posterior(losses, torch.tensor([[0.0, 1.0]] * 2), 1e-30)
    assert torch.allclose(q, torch.tensor([[0.0, 1.0], [0.0, 1.0]]))


def plain_sweeps(losses: np.ndarray, squared: bool, sigma: float) -> list[float]:
    """The shares of one client, point by point."""
    n, S = losses.shape
    u = [1 / S] * S
    s2 = sum(min(row) for row in losses) / n if squared else 0.5
    for _ in range(SWEEPS):
        q = []
        for row in losses:
            p = [u[s] * np.exp(-row[s] / (2 * s2)) for s in range(S)]
            q.append([value / sum(p) for value in p])
        u = [sum(q[i][s] for i in range(n)) / n for s in range(S)]
        if squared:
            s2 = sum(q[i][s] * losses[i, s] for i in range(n) for s in range(S)) / n
    return [max(share, sigma) for share in u]


@pytest.mark.parametrize("squared", [True, False])
def test_soft_weights_are_the_plain_loop(squared: bool) -> None:
    losses = np.random.default_rng(0).exponential(1.0, (sum(RAGGED), 3))
    data = ClientData.concat([(torch.zeros(n, 1), torch.zeros(n)) for n in RAGGED])
    found = soft_weights(torch.from_numpy(losses), data, 1e-4, 1 if squared else None)
    begin = 0
    for k, n in enumerate(RAGGED):
        assert found[k].tolist() == pytest.approx(plain_sweeps(losses[begin : begin + n], squared, 1e-4), abs=1e-9)
        begin += n


def test_a_run_estimates_by_the_losses_of_its_centers() -> None:
    pairs = regression_clients()
    c = fitted(fs.FedSoft(S=2), pairs, 0).state.centers.numpy()
    run = fitted(fs.FedSoft(S=2, weights="soft"), pairs, 1)
    for k, (x, y) in enumerate(pairs):
        losses = np.array([(y.numpy() - x.numpy() @ c[s]) ** 2 for s in range(2)]).T
        assert run.state.u[k].tolist() == pytest.approx(plain_sweeps(losses, True, 1e-4), abs=1e-9)


def test_classes_need_no_scale() -> None:
    run = fitted(fs.FedSoft(S=2, weights="soft"), class_clients(), 2, fs.SGD(epochs=1), model=fs.models.mlp(hidden=[4]))
    assert torch.allclose(run.state.u.sum(1), torch.ones(8).double(), atol=1e-3)
    assert 0.01 < float(run.state.u.min())


def test_hard_weights_err_where_centers_are_near_and_soft_ones_less() -> None:
    """One feature, sources y = 2x and y = -2x, a tenth of the points from the second, noise 1."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4000)
    y = np.where(rng.random(4000) < 0.1, -2, 2) * x + rng.standard_normal(4000)
    losses = torch.from_numpy(np.stack([(y - 2 * x) ** 2, (y + 2 * x) ** 2], 1))
    data = ClientData.concat([(torch.from_numpy(x)[:, None], torch.from_numpy(y))])
    soft = float(soft_weights(losses, data, 1e-4, 1)[0, 1])
    hard = float((losses[:, 1] < losses[:, 0]).double().mean())
    assert abs(soft - 0.1) < 0.02
    assert abs(hard - 0.1) > 0.08


# --- aggregate = unmix ------------------------------------------------------------------------------------------------


def mixed(lam: float, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Clients whose own minima are mixtures of theta, and their proximal solutions under wrong centers."""
    rng = np.random.default_rng(seed)
    theta, old = (torch.from_numpy(rng.standard_normal((3, 5))) for _ in range(2))
    u = torch.from_numpy(rng.dirichlet(np.ones(3), 12))
    h, n = torch.from_numpy(rng.uniform(0.5, 4, 12)), torch.from_numpy(rng.integers(5, 50, 12))
    w = (h[:, None] * (u @ theta) + lam * (u @ old)) / (h + lam * u.sum(1))[:, None]
    return theta, old, u, h, n, w


@pytest.mark.parametrize("lam", [0.0, 0.3, 5.0])
def test_unmixing_finds_the_sources_behind_proximal_solutions(lam: float) -> None:
    theta, old, u, h, n, w = mixed(lam)
    found = unmix(Held(w), u, n, h, lam, old, ridge=0.0)
    assert torch.allclose(found, theta, atol=1e-8)
    # The published rule would give means that are far from them.
    v = (u * n[:, None]).T
    assert float((v @ w / v.sum(1, keepdim=True) - theta).abs().max()) > 0.3


def test_with_ridge_it_is_least_squares_with_further_rows() -> None:
    theta, old, u, h, n, w = mixed(0.7)
    w = w + 0.1 * torch.from_numpy(np.random.default_rng(5).standard_normal(w.shape))
    m = w + (0.7 / h)[:, None] * sum(u[:, s, None] * (w - old[s]) for s in range(3))
    root = n.double().sqrt()[:, None]
    ridge = 0.1 * float(((u * n[:, None]).T @ u).diagonal().mean())
    a = torch.cat([root * u, ridge**0.5 * torch.eye(3).double()])
    b = torch.cat([root * m, ridge**0.5 * old])
    expected = torch.linalg.lstsq(a, b).solution
    assert torch.allclose(unmix(Held(w), u, n, h, 0.7, old, ridge=0.1), expected, atol=1e-8)
    assert float((expected - theta).abs().max()) < 1


def test_centers_that_cannot_be_told_apart_stay_apart_as_they_were() -> None:
    """Everybody has even shares: only the mean of the centers is known, the ridge leaves their difference."""
    old = torch.tensor([[1.0], [-1.0]]).double()
    u, n = torch.full((4, 2), 0.5).double(), torch.ones(4)
    w = torch.full((4, 1), 3.0).double()
    found = unmix(Held(w), u, n, torch.full((4,), 2.0), 0.0, old, ridge=1e-6)
    assert found.flatten().tolist() == pytest.approx([4.0, 2.0], abs=1e-4)


def test_without_answers_unmixed_centers_stay() -> None:
    old = torch.ones(2, 3)
    assert torch.equal(unmix(Held(old[:0]), old[:0, :2], old[:0, 0], old[:0, 0], 1.0, old, 1e-3), old)


def test_a_round_of_a_run_is_unmixed() -> None:
    pairs, lam = regression_clients(), 0.8
    before, run = (
        fitted(fs.FedSoft(S=2), pairs, 0),
        fitted(fs.FedSoft(S=2, K="all", lam=lam, aggregate="unmix"), pairs, 1),
    )
    c, u = before.state.centers, run.state.u
    h = torch.tensor([float(2 * x.square().mean()) for x, _ in pairs]).double()
    expected = unmix(Held(run.engine.client_states["w"]), u, torch.tensor(RAGGED), h, lam, c, 1e-3)
    assert torch.allclose(run.state.centers, expected, atol=1e-9)
    published = fitted(fs.FedSoft(S=2, K="all", lam=lam), pairs, 1)
    assert torch.equal(run.engine.client_states["w"], published.engine.client_states["w"])  # same client work
    assert [r.gradients for r in run.history] == [r.gradients for r in published.history]


def test_networks_cannot_be_unmixed() -> None:
    with pytest.raises(InputError, match=r"FedSoft\.aggregate = 'unmix' is not allowed for this model.*'mean'"):
        fitted(
            fs.FedSoft(S=2, aggregate="unmix"),
            regression_clients(),
            1,
            fs.SGD(epochs=1),
            model=fs.models.mlp(hidden=[4]),
        )
    with pytest.raises(InputError, match=r"FedSoft\.aggregate"):
        fitted(fs.FedSoft(S=2, aggregate="unmix"), class_clients(), 1, fs.SGD(epochs=1))


def test_soft_and_unmixed_from_the_corners_reaches_the_noise_floor() -> None:
    fed = fs.datasets.synthetic(partition="linear", clients=40, seed=0)
    errors = {}
    options: list[dict[str, Any]] = [{}, {"weights": "soft", "aggregate": "unmix", "first": "simplex"}]
    for settings in options:
        run = fs.fit(fs.FedSoft(S=2, **settings), fed, fs.models.linear(), rounds=12, solver=fs.Exact())
        scores = run.scores()
        errors[len(settings)] = max(np.min(scores.centers or [], axis=0))
        if settings:
            assert scores.recovery is not None
            assert scores.recovery < 0.02
    assert errors[3] < 1.4  # the noise alone is 1
    assert errors[0] > 10
