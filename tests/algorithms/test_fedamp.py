from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core.contract import State
from fedsoft.errors import InputError
from tests.algorithms.plain import drawn, least_squares
from tests.helpers import Pairs, fitted, regression_clients


def proximal(pairs: Pairs, pull: float, u: Tensor) -> Tensor:
    """argmin f_k(w) + pull/2 |w - u_k|^2 of every client, by its normal equations."""
    solved = []
    for (x, y), target in zip(pairs, u, strict=True):
        gram = 2 / len(y) * x.T @ x + pull * torch.eye(x.shape[1]).double()
        solved.append(torch.linalg.solve(gram, 2 / len(y) * x.T @ y + pull * target))
    return torch.stack(solved)


# --- by hand ----------------------------------------------------------------------------------------------------------

# Two clients with one feature: the local solutions are 1 and 3, 1/2 f'' is 1 and 4.
TWO = [
    (torch.tensor([[1.0], [1.0]]).double(), torch.tensor([0.5, 1.5]).double()),
    (torch.tensor([[2.0]]).double(), torch.tensor([6.0]).double()),
]


def test_two_rounds_of_two_clients_by_hand() -> None:
    alpha, sigma, lam = 0.5, 8.0, 1.5
    start = float(fitted(fs.FedAMP(), TWO, 0).state.per_client["w"][0, 0])
    pull = lam / alpha

    # 2 (w - 1) + pull (w - u_0) = 0 and 8 (w - 3) + pull (w - u_1) = 0
    def solve(u0: float, u1: float) -> tuple[float, float]:
        return (2 * 1 + pull * u0) / (2 + pull), (8 * 3 + pull * u1) / (8 + pull)

    w = solve(start, start)  # models are equal at first, and so is every mean of them
    run = fitted(fs.FedAMP(alpha=alpha, sigma=sigma, lam=lam), TWO, 1)
    assert run.state.per_client["w"].flatten().tolist() == pytest.approx(w)
    xi = alpha * math.exp(-((w[0] - w[1]) ** 2) / sigma) / sigma
    w = solve((1 - xi) * w[0] + xi * w[1], xi * w[0] + (1 - xi) * w[1])
    run = fitted(fs.FedAMP(alpha=alpha, sigma=sigma, lam=lam), TWO, 2)
    assert run.state.per_client["w"].flatten().tolist() == pytest.approx(w)
    assert run.personal(1)["weight"].item() == pytest.approx(w[1])


def test_the_attention_of_three_models_by_hand() -> None:
    w = torch.tensor([[0.0], [1.0], [3.0]]).double()
    xi = fs.FedAMP(alpha=0.4, sigma=2.0).attention(w, np.array([0, 2]))
    near, far, middle = (0.2 * math.exp(-d / 2) for d in (1, 9, 4))
    assert xi[0].tolist() == pytest.approx([1 - near - far, near, far])
    assert xi[1].tolist() == pytest.approx([far, middle, 1 - far - middle])


def test_attention_that_adds_up_to_more_than_1_is_scaled_down() -> None:
    w = torch.tensor([[0.0], [0.0], [1.0]]).double()
    xi = fs.FedAMP(alpha=1.0, sigma=0.5).attention(w, np.arange(3))
    equal, one = 2.0, 2 * math.exp(-2)
    assert xi[0].tolist() == pytest.approx([0, equal / (equal + one), one / (equal + one)])
    assert xi[2].tolist() == pytest.approx([one, one, 1 - 2 * one])  # adds up to less: as in the paper
    assert bool((xi >= 0).all())
    assert xi.sum(1).tolist() == pytest.approx([1, 1, 1])


# --- the trap: a proximal term that has no gradient -------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.1, 1.0, 10.0])
def test_lambda_changes_the_models_as_the_closed_form_says(lam: float) -> None:
    # Where the pull is built from values without a gradient, every lambda gives the local solution and this fails.
    pairs = regression_clients()
    alpha, sigma = 0.5, 5.0
    before, run = (fitted(fs.FedAMP(alpha=alpha, sigma=sigma, lam=lam), pairs, rounds) for rounds in (1, 2))
    w = before.state.per_client["w"]
    u = fs.FedAMP(alpha=alpha, sigma=sigma).attention(w, np.arange(8)) @ w
    assert torch.allclose(run.state.per_client["w"], proximal(pairs, lam / alpha, u), atol=1e-9)
    local = proximal(pairs, 0.0, u)
    assert bool(((run.state.per_client["w"] - local).norm(dim=1) > 0.01).all())


