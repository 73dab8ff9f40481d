from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.core.client_draws import Draws
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from fedsoft.training import Run
from tests.algorithms.plain import APART, TWO, drawn, sgd
from tests.helpers import (
    RAGGED,
    Pairs,
    class_clients,
    engine_for,
    federation,
    fitted,
    played,
    regression_clients,
    silent,
)

SGD = fs.SGD(lr=0.02, epochs=2, batch=5)


def picks(t: int, clients: int, S: int, seed: int = 0) -> list[int]:
    """The center that each client draws in round t."""
    return (Draws(seed, "center", t, names=[str(k) for k in range(clients)]).random() * S).astype(int).tolist()


def nearest(x: np.ndarray, y: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The center of the smallest loss, point by point."""
    return np.array([min(range(len(c)), key=lambda s: (y[i] - x[i] @ c[s]) ** 2) for i in range(len(y))])


def plain_loop(pairs: Pairs, c: np.ndarray, K: int, rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Centers, and everybody's own model after the last round."""
    N, S = len(pairs), len(c)
    data = [(x.numpy(), y.numpy()) for x, y in pairs]
    for t in range(rounds):
        sent: list[list[np.ndarray]] = [[] for _ in range(S)]
        for k in drawn(t, K, N, seed):
            x, y = data[k]
            s = picks(t, N, S, seed)[k]
            mine = nearest(x, y, c) == s
            if mine.any():
                sent[s].append(sgd(c[s], x[mine], y[mine], Draws(seed, "batches", t, names=[str(k)]), SGD))
        c = np.array([np.mean(sent[s], axis=0) if sent[s] else c[s] for s in range(S)])
    own = []
    for k, (x, y) in enumerate(data):
        u = np.bincount(nearest(x, y, c), minlength=S) / len(y)
        own.append(sgd(u @ c, x, y, Draws(seed, "tune", rounds - 1, names=[str(k)]), SGD))
    return c, np.array(own)


@pytest.mark.parametrize("K", [3, 8])
def test_rounds_equal_the_plain_loop(K: int) -> None:
    pairs, rounds, seed = regression_clients(), 5, 3
    run = fitted(fs.FedSPD(S=3, K=K), pairs, rounds, SGD, seed=seed)
    first = torch.stack([run.model.draw(generator(seed, "center", s)) for s in range(3)]).double().numpy()
    c, own = plain_loop(pairs, first, K, rounds, seed)
    assert run.state.centers.numpy() == pytest.approx(c, abs=1e-10)
    assert run.engine.client_states["w"].numpy() == pytest.approx(own, abs=1e-10)
    x = pairs[1][0]
    assert run.predict(x, client=1).numpy() == pytest.approx(x.numpy() @ own[1], abs=1e-10)
    assert np.abs(c - first).max() > 0.01


def begun(seed: int, rounds: int = 1, **first: Any) -> Run:
    first = {"centers": torch.tensor([[2.0], [-2.0]]).double()} | first
    engine = engine_for(
        fs.FedSPD(S=2), federation(TWO), fs.models.linear(), seed=seed, solver=fs.Exact(), dtype="float64"
    )
    return played(engine, federation(TWO), rounds, **first)


@pytest.mark.parametrize("seed", range(12))
def test_two_clients_by_hand(seed: int) -> None:
    """Client 0 has points of y = 3x and of y = -x, client 1 only of y = -x: center 1 has something of both."""
    s, run = picks(0, 2, 2, seed), begun(seed)
    assert run.state.centers[0].item() == pytest.approx(3.0 if s[0] == 0 else 2.0)
    assert run.state.centers[1].item() == pytest.approx(-1.0 if 1 in s else -2.0)
    assert run.state.u.tolist() == [pytest.approx([2 / 3, 1 / 3]), [0.0, 1.0]]
    assert run.history[0].gradients == (2 if s[0] == 0 else 1) + (s[1] == 1) + 4  # and all points after the last round
    # The mix of both centers is only where the last task starts: least squares of all points have one minimum.
    assert run.engine.client_states["w"].flatten().tolist() == pytest.approx([(3 + 12 - 1) / 6, -1.0])


def test_the_seeds_by_hand_cover_every_case() -> None:
    assert {tuple(picks(0, 2, 2, seed)) for seed in range(12)} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_without_an_own_model_clients_mix_parameters() -> None:
    pairs = regression_clients()
    engine = engine_for(fs.FedSPD(S=2), federation(pairs), fs.models.linear(), seed=0, solver=SGD, dtype="float64")
    engine.dropouts = silent(lambda job, t, name: job == "mix" and name == "2")
    run = played(engine, federation(pairs), 3, centers=APART)
    u, x = run.engine.client_states["u"], pairs[2][0]
    assert 0 < float(u[2, 0]) < 1
    assert torch.allclose(run.predict(x, client=2), x @ (u[2] @ run.state.centers), atol=1e-12)
    assert run.engine.client_states["own"].tolist() == [k != 2 for k in range(8)]
    assert run.history[-1].notes["tuned"] == 7


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [SGD, fs.Exact(), fs.Adam(epochs=2, batch=5)])
def test_with_one_center_it_is_the_plain_mean_and_then_fine_tuning(local: Any) -> None:
    pairs = regression_clients((9,) * 6)  # of equal size, so that the mean of FineTune is the plain one too
    one, other = (fitted(a, pairs, 4, local) for a in (fs.FedSPD(S=1, K=4), fs.FineTune(K=4)))
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-12)
    assert torch.allclose(one.engine.client_states["w"], other.engine.client_states["w"], atol=1e-12)


def test_a_center_that_explains_nothing_is_trained_by_nobody() -> None:
    run = begun(0, 4, centers=torch.tensor([[2.0], [50.0]]).double())
    assert run.state.centers[1].item() == 50.0
    assert bool(torch.isfinite(run.state.centers).all())


def test_fewer_points_than_may_leave_a_client_are_not_trained_on() -> None:
    engine = engine_for(fs.FedSPD(S=2), federation(TWO), fs.models.linear(), solver=fs.Exact(), dtype="float64")
    engine.host.least_points = 2  # no client has two points of center 1
    run = played(engine, federation(TWO), 8, centers=torch.tensor([[2.0], [-2.0]]).double())
    assert run.state.centers.flatten().tolist() == pytest.approx([3.0, -2.0])


def test_work_is_that_of_the_points_that_are_used() -> None:
    pairs = class_clients()
    run = fitted(fs.FedSPD(S=4), pairs, 4, SGD, model=fs.models.mlp(hidden=[4]))
    assert all(record.gradients < SGD.epochs * sum(RAGGED) for record in run.history[:-1])
    assert run.history[0].evaluations == 4 * sum(RAGGED)
    assert run.history[-1].evaluations == 8 * sum(RAGGED)


def test_sources_and_mixtures_are_found_from_corners() -> None:
    fed = fs.datasets.synthetic(partition="10:90", seed=0, clients=20)
    run = fs.fit(fs.FedSPD(S=2, first="simplex"), fed, fs.models.linear(), rounds=8, solver=fs.Exact())
    scores = run.scores()
    assert scores.recovery is not None
    assert scores.recovery < 0.08
    assert float(np.array(scores.centers).min(0).max()) < 3  # the noise alone is 1, one model for both has about 40


@pytest.mark.parametrize("setting", [{"S": 0}, {"K": 0}, {"first": "free"}, {"warm": -1}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedSPD\.{next(iter(setting))} = "):
        fs.FedSPD(**setting)
