from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

import fedsoft as fs
from fedsoft.clusters.initial import RIDGE, corners, onto_simplex
from fedsoft.seeds import generator
from tests.helpers import Pairs, engine_for, federation, fitted, regression_clients

SGD = fs.SGD(lr=0.02, epochs=2, batch=5)
STARTERS = (fs.FedSoft, fs.FedEM, fs.FedRoute)


def gram(w: Tensor) -> Tensor:
    w = w - w.mean(0)
    return w @ w.T


def mixtures(S: int, m: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random models of S sources, and those of m clients that mix them, the first S clients not at all."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((S, size))
    u = np.concatenate([np.eye(S), rng.dirichlet(np.ones(S), m - S)])
    order = rng.permutation(m)
    return torch.from_numpy(theta), torch.from_numpy(u[order] @ theta)


def same_rows(a: Tensor, b: Tensor, within: float = 1e-7) -> bool:
    """Whether two sets of models are the same up to their order."""
    away = torch.cdist(a, b)
    return bool((away.amin(0) < within).all() and (away.amin(1) < within).all())


# --- corners ----------------------------------------------------------------------------------------------------------


@given(S=st.integers(1, 5), more=st.integers(0, 20), seed=st.integers(0, 10_000))
def test_the_corners_of_mixtures_without_noise_are_the_sources(S: int, more: int, seed: int) -> None:
    theta, w = mixtures(S, S + more, 8, seed)
    found = corners(gram(w), S)
    assert torch.allclose(found.sum(1), torch.ones(S).double(), atol=1e-9)
    assert same_rows(found @ w, theta) or S == 1
    if S == 1:
        assert torch.allclose((found @ w)[0], w.mean(0), atol=1e-9)


def test_three_clients_on_a_line_by_hand() -> None:
    # The mean is 3; 10 is farthest from it, and 0 is farthest from 10.
    w = torch.tensor([[0.0], [10.0], [-1.0]]).double()
    assert (corners(gram(w), 2) @ w).flatten().tolist() == pytest.approx([10.0, -1.0])


def plain_corners(w: np.ndarray, S: int) -> np.ndarray:
    """By singular vectors of the models themselves: successive projection, corner by corner, then the simplex of all.

    Shares are found client by client by non-negative least squares, in which a heavy row makes them sum to 1.
    """
    mean = w.mean(0)
    v = np.linalg.svd(w - mean)[2][: S - 1]
    flat = mean + (w - mean) @ v.T @ v
    found = [int(np.argmax(np.linalg.norm(flat - mean, axis=1)))]
    while len(found) < S:
        rest = []
        for row in flat:
            away = row - flat[found[0]]
            if len(found) > 1:
                basis = np.linalg.qr((flat[found[1:]] - flat[found[0]]).T)[0]
                away = away - basis @ (basis.T @ away)
            rest.append(np.linalg.norm(away))
        found.append(int(np.argmax(rest)))
    c, heavy = flat[found], 1e4 * np.abs(flat).max()
    for _ in range(400):
        sides = [np.append(row, heavy) for row in flat]
        u = np.array([nnls(np.vstack([c.T, np.full(S, heavy)]), side)[0] for side in sides])
        if np.abs(u @ c - flat).max() < 1e-6:
            return c  # it holds them all
        ridge = RIDGE * len(w) / S
        c = np.linalg.solve(u.T @ u + ridge * np.eye(S), u.T @ flat + ridge * c.mean(0))
    return c


@pytest.mark.parametrize("S", [2, 3, 4])
def test_noise_beyond_the_first_components_is_left_out_as_in_the_plain_loop(S: int) -> None:
    _, w = mixtures(S, 30, 12, seed=S)
    w = w + 0.05 * torch.from_numpy(np.random.default_rng(1).standard_normal(w.shape))
    assert (corners(gram(w), S) @ w).numpy() == pytest.approx(plain_corners(w.numpy(), S), abs=1e-8 if S == 2 else 0.01)


def error(found: Tensor, theta: Tensor) -> float:
    return float(torch.cdist(theta, found).amin(1).mean())


def test_where_nobody_is_pure_the_simplex_is_nearer_to_the_sources_than_any_client() -> None:
    """Even mixtures of four sources, noisy: the farthest clients are mixtures, and the fit tells their corners."""
    errors = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        theta = torch.from_numpy(rng.standard_normal((4, 20)))
        w = torch.from_numpy(rng.dirichlet(np.ones(4), 100)) @ theta
        w = w + 0.1 * torch.from_numpy(rng.standard_normal(w.shape))
        errors.append([error(corners(gram(w), 4) @ w, theta), error(w, theta)])
    fitted, nearest = np.mean(errors, axis=0)
    assert fitted < 0.75 * nearest


@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=4))
def test_rows_become_the_nearest_shares(rows: list[list[float]]) -> None:
    v = torch.tensor(rows).double()
    shares = onto_simplex(v)
    assert torch.allclose(shares.sum(1), torch.ones(len(v)).double())
    assert float(shares.min()) >= 0
    for corner in torch.eye(3).double():  # the way to any corner leads away from v
        assert float(((v - shares) * (corner - shares)).sum(1).max()) <= 1e-9


