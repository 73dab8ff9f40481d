from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import TWO, batches, drawn, gradient
from tests.helpers import RAGGED, Pairs, engine_for, federation, fitted, regression_clients

SGD = fs.SGD(lr=0.05, epochs=2, batch=5)


def pfedme(**settings: Any) -> Any:
    return fs.algorithms.pFedMe(**settings)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_round_of_two_clients_by_hand() -> None:
    eta, lr, lam, beta = 0.01, 0.02, 5.0, 0.6
    local = fs.SGD(epochs=2, batch=3)
    run = fitted(pfedme(eta=eta, personal_lr=lr, lam=lam, steps=3, beta=beta), TWO, 1, local)
    c = float(fitted(pfedme(), TWO, 0).state.centers)
    slope = [lambda w: 2 / 3 * (6 * w - 14), lambda w: 2 * (4 * w + 4)]
    w, theta = [c, c], [c, c]
    for k in range(2):
        for _ in range(2):
            for _ in range(3):  # from where the batch before left theta
                theta[k] -= lr * (slope[k](theta[k]) + lam * (theta[k] - w[k]))
            w[k] -= eta * lam * (w[k] - theta[k])
    assert run.engine.client_states["w"].flatten().tolist() == pytest.approx(theta)
    assert float(run.state.centers) == pytest.approx((1 - beta) * c + beta * (3 * w[0] + 1 * w[1]) / 4)


def test_with_many_steps_theta_is_the_proximal_point() -> None:
    eta, lam, pairs = 0.02, 2.0, regression_clients()
    run = fitted(pfedme(eta=eta, personal_lr=0.05, lam=lam, steps=2000), pairs, 1, fs.SGD(epochs=1, batch=100))
    c = fitted(pfedme(), pairs, 0).state.centers[0]
    theta = []
    for x, y in pairs:  # (2/n X^T X + lambda I) theta = 2/n X^T y + lambda c
        gram = 2 / len(y) * x.T @ x + lam * torch.eye(3).double()
        theta.append(torch.linalg.solve(gram, 2 / len(y) * x.T @ y + lam * c))
    found = torch.stack(theta)
    assert torch.allclose(run.engine.client_states["w"], found, atol=1e-9)
    n = torch.tensor(RAGGED).double()
    expected = (n / n.sum()) @ (c - eta * lam * (c - found))
    assert torch.allclose(run.state.centers[0], expected, atol=1e-9)


# --- limiting cases ---------------------------------------------------------------------------------------------------


def test_for_a_large_lambda_w_takes_plain_gradient_steps_as_in_fedavg() -> None:
    lam, eta = 1e7, 0.05
    local = fs.SGD(lr=eta, epochs=2, batch=5)
    # The first step brings theta from the last w to this one, the second takes the gradient there.
    run = fitted(pfedme(K=3, eta=eta, personal_lr=1 / lam, lam=lam, steps=2), regression_clients(), 3, local)
    plain = fitted(fs.FedAvg(K=3), regression_clients(), 3, local)
    assert torch.allclose(run.state.centers, plain.state.centers, atol=1e-5)


def test_for_a_large_lambda_theta_follows_the_center() -> None:
    # With so small a step of w, w stays at the center received, and theta with it.
    lam = 1e6
    run = fitted(pfedme(eta=1e-9, personal_lr=1 / lam, lam=lam, steps=20), regression_clients(), 1, SGD)
    assert torch.allclose(run.engine.client_states["w"], run.state.centers.expand(8, -1), atol=1e-4)


def test_without_the_pull_theta_is_trained_alone_and_the_center_stays() -> None:
    lr, pairs = 0.05, regression_clients()
    run = fitted(pfedme(lam=0, personal_lr=lr, steps=3), pairs, 1, fs.SGD(epochs=1, batch=100))
    c = fitted(pfedme(), pairs, 0).state.centers
    assert torch.allclose(run.state.centers, c, atol=1e-12)
    for k, (x, y) in enumerate(pairs):
        theta = c[0]
        for _ in range(3):
            theta = theta - lr * gradient(theta, x, y)
        assert torch.allclose(run.engine.client_states["w"][k], theta, atol=1e-12)


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.0])
def test_beta_is_the_share_of_the_mean_in_the_new_center(beta: float) -> None:
    before, plain, mixed = (
        fitted(pfedme(beta=b), regression_clients(), rounds, SGD).state.centers
        for b, rounds in ((1.0, 0), (1.0, 1), (beta, 1))
    )
    assert torch.allclose(mixed, (1 - beta) * before + beta * plain, atol=1e-12)


