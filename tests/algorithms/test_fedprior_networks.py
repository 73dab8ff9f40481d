"""FedPrior on networks, and its limits on linear models that are trained as networks are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.clusters.network_prior import is_network
from fedsoft.clusters.personal_way import TASKS
from tests.algorithms.plain import least_squares
from tests.helpers import Pairs, class_clients, fitted, regression_clients, shape_of

SGD = fs.SGD(lr=0.1, epochs=1, batch=5)


def fed_prior(**settings: object) -> fs.FedPrior:
    return fs.FedPrior(**{"S": 1, "covariance": "isotropic", **settings})  # pyright: ignore[reportArgumentType]


def test_what_a_network_is() -> None:
    shape = shape_of(class_clients())
    assert is_network(fs.models.mlp(hidden=[4])(shape).layout)
    assert not is_network(fs.models.linear()(shape).layout)
    run = fitted(fs.FedPrior(), class_clients(), 1, model=fs.models.mlp(hidden=[4]), solver=SGD)
    assert set(run.state.extra) >= {"shares", "strengths", "scale"}


# --- limiting cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", ["all", 3])
def test_one_center_is_that_of_fedavg(K: int | str) -> None:
    runs = [
        fitted(a, class_clients(), 4, model=fs.models.mlp(hidden=[4]), solver=SGD)
        for a in (fs.FedPrior(S=1, K=K, reach=1), fs.FedAvg(K=K))  # pyright: ignore[reportArgumentType]
    ]
    assert torch.equal(runs[0].state.centers, runs[1].state.centers)


def test_a_fixed_width_is_dittos_personal_model() -> None:
    pairs, spread = regression_clients(), 0.7
    run = fitted(fed_prior(spread=spread, learn=False), pairs, 3)
    for k, (x, y) in enumerate(pairs):
        lam = 1 / (len(y) * spread**2)
        ditto = fitted(fs.Ditto(lam=lam), [(x, y)], 1, begun={"centers": run.state.centers})
        assert torch.allclose(run.engine.client_states["own"][k, 0], ditto.engine.client_states["w"][0], atol=1e-8)


def test_a_very_wide_prior_is_local_training() -> None:
    run = fitted(fed_prior(spread=1e5, learn=False), regression_clients(), 1)
    assert run.engine.client_states["own"][:, 0].numpy() == pytest.approx(least_squares(regression_clients()), abs=1e-6)


def test_a_very_narrow_prior_is_one_model_for_all() -> None:
    run = fitted(fed_prior(spread=1e-4, learn=False), regression_clients(), 1)
    assert torch.allclose(run.engine.client_states["own"][:, 0], run.state.centers.expand(8, -1), atol=1e-5)


# --- clients that differ, and that do not -----------------------------------------------------------------------------


def people(spread: float, clients: int = 150, points: int = 15) -> Pairs:
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(clients):
        own = np.array([3.0, -2.0, 0.0]) + spread * rng.standard_normal(3)
        x = rng.standard_normal((points, 3))
        pairs.append((torch.from_numpy(x), torch.from_numpy(x @ own + rng.standard_normal(points))))
    return pairs


def test_personal_models_beat_the_center_and_training_alone() -> None:
    federation = fs.Federation.from_clients(people(0.3), held_out=0.4)
    runs = [fitted(a, federation, 3) for a in (fed_prior(), fs.FedAvg(), fs.Local())]
    ours, *others = [found.mean for run in runs if (found := run.scores().personal_held_out) is not None]
    assert ours < min(others)


def test_where_nobody_differs_the_center_is_kept() -> None:
    federation = fs.Federation.from_clients(people(0.0), held_out=0.4)
    runs = [fitted(a, federation, 10) for a in (fed_prior(), fs.FedAvg())]
    ours, center = [found.mean for run in runs if (found := run.scores().personal_held_out) is not None]
    assert ours < 1.01 * center


def test_two_kinds_of_clients_part_the_copies_of_a_center() -> None:
    rng = np.random.default_rng(0)
    ways = np.array([[3.0, -2.0, 0.0], [-2.0, 3.0, 1.0]])
    x = rng.standard_normal((40, 20, 3))
    pairs = [(torch.from_numpy(x[k]), torch.from_numpy(x[k] @ ways[k % 2])) for k in range(40)]
    run = fitted(fed_prior(S=2), pairs, 20, solver=fs.SGD(lr=0.05, epochs=1, batch=5))
    assert run.weights is not None
    first = run.weights[:, 0] > 0.5
    assert bool((first == first[0]).view(-1, 2).float().mean(0).eq(torch.tensor([1.0, 0.0])).all())


# --- cost, and clients that come later --------------------------------------------------------------------------------


def test_one_task_a_round_and_the_way_after_the_last() -> None:
    pairs = class_clients()
    points = sum(len(y) for _, y in pairs)
    run = fitted(fs.FedPrior(S=3, tau=3), pairs, 3, model=fs.models.mlp(hidden=[4]), solver=SGD)
    due, between, last = (record.gradients for record in run.history)
    assert 2 * points < due < 3 * points  # without those held back
    assert between == points
    tasks = int((run.state.extra["strengths"] > 0).sum())
    assert 1 <= tasks <= TASKS
    assert points * (1 + tasks) < last <= points * (1 + tasks + TASKS)


def test_a_client_that_comes_later_takes_the_same_way() -> None:
    pairs = class_clients((30,) * 8)
    run = fitted(fs.FedPrior(S=1), pairs, 2, model=fs.models.mlp(hidden=[4]), solver=SGD)
    way, algorithm = run.engine.algorithm.way(run.state), run.engine.algorithm
    assert way is not None
    desk = run.new_clients()
    assert desk.way == way
    adopted = desk.adopt(*pairs[0], how="personal").ensemble.w[0]
    distance = (adopted - run.state.centers[0]).norm()
    member = (run.engine.client_states["own"][0, 0] - run.state.centers[0]).norm()
    assert float(distance) == pytest.approx(float(member), rel=0.5)  # other batches
    assert algorithm.way(fitted(algorithm, pairs, 0, model=fs.models.mlp(hidden=[4]), solver=SGD).state) is None
