from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.clusters.gaussians import RIDGE, Gaussians, InputShares, projection
from fedsoft.core.client_draws import Draws
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import drawn, sgd
from tests.helpers import RAGGED, Pairs, class_clients, engine_for, federation, fitted, played, regression_clients

SGD = fs.SGD(lr=0.02, epochs=2, batch=5)


def density(x: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    away = x - mean
    size = np.sqrt(np.linalg.det(2 * np.pi * covariance))
    return float(np.exp(-away @ np.linalg.inv(covariance) @ away / 2) / size)


def pooled(x: np.ndarray, q: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of points `x[n, d]`, weighted by q."""
    mean = (q[:, None] * x).sum(0) / q.sum()
    covariance = np.zeros((x.shape[1], x.shape[1]))
    for i in range(len(x)):
        covariance += q[i] / q.sum() * np.outer(x[i] - mean, x[i] - mean)
    return mean, covariance + floor * np.eye(x.shape[1])


def plain_loop(pairs: Pairs, c: np.ndarray, G: int, K: int, rounds: int, seed: int) -> tuple[Any, ...]:
    data, N, S = [(x.numpy(), y.numpy()) for x, y in pairs], len(pairs), len(c)
    everything = np.concatenate([x for x, _ in data])
    floor = RIDGE * float(np.cov(everything.T, bias=True).diagonal().mean())
    mean, covariance = pooled(everything, np.ones(len(everything)), floor)
    steps = generator(seed, "gaussians", 0).standard_normal((G, len(mean)))
    means, covariances = mean + steps @ np.linalg.cholesky(covariance).T, np.array([covariance] * G)
    pi = np.full((N, G, S), 1 / (G * S))
    for t in range(rounds):
        sums, weights = np.zeros_like(c), np.zeros(S)
        xs, qs = [], []
        for k in drawn(t, K, N, seed):
            x, y = data[k]
            q = np.zeros((len(y), G, S))
            for i in range(len(y)):
                for g in range(G):
                    for s in range(S):
                        likelihood = np.exp(-((y[i] - x[i] @ c[s]) ** 2))
                        q[i, g, s] = pi[k, g, s] * density(x[i], means[g], covariances[g]) * likelihood
                q[i] /= q[i].sum()
            pi[k] = q.mean(0)
            for s in range(S):
                w = sgd(c[s], x, y, Draws(seed, "batches", t, names=[str(k)]), SGD, q[:, :, s].sum(1))
                sums[s] += len(y) * pi[k, :, s].sum() * w
                weights[s] += len(y) * pi[k, :, s].sum()
            xs.append(x)
            qs.append(q.sum(2))
        c = sums / weights[:, None]
        x, q = np.concatenate(xs), np.concatenate(qs)
        floor = RIDGE * float(np.cov(x.T, bias=True).diagonal().mean())
        found = [pooled(x, q[:, g], floor) for g in range(G)]
        means, covariances = np.array([f[0] for f in found]), np.array([f[1] for f in found])
    return c, pi, means, covariances


@pytest.mark.parametrize("K", [4, 8])
def test_rounds_equal_the_plain_loop(K: int) -> None:
    pairs, rounds, seed = regression_clients(), 3, 3
    run = fitted(fs.FedGMM(S=2, G=3, K=K), pairs, rounds, SGD, seed=seed)
    first = torch.stack([run.model.draw(generator(seed, "center", s)) for s in range(2)]).double().numpy()
    c, pi, means, covariances = plain_loop(pairs, first, 3, K, rounds, seed)
    assert run.state.centers.numpy() == pytest.approx(c, abs=1e-9)
    assert run.engine.client_states["pi"].numpy() == pytest.approx(pi, abs=1e-9)
    assert run.state.u.numpy() == pytest.approx(pi.sum(1), abs=1e-9)
    assert run.state.extra["means"].numpy() == pytest.approx(means, abs=1e-9)
    assert run.state.extra["covariances"].numpy() == pytest.approx(covariances, abs=1e-9)
    x = pairs[1][0].numpy()
    for i in range(len(x)):
        near = np.array([density(x[i], means[g], covariances[g]) for g in range(3)])
        share = near @ pi[1] / (near @ pi[1]).sum()
        assert float(run.predict(pairs[1][0][i : i + 1], client=1)) == pytest.approx(x[i] @ c.T @ share, abs=1e-9)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_one_gaussian_and_one_client_are_fedem() -> None:
    pairs = regression_clients((40,))
    one, other = (fitted(a, pairs, 5, SGD) for a in (fs.FedGMM(S=2, G=1), fs.FedEM(S=2, scale="fixed")))
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-10)
    assert torch.allclose(one.state.u, other.state.u, atol=1e-10)
    x = pairs[0][0]
    assert torch.allclose(one.predict(x, client=0), other.predict(x, client=0), atol=1e-10)


def test_with_one_center_it_is_fedavg() -> None:
    one, other = (fitted(a, class_clients(), 4, SGD, model=fs.models.mlp(hidden=[4]))
                  for a in (fs.FedGMM(S=1), fs.FedAvg()))  # fmt: skip
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-10)


def test_a_gaussian_without_points_stays_and_a_single_point_keeps_a_width() -> None:
    eye = torch.eye(2).double()
    before = Gaussians(torch.tensor([[5.0, 5.0], [0.0, 0.0]]).double(), torch.stack([eye, 2 * eye]))
    x = torch.tensor([[1.0, 2.0], [3.0, 2.0]]).double()
    outer = x[0][:, None] * x[0] + x[1][:, None] * x[1]
    after = before.improved(torch.tensor([0.0, 2.0]).double(), torch.stack([0 * x[0], x.sum(0)]),
                            torch.stack([0 * outer, outer]))  # fmt: skip
    assert torch.equal(after.means[0], before.means[0])
    assert torch.equal(after.covariances[0], before.covariances[0])
    assert after.means[1].tolist() == [2.0, 2.0]
    floor = RIDGE * 0.5
    assert after.covariances[1].flatten().tolist() == pytest.approx([1 + floor, 0, 0, floor])
    assert bool(torch.isfinite(after.log_density(x)).all())


def test_shares_far_from_all_gaussians_are_still_shares() -> None:
    two = Gaussians(torch.tensor([[0.0], [1.0]]).double(), torch.ones(2, 1, 1).double())
    gate = InputShares(two, torch.eye(1).double(), torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[0.5, 0.0], [0.0, 0.5]]]))
    found = gate.shares(torch.tensor([[1e6], [1e6], [-1e6], [0.5]]).double(), torch.tensor([0, 1, 1, 1]))
    assert found.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], pytest.approx([0.5, 0.5])]


# --- where inputs tell ------------------------------------------------------------------------------------------------


def two_places(seed: int = 0) -> Pairs:
    """Around x = -3 points are of y = 2x, around x = 3 of y = -2x: one line cannot be right in both places."""
    rng, pairs = np.random.default_rng(seed), []
    for _ in range(6):
        place = np.where(rng.random(30) < 0.5, -3.0, 3.0)
        x = place + 0.3 * rng.standard_normal(30)
        y = np.where(place < 0, 2 * x, -2 * x) + 0.1 * rng.standard_normal(30)
        pairs.append((torch.from_numpy(x[:, None]), torch.from_numpy(y)))
    return pairs


def test_centers_are_used_where_their_inputs_are() -> None:
    pairs, first = two_places(), torch.tensor([[1.0], [-1.0]]).double()

    def error(algorithm: Any) -> float:
        fed = federation(pairs)
        engine = engine_for(algorithm, fed, fs.models.linear(), seed=1, solver=fs.Exact(), dtype="float64")
        personal = played(engine, fed, 8, centers=first).scores().personal_train
        assert personal is not None
        return personal.mean

    assert error(fs.FedGMM(S=2, G=2)) < 0.05
    assert error(fs.FedEM(S=2, scale="fixed")) > 10  # half of each, everywhere


def test_wide_inputs_are_projected_on_orthonormal_directions() -> None:
    x = torch.zeros(3, 5, 6)
    found = projection(x, 4, seed=7)
    assert found.shape == (30, 4)
    assert torch.allclose(found.T @ found, torch.eye(4).double(), atol=1e-12)
    assert torch.equal(found, projection(x[:1], 4, seed=7))
    assert not torch.allclose(found, projection(x, 4, seed=8))
    assert torch.equal(projection(x, 30, seed=7), torch.eye(30).double())


def test_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="need inputs that are numbers: this data has tokens"):
        projection(torch.zeros(3, 5, dtype=torch.int64), 4, seed=7)


def test_clients_cannot_be_exported_and_centers_can(tmp_path: Path) -> None:
    run = fitted(fs.FedGMM(S=2), class_clients(), 1, SGD, model=fs.models.mlp(hidden=[4]), dtype="float32")
    with pytest.raises(
        InputError, match=r"clients of FedGMM predict with is no network alone: export the centers instead"
    ):
        fs.export(run, tmp_path / "client", client=0)
    assert run.ensemble(client=0).gate is not None
    fs.export(run, tmp_path / "centers")


def test_sums_over_few_points_do_not_leave_a_client_where_they_need_more() -> None:
    engine = engine_for(fs.FedGMM(S=2, G=2), federation(regression_clients()), fs.models.linear(), solver=SGD)
    engine.host.least_points = 1000
    with torch.no_grad():
        state, _ = engine.round(engine.start(), 0)
    assert float(state.extra["means"].abs().max()) < 10  # drawn around 0: of no client anything is known
    before = state.extra["means"]
    with torch.no_grad():
        state, _ = engine.round(state, 1)
    assert torch.equal(state.extra["means"], before)


def test_every_center_is_a_task_and_all_describe_their_inputs_once() -> None:
    run = fitted(fs.FedGMM(S=3, G=2, K=2), regression_clients(), 2, fs.Exact())
    down = 3 * 3 * 8 + 2 * (3 + 9) * 8  # centers, means and covariances, in float64
    up = 3 * (3 + 1 + 1) * 8 + 2 * (1 + 3 + 9) * 8  # sums of models, their weights and shares; sums of inputs
    assert [record.bytes_down for record in run.history] == [2 * down] * 2
    assert [record.bytes_up for record in run.history] == [2 * up + 8 * 13 * 8, 2 * up]
    run = fitted(fs.FedGMM(S=3), regression_clients(), 1, SGD)
    assert run.history[0].gradients == 3 * SGD.epochs * sum(RAGGED)
    assert run.history[0].evaluations == 3 * sum(RAGGED)


@pytest.mark.parametrize("setting", [{"S": 0}, {"G": 0}, {"K": 0}, {"dimension": 0}, {"dimension": 65}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedGMM\.{next(iter(setting))} = "):
        fs.FedGMM(**setting)