def test_the_order_of_clients_does_not_matter_to_corners() -> None:
    _, w = mixtures(3, 12, 6, seed=4)
    w = w + 0.01 * torch.from_numpy(np.random.default_rng(1).standard_normal(w.shape))
    order = torch.from_numpy(np.random.default_rng(2).permutation(12))
    assert torch.allclose(corners(gram(w), 3) @ w, corners(gram(w[order]), 3) @ w[order], atol=1e-9)


def test_fewer_corners_than_centers_are_used_again() -> None:
    w = torch.tensor([[0.0, 1.0], [2.0, 5.0]]).double()
    found = corners(gram(w), 5) @ w
    assert same_rows(found, w)
    assert torch.allclose(corners(gram(w[:1]), 3) @ w[:1], w[:1].expand(3, -1))


# --- starts -----------------------------------------------------------------------------------------------------------


def pure_and_mixed() -> tuple[Tensor, Pairs]:
    """Clients without noise: two of one source each, the others' least squares somewhere between."""
    theta = torch.tensor([[3.0, -2.0], [-1.0, 4.0]]).double()
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]).double()
    pairs = [(x, x @ theta[0]), (x, x @ theta[1])]
    mixed = torch.cat([x[:2] @ theta[0], x[2:] @ theta[1]])
    return theta, [*pairs, (x, mixed), (x, mixed)]


@pytest.mark.parametrize("algorithm", STARTERS)
@pytest.mark.parametrize(("settings", "rounds"), [({"first": "simplex"}, 1), ({"first": "warm", "warm": 2}, 3)])
def test_linear_models_start_at_the_corners_of_least_squares(algorithm: Any, settings: Any, rounds: int) -> None:
    theta, pairs = pure_and_mixed()
    if algorithm is fs.FedRoute:
        rounds = 1  # needs no FedAvg before, since these corners do not depend on where it starts
    run = fitted(algorithm(S=2, **settings), pairs, rounds, SGD)  # exact whatever the local solver is
    assert same_rows(run.state.centers, theta)
    assert run.history[-1].gradients == 16
    assert int(run.state.extra["age"]) == 0


@pytest.mark.parametrize("algorithm", STARTERS)
def test_a_warm_start_begins_as_fedavg(algorithm: Any) -> None:
    pairs, model = regression_clients(), fs.models.mlp(hidden=[4])
    run = fitted(algorithm(S=3, K=5, first="warm", warm=4), pairs, 4, SGD, model=model)
    average = fitted(fs.FedAvg(K=5), pairs, 4, SGD, model=model)
    for center in run.state.centers:
        assert torch.allclose(center, average.state.centers[0], atol=1e-12)
    assert [r.gradients for r in run.history] == [r.gradients for r in average.history]


@pytest.mark.parametrize("algorithm", STARTERS)
def test_networks_start_at_the_corners_of_one_task_each(algorithm: Any) -> None:
    pairs, seed = regression_clients(), 3
    model = fs.models.mlp(hidden=[4])
    run = fitted(algorithm(S=3, first="simplex"), pairs, 1, SGD, model=model, seed=seed)
    one = [run.model.draw(generator(seed, "center", 0)).double()[None]] * len(pairs)
    engine = engine_for(fs.FedAvg(), federation(pairs), model, seed=seed, solver=SGD, dtype="float64")
    site = engine.host._site(engine.host.data, engine.everyone, 0)
    w, _ = site.solve(torch.cat(one), label="exploration")
    assert same_rows(run.state.centers, torch.from_numpy(plain_corners(w.numpy(), 3)), within=0.01)
    assert run.history[0].gradients == SGD.epochs * sum(len(y) for _, y in pairs)


@pytest.mark.parametrize("algorithm", STARTERS)
def test_a_start_that_nobody_answers_is_tried_again(algorithm: Any) -> None:
    pairs = regression_clients()
    engine = engine_for(algorithm(S=2, first="simplex"), federation(pairs), fs.models.linear(), seed=0, solver=SGD)
    engine.dropouts = lambda job, t, names: np.full(len(names), t < 2)
    with torch.no_grad():
        state = first = engine.start()
        for t in range(3):
            assert torch.equal(state.centers, first.centers)
            state, _ = engine.round(state, t)
    assert int(state.extra["age"]) == 0
    assert not torch.equal(state.centers[0], state.centers[1])


def test_a_start_by_draws_is_as_it_was() -> None:
    for algorithm in (fs.FedSoft, fs.FedEM):
        run = fitted(algorithm(S=2), regression_clients(), 0, SGD)
        drawn = torch.stack([run.model.draw(generator(0, "center", s)) for s in range(2)]).double()
        assert torch.equal(run.state.centers, drawn)
        assert "age" not in run.state.extra


def test_clients_of_fedsoft_go_on_from_their_own_model() -> None:
    theta, pairs = pure_and_mixed()
    run = fitted(fs.FedSoft(S=2, first="simplex"), pairs, 1, SGD)
    assert torch.allclose(run.engine.client_states["w"][:2], theta, atol=1e-9)