# --- against a plain loop ---------------------------------------------------------------------------------------------


def specification(pairs: Pairs, start: Tensor, made: Any, rounds: int) -> tuple[Tensor, Tensor]:
    """pFedMe one client and one batch at a time: the center and the personal models."""
    c, personal = start, [start] * len(pairs)
    for t in range(rounds):
        selected, trained = drawn(t, made.K, len(pairs)), {}
        for k in selected:
            x, y = pairs[k]
            w, theta = c, c
            for batch in batches(k, t, len(y), SGD):
                for _ in range(made.steps):
                    pull = made.lam * (theta - w)
                    theta = theta - made.personal_lr * (gradient(theta, x[batch], y[batch]) + pull)
                w = w - made.eta * made.lam * (w - theta)
            trained[k], personal[k] = w, theta
        points = sum(len(pairs[k][1]) for k in selected)
        mean = torch.stack([len(pairs[k][1]) / points * trained[k] for k in selected]).sum(0)
        c = (1 - made.beta) * c + made.beta * mean
    return c, torch.stack(personal)


def test_a_run_equals_the_specification() -> None:
    pairs, made = regression_clients(), pfedme(K=3, eta=0.02, personal_lr=0.03, lam=4.0, steps=3, beta=0.8)
    run = fitted(made, pairs, 6, SGD)
    start = run.model.draw(generator(0, "center", 0)).double()
    c, personal = specification(pairs, start, made, 6)
    assert torch.allclose(run.state.centers[0], c, atol=1e-9)
    assert torch.allclose(run.engine.client_states["w"], personal, atol=1e-9)
    assert float((c - start).norm()) > 0.1


# --- who answers, and what it costs -----------------------------------------------------------------------------------


def test_only_the_clients_drawn_work() -> None:
    before, run = (fitted(pfedme(K=3), regression_clients(), rounds, SGD) for rounds in (0, 1))
    changed = (run.engine.client_states["w"] != before.engine.client_states["w"]).any(1)
    assert changed.nonzero().flatten().tolist() == drawn(0, 3, 8)


def test_the_mean_is_over_those_who_answered() -> None:
    # Dividing by all that were drawn would shrink the center.
    engine = engine_for(pfedme(lam=3), federation(TWO), fs.models.linear(), dtype="float64", solver=SGD)
    engine.dropouts = lambda job, t, names: np.array([name == "1" for name in names])
    with torch.no_grad():
        state, _ = engine.round(engine.start(), 0)
    assert torch.allclose(state.centers, fitted(pfedme(lam=3), TWO[:1], 1, SGD).state.centers, atol=1e-12)


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.0])
def test_when_nobody_answers_the_center_stays_to_the_bit(beta: float) -> None:
    run = fitted(pfedme(beta=beta), TWO, 2, SGD, dropout=1.0)
    assert torch.equal(run.state.centers, fitted(pfedme(), TWO, 0).state.centers)


@pytest.mark.parametrize("steps", [1, 5])
def test_all_steps_are_counted_and_one_model_goes_each_way(steps: int) -> None:
    record = fitted(pfedme(steps=steps), regression_clients(), 1, SGD).history[0]
    assert record.gradients == steps * SGD.epochs * sum(RAGGED)
    assert record.bytes_down == record.bytes_up == 8 * 3 * 8


def test_a_solver_without_steps_is_refused() -> None:
    with pytest.raises(InputError, match="takes no single steps: use SGD or Adam"):
        fitted(pfedme(), TWO, 1, fs.Exact())


@pytest.mark.parametrize("setting", [{"K": 0}, {"eta": 0}, {"personal_lr": 0}, {"lam": -1}, {"steps": 0}, {"beta": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"pFedMe\.{next(iter(setting))} = "):
        pfedme(**setting)


def test_the_defaults_are_the_official_ones() -> None:
    made = pfedme()
    assert (made.eta, made.personal_lr, made.lam, made.steps, made.beta) == (0.005, 0.09, 15, 5, 1)
