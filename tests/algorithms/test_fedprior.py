from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.clusters.learned_prior import FIRM, HALF_CLIENT, ONE_CLIENT, Prior
from fedsoft.clusters.one_prior import STEPS
from fedsoft.core.batches import Prox
from tests.algorithms.plain import least_squares
from tests.helpers import Pairs, fitted, regression_clients


def people(
    clients: int = 60, points: int = 12, seed: int = 0, spread: float = 0.5
) -> tuple[Pairs, np.ndarray, np.ndarray]:
    """Clients with one way each, near one of two; also who belongs where, and both ways."""
    rng = np.random.default_rng(seed)
    ways = np.array([[3.0, -2.0, 0.0], [-2.0, 3.0, 1.0]])
    kind = np.arange(clients) % 3 == 0
    pairs = []
    for k in range(clients):
        own = ways[int(kind[k])] + spread * rng.standard_normal(3)
        x = rng.standard_normal((points, 3))
        pairs.append((torch.from_numpy(x), torch.from_numpy(x @ own + rng.standard_normal(points))))
    return pairs, kind, ways


def pulled(x: Tensor, y: Tensor, c: Tensor, lam: float) -> Tensor:
    """The minimizer of the mean squared error plus lam/2 |w - c|^2."""
    n, size = x.shape
    return torch.linalg.solve(2 / n * x.T @ x + lam * torch.eye(size), 2 / n * x.T @ y + lam * c)


# --- a loop that reads like the maths ---------------------------------------------------------------------------------


def test_rounds_of_a_naive_loop() -> None:
    """Two centers, squared loss of known noise, full covariances, every round an estimation."""
    pairs, S, rounds, s2 = regression_clients((6, 9, 14, 7)), 2, 3, 0.5
    run = fitted(fs.FedPrior(S=S, tau=1), pairs, rounds, begun={"extra": {"s2": torch.tensor(s2).double()}})
    c = fitted(fs.FedPrior(S=S), pairs, 0).state.centers.clone()
    size = c.shape[1]
    eye = torch.eye(size).double()
    sigma, pi = [eye.clone() for _ in range(S)], [1 / S] * S
    for _ in range(rounds):
        sums = [
            (
                torch.zeros(()).double(),
                torch.zeros(size).double(),
                torch.zeros(size, size).double(),
                torch.zeros(size, size).double(),
            )
        ] * S
        errors = decided = points = 0.0
        for x, y in pairs:
            logs, models, spreads = [], [], []
            for s in range(S):
                precision = torch.linalg.inv(sigma[s])
                curvature = x.T @ x / s2 + precision
                w = torch.linalg.solve(curvature, x.T @ y / s2 + precision @ c[s])
                d = w - c[s]
                lik = -((x @ w - y) ** 2).sum() / (2 * s2) - d @ precision @ d / 2
                logs.append(lik - (torch.logdet(sigma[s]) + torch.logdet(curvature)) / 2 + np.log(pi[s]))
                models.append(w)
                spreads.append(torch.linalg.inv(curvature))
            r = torch.stack(logs).softmax(0)
            for s in range(S):
                d = models[s] - c[s]
                a, b, e, f = sums[s]
                sums[s] = (a + r[s], b + r[s] * d, e + r[s] * torch.outer(d, d), f + r[s] * spreads[s])
                errors += float(r[s] * ((x @ models[s] - y) ** 2).sum())
                decided += float(r[s] * (size - torch.trace(spreads[s] @ torch.linalg.inv(sigma[s]))))
            points += len(y)
        s2 = errors / (points - decided)
        total = sum(float(one[0]) + HALF_CLIENT for one in sums)
        for s, (weight, first, second, spread) in enumerate(sums):
            kept = weight * eye - spread @ torch.linalg.inv(sigma[s])
            c[s] = c[s] + torch.linalg.solve(kept + FIRM * weight * eye, first)
            second = second - torch.outer(first, first) / weight + ONE_CLIENT * eye
            known = torch.linalg.inv(sigma[s]) @ (kept + ONE_CLIENT * eye)
            root = torch.linalg.cholesky(known)  # X A X = C by another way than the library's
            values, vectors = torch.linalg.eigh(root.T @ second @ root)
            back = torch.linalg.inv(root)
            sigma[s] = back.T @ (vectors * values.sqrt()) @ vectors.T @ back
            pi[s] = (float(weight) + HALF_CLIENT) / total
    assert torch.allclose(run.state.centers, c, atol=1e-8)
    assert torch.allclose(run.state.extra["covariance"], torch.stack(sigma), atol=1e-8)
    assert run.state.extra["shares"].tolist() == pytest.approx(pi)
    assert float(run.state.extra["s2"]) == pytest.approx(s2)


