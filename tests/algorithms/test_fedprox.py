from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.errors import InputError
from tests.algorithms.plain import TWO
from tests.helpers import RAGGED, engine_for, federation, fitted, regression_clients

SGD = fs.SGD(lr=0.05, epochs=2, batch=5)


def test_a_round_of_two_clients_by_hand() -> None:
    mu = 0.7
    c = float(fitted(fs.FedProx(), TWO, 0).state.centers)
    # w_k = (2/n sum x^2 + mu)^-1 (2/n sum x y + mu c)
    w = [(2 / 3 * 14 + mu * c) / (2 / 3 * 6 + mu), (2 * -4 + mu * c) / (2 * 4 + mu)]
    run = fitted(fs.FedProx(mu=mu), TWO, 1)
    assert float(run.state.centers) == pytest.approx((3 * w[0] + 1 * w[1]) / 4)


@pytest.mark.parametrize("local", [SGD, fs.SGD(momentum=0.9), fs.Adam(epochs=2, batch=5), fs.Exact()])
def test_without_the_pull_it_is_fedavg_to_the_bit(local: Any) -> None:
    prox, avg = (fitted(a, regression_clients(), 3, local) for a in (fs.FedProx(K=4, mu=0), fs.FedAvg(K=4)))
    assert torch.equal(prox.state.centers, avg.state.centers)


def test_the_pull_has_a_gradient() -> None:
    # A proximal term of detached values would leave every step that of FedAvg.
    prox, avg = (fitted(a, regression_clients(), 1, SGD) for a in (fs.FedProx(mu=1.0), fs.FedAvg()))
    start = fitted(fs.FedAvg(), regression_clients(), 0).state.centers
    assert float((prox.state.centers - start).norm()) < 0.95 * float((avg.state.centers - start).norm())


def test_gradient_steps_are_those_of_the_proximal_objective() -> None:
    mu, lr, pairs = 0.5, 0.1, regression_clients()
    run = fitted(fs.FedProx(mu=mu), pairs, 1, fs.SGD(lr=lr, epochs=3, batch=100))
    c = fitted(fs.FedProx(), pairs, 0).state.centers[0]
    found = []
    for x, y in pairs:
        w = c.clone().requires_grad_()
        for _ in range(3):
            objective = ((x @ w - y) ** 2).mean() + mu / 2 * ((w - c) ** 2).sum()
            w = (w - lr * torch.autograd.grad(objective, w)[0]).detach().requires_grad_()
        found.append(w.detach().numpy())
    assert run.state.centers[0].numpy() == pytest.approx(np.average(found, axis=0, weights=RAGGED), abs=1e-12)


def test_under_an_overwhelming_pull_the_center_stays() -> None:
    before, run = (fitted(fs.FedProx(mu=1e9), regression_clients(), rounds) for rounds in (0, 1))
    assert torch.allclose(run.state.centers, before.state.centers, atol=1e-6)


def test_the_mean_is_over_those_who_answered() -> None:
    # Dividing by all that were drawn would shrink the center.
    engine = engine_for(fs.FedProx(mu=0), federation(TWO), fs.models.linear(), seed=0, solver=fs.Exact())
    engine.dropouts = lambda job, t, names: np.array([name == "1" for name in names])
    with torch.no_grad():
        state, notes = engine.round(engine.start(), 0)
    assert float(state.centers) == pytest.approx(14 / 6)
    assert notes == {"selected": 2, "answered": 1}


@pytest.mark.parametrize("setting", [{"K": 0}, {"mu": -1}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedProx\.{next(iter(setting))} = "):
        fs.FedProx(**setting)