def test_a_gradient_step_feels_the_pull() -> None:
    pairs, lr, lam, alpha, sigma = regression_clients(), 0.02, 3.0, 0.5, 5.0
    step = fs.SGD(lr=lr, epochs=1, batch=100, shuffle=False)
    before, run = (fitted(fs.FedAMP(alpha=alpha, sigma=sigma, lam=lam), pairs, rounds, step) for rounds in (3, 4))
    w = before.state.per_client["w"]
    u = fs.FedAMP(alpha=alpha, sigma=sigma).attention(w, np.arange(8)) @ w
    slope = torch.stack([2 / len(y) * x.T @ (x @ w_k - y) for (x, y), w_k in zip(pairs, w, strict=True)])
    assert float((u - w).norm()) > 0.01
    assert torch.allclose(run.state.per_client["w"], w - lr * (slope + lam / alpha * (w - u)), atol=1e-12)


# --- limiting cases ---------------------------------------------------------------------------------------------------


def test_without_the_pull_everybody_trains_alone() -> None:
    pairs = regression_clients()
    run = fitted(fs.FedAMP(lam=0.0), pairs, 3)
    assert run.state.per_client["w"].numpy() == pytest.approx(least_squares(pairs), abs=1e-8)


def test_under_an_overwhelming_pull_a_model_is_its_mean() -> None:
    pairs = regression_clients()
    w = fitted(fs.FedAMP(lam=1.0, alpha=0.5, sigma=5.0), pairs, 1).state.per_client["w"]
    engine = fitted(fs.FedAMP(lam=1e9, alpha=0.5, sigma=5.0), pairs, 0).engine
    with torch.no_grad():
        state, _ = engine.round(State(w[:0], per_client={"w": w}), 1)
    assert torch.allclose(
        state.per_client["w"], fs.FedAMP(alpha=0.5, sigma=5.0).attention(w, np.arange(8)) @ w, atol=1e-6
    )


def test_models_that_are_far_apart_do_not_attend_to_each_other() -> None:
    w = torch.tensor([[0.0, 0.0], [0.1, 0.0], [50.0, 0.0], [50.0, 0.2]]).double()
    xi = fs.FedAMP(sigma=4.0).attention(w, np.arange(4))
    assert float(xi[:2, 2:].max()) < 1e-100
    assert float(xi[0, 1]) > 0.2


def test_all_models_that_are_equal_count_alike() -> None:
    xi = fs.FedAMP(alpha=1.0, sigma=8.0).attention(torch.ones(5, 3).double(), np.arange(5))
    expected = torch.full((5, 5), 1 / 8).double().fill_diagonal_(1 / 2)
    assert torch.allclose(xi, expected)


def test_there_are_no_centers_and_the_server_knows_what_clients_have() -> None:
    run = fitted(fs.FedAMP(K=4, sigma=5.0), regression_clients(), 3)
    assert run.state.centers.shape == (0, 3)
    assert run.weights is None
    assert torch.equal(run.state.per_client["w"], run.engine.client_states["w"])


# --- against a plain loop ---------------------------------------------------------------------------------------------


def test_a_run_equals_the_plain_loop() -> None:
    pairs, K, lr, alpha, sigma, lam = regression_clients(), 3, 0.05, 0.6, 4.0, 0.8
    sgd = fs.SGD(lr=lr, epochs=2, batch=100, shuffle=False)
    run = fitted(fs.FedAMP(K=K, alpha=alpha, sigma=sigma, lam=lam), pairs, 8, sgd)
    w = list(fitted(fs.FedAMP(), pairs, 0).state.per_client["w"].numpy())
    for t in range(8):
        new = list(w)
        for k in drawn(t, K, 8):
            xi = [alpha * math.exp(-np.sum((w[k] - w[j]) ** 2) / sigma) / sigma for j in range(8)]
            others = sum(xi[j] for j in range(8) if j != k)
            xi = [x / max(1, others) for x in xi]
            xi[k] = 1 - sum(xi[j] for j in range(8) if j != k)
            u = sum(xi[j] * w[j] for j in range(8))
            x, y = (part.numpy() for part in pairs[k])
            for _ in range(2):
                new[k] = new[k] - lr * (2 / len(y) * x.T @ (x @ new[k] - y) + lam / alpha * (new[k] - u))
        w = new
    assert run.state.per_client["w"].numpy() == pytest.approx(np.array(w), abs=1e-9)


# --- what it is for, and settings -------------------------------------------------------------------------------------


def test_clients_of_few_points_gain_by_those_that_are_alike() -> None:
    fed = fs.datasets.synthetic(partition="10:90", clients=60, points=(20, 30), seed=1)

    def error(algorithm: fs.FedAMP) -> float:
        spread = fs.fit(algorithm, fed, fs.models.linear(), rounds=15, solver=fs.Exact()).scores().personal_held_out
        assert spread is not None
        return spread.mean

    alone, together = error(fs.FedAMP(lam=0.0)), error(fs.FedAMP(alpha=50.0, sigma=50.0, lam=50.0))
    assert together < 0.8 * alone


@pytest.mark.parametrize("setting", [{"alpha": 0}, {"sigma": 0}, {"lam": -1}, {"K": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedAMP\.{next(iter(setting))} = "):
        fs.FedAMP(**setting)