# --- limiting cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1, 3])
def test_one_center_of_a_fixed_width_is_dittos_personal_model(tau: int) -> None:
    """With lambda = 2 s2 / (n_k spread^2): clients with more points are pulled less."""
    pairs, spread = regression_clients(), 0.7
    run = fitted(fs.FedPrior(S=1, tau=tau, spread=spread, learn=False, covariance="diagonal"), pairs, 4)
    before = fitted(fs.FedPrior(S=1, tau=tau, spread=spread, learn=False, covariance="diagonal"), pairs, 3)
    for k, (x, y) in enumerate(pairs):
        lam = 1 / (len(y) * spread**2)  # a loss as it is: s2 = 1/2
        wanted = pulled(x, y, before.state.centers[0], lam)
        assert torch.allclose(run.engine.client_states["w"][k, 0], wanted, atol=1e-10)
        ditto = fitted(fs.Ditto(lam=lam), [(x, y)], 1, begun={"centers": before.state.centers})
        assert torch.allclose(ditto.engine.client_states["w"][0], wanted, atol=1e-8)


def test_a_very_wide_prior_is_local_training() -> None:
    run = fitted(fs.FedPrior(S=1, spread=1e5, learn=False), regression_clients(), 2)
    assert run.engine.client_states["w"][:, 0].numpy() == pytest.approx(least_squares(regression_clients()), abs=1e-6)


def test_a_very_narrow_prior_is_one_model_for_all() -> None:
    """The center ends at the minimum of all points together, where FedAvg with small steps ends, too."""
    pairs = regression_clients()
    run = fitted(fs.FedPrior(S=1, spread=0.01, learn=False), pairs, 60)
    x, y = (torch.cat(part) for part in zip(*pairs, strict=True))
    pooled = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    assert torch.allclose(run.state.centers[0], pooled, atol=2e-3)
    assert (run.engine.client_states["w"][:, 0] - run.state.centers[0]).abs().max() < 0.02


def test_a_fixed_isotropic_width_with_counted_shares_is_fedsofts_own_step() -> None:
    """FedSoft's local problem f_k(w) + lambda/2 sum_s u_ks |w - c_s|^2 with lambda = 1 / (n_k spread^2)."""
    pairs, spread = regression_clients(), 0.7
    begun = {"centers": torch.tensor([[1.0, 0.0, 2.0], [-1.0, 2.0, 0.0]], dtype=torch.float64)}
    width = torch.full((2, 3), spread**2, dtype=torch.float64)
    for k, (x, y) in enumerate(pairs):
        lam = 1 / (len(y) * spread**2)
        run = fitted(fs.FedSoft(S=2, K="all", lam=lam), [(x, y)], 1, begun=begun)
        assert run.weights is not None
        u = run.weights  # the points that each center explains best, counted
        for prior in (Prior(begun["centers"], width, u[0]), Prior(begun["centers"], torch.diag_embed(width), u[0])):
            pull = prior.pull(u, torch.tensor([1 / len(y)], dtype=torch.float64))
            toward = Prox.to_centers(lam * u, begun["centers"])
            assert torch.allclose(pull.matrix(), toward.matrix())
            assert torch.allclose(pull.target, toward.target)
        wanted = torch.linalg.solve(
            2 / len(y) * x.T @ x + lam * u.sum() * torch.eye(3), 2 / len(y) * x.T @ y + lam * u[0] @ begun["centers"]
        )
        assert torch.allclose(run.engine.client_states["w"][0], wanted, atol=1e-10), k


@pytest.mark.slow
def test_narrow_priors_of_two_centers_are_clusters_of_clients() -> None:
    pairs, kind, _ = people(spread=0.0)
    run = fitted(fs.FedPrior(S=2, spread=0.05, learn=False), pairs, 60)
    assert run.weights is not None
    first = run.weights[:, 0] > 0.5
    assert bool((first == torch.from_numpy(kind)).all()) or bool((first != torch.from_numpy(kind)).all())
    for s, members in enumerate((first, ~first)):
        x, y = (torch.cat([pairs[k][i] for k in range(len(pairs)) if members[k]]) for i in (0, 1))
        assert torch.allclose(run.state.centers[s], torch.linalg.lstsq(x, y[:, None]).solution[:, 0], atol=0.05)


# --- people -----------------------------------------------------------------------------------------------------------


def test_it_finds_ways_widths_noise_and_who_belongs_where() -> None:
    pairs, kind, ways = people(clients=150)
    run = fitted(fs.FedPrior(S=2), pairs, 30)
    assert run.weights is not None
    order = [0, 1] if run.state.centers[0, 0] > 0 else [1, 0]
    assert run.state.centers[order].numpy() == pytest.approx(ways, abs=0.25)
    width = run.state.extra["covariance"].diagonal(dim1=1, dim2=2).sqrt()
    assert width.numpy() == pytest.approx(0.5, abs=0.2)
    assert float(run.state.extra["s2"]) == pytest.approx(1.0, abs=0.1)
    assert run.state.extra["shares"][order].tolist() == pytest.approx([2 / 3, 1 / 3], abs=0.03)
    assert bool(((run.weights[:, order[1]] > 0.5).numpy() == kind).all())


def test_personal_models_are_better_than_alone_and_than_the_centers() -> None:
    pairs, _, _ = people(clients=100, points=8)
    fed = fs.Federation.from_clients(pairs, held_out=0.5, seed=1)
    runs = [fitted(a, fed, 20) for a in (fs.FedPrior(S=2), fs.Local(), fs.FedSoft(S=2, lam=1.0))]
    errors = [run.scores().personal_held_out for run in runs]
    ours, *others = [error.mean for error in errors if error is not None]
    assert ours < 0.8 * min(others)


def test_one_task_between_estimations() -> None:
    pairs = regression_clients()
    run = fitted(fs.FedPrior(S=4, tau=2), pairs, 4)
    due, between = run.history[0].gradients, run.history[1].gradients
    points = sum(len(y) for _, y in pairs)
    assert between == 2 * points  # a solve by normal equations, and the gradient where it ended
    assert due == 4 * between + STEPS * points  # and those of the one prior for everybody
    assert run.history[1].bytes_up < run.history[0].bytes_up / 3


def test_the_mean_of_a_clients_models_is_one_model() -> None:
    pairs, _, _ = people()
    run = fitted(fs.FedPrior(S=3, predict_with="mean"), pairs, 4)
    assert not bool(run.state.extra["merged"])
    kept = run.engine.client_states
    assert torch.allclose(run.personal(2)["weight"].flatten().double(), kept["r"][2] @ kept["w"][2])


def test_descent_follows_a_narrow_prior() -> None:
    """Clients that are all alike teach a narrow prior, whose pull is stiff: steps along gradients would overshoot."""
    pairs, _, _ = people(spread=0.01)
    exact, descent = (
        fitted(fs.FedPrior(S=2, spread=0.1), pairs, 20, solver).state.centers
        for solver in (fs.Newton(), fs.SGD(lr=0.2, epochs=3, batch=6))
    )
    assert bool(torch.isfinite(descent).all())
    assert torch.cdist(exact, descent).amin(1).max() < 0.2


@pytest.mark.parametrize("algorithm", [fs.FedPrior, fs.FedLevels])
def test_centers_that_nobody_needs_cost_nothing(algorithm: type[fs.FedPrior | fs.FedLevels]) -> None:
    """40 clients of 10 points that are all alike: under one prior for everybody; not so clients of two kinds."""
    alike = fs.datasets.synthetic(S=1, partition="random", dimension=5, clients=40, points=(10, 10), held_out=5.0)
    one, two = (fs.fit(algorithm(S=S), alike, fs.models.linear(), rounds=8, solver=fs.Exact()) for S in (1, 2))
    assert bool(two.state.extra["merged"])
    if (told := two.scores().prior) is not None:  # of fedprior
        assert "several tell nobody apart" in told.sentences[-1]
    errors = [run.scores(["mse"]).metrics["mse"].held_out for run in (one, two)]
    assert errors[0] is not None
    assert errors[1] is not None
    assert errors[1].mean < 1.1 * errors[0].mean
    kinds, _, _ = people()
    run = fs.fit(algorithm(S=2), fs.Federation.from_clients(kinds), fs.models.linear(), rounds=8, solver=fs.Exact())
    assert not bool(run.state.extra["merged"])
