from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import TWO, batches, drawn, gradient, least_squares
from tests.helpers import RAGGED, Pairs, engine_for, federation, fitted, regression_clients

SGD = fs.SGD(lr=0.05, epochs=2, batch=5)

# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_round_of_two_clients_by_hand() -> None:
    lam = 0.5
    c = float(fitted(fs.Ditto(), TWO, 0).state.centers)
    run = fitted(fs.Ditto(lam=lam), TWO, 1, fs.Exact())
    squares, products = (2 / 3 * 6, 2 * 4), (2 / 3 * 14, 2 * -4)
    w = [products[k] / squares[k] for k in range(2)]
    v = [(products[k] + lam * c) / (squares[k] + lam) for k in range(2)]
    assert float(run.state.centers) == pytest.approx((3 * w[0] + 1 * w[1]) / 4)
    assert run.engine.client_states["w"].flatten().tolist() == pytest.approx(v)


def test_the_pull_is_towards_the_center_received_not_the_trained_one() -> None:
    lam, lr, pairs = 0.5, 0.1, regression_clients()
    run = fitted(fs.Ditto(lam=lam), pairs, 1, fs.SGD(lr=lr, epochs=2, batch=100))
    c = fitted(fs.Ditto(), pairs, 0).state.centers[0]
    for k, (x, y) in enumerate(pairs):
        v = c
        for _ in range(2):
            v = v - lr * (gradient(v, x, y) + lam * (v - c))
        assert torch.allclose(run.engine.client_states["w"][k], v, atol=1e-12)


# --- limiting cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", ["all", 3])
def test_the_center_is_exactly_that_of_fedavg(K: Any) -> None:
    ditto, plain = (fitted(a, regression_clients(), 3, SGD) for a in (fs.Ditto(K=K, lam=2.0), fs.FedAvg(K=K)))
    assert torch.equal(ditto.state.centers, plain.state.centers)


def test_without_the_pull_personal_models_are_trained_locally() -> None:
    # Local training from the same first values, by the same clients, through the same batches.
    ditto = fitted(fs.Ditto(K=3, lam=0), regression_clients(), 4, SGD)
    local = engine_for(
        fs.Local(K=3, optimizer_state="fresh"), federation(regression_clients()), fs.models.linear(), solver=SGD,
        dtype="float64",
    )  # fmt: skip
    with torch.no_grad():
        state = local.start()
        local.client_states["w"] = fitted(fs.Ditto(), regression_clients(), 0).engine.client_states["w"].clone()
        for t in range(4):
            state, _ = local.round(state, t)
    assert torch.allclose(ditto.engine.client_states["w"], local.client_states["w"], atol=1e-12)


def test_without_the_pull_and_solved_exactly_they_are_local_least_squares() -> None:
    run = fitted(fs.Ditto(lam=0), regression_clients(), 1, fs.Exact())
    assert run.engine.client_states["w"].numpy() == pytest.approx(least_squares(regression_clients()), abs=1e-8)


def test_under_an_overwhelming_pull_personal_models_are_the_center_received() -> None:
    before, run = (fitted(fs.Ditto(lam=1e8), regression_clients(), rounds, fs.Exact()) for rounds in (1, 2))
    assert torch.allclose(run.engine.client_states["w"], before.state.centers.expand(8, -1), atol=1e-6)
    assert not torch.allclose(run.state.centers, fitted(fs.Ditto(), regression_clients(), 0).state.centers)


# --- against a plain loop ---------------------------------------------------------------------------------------------


def specification(pairs: Pairs, start: Tensor, K: int, lam: float, rounds: int) -> tuple[Tensor, Tensor]:
    """Ditto one client and one batch at a time: the center and the personal models."""
    c, personal = start, [start.clone() for _ in pairs]
    for t in range(rounds):
        selected, trained = drawn(t, K, len(pairs)), {}
        for k in selected:
            x, y = pairs[k]
            w, v = c, personal[k]
            for batch in batches(k, t, len(y), SGD):
                v = v - SGD.lr * (gradient(v, x[batch], y[batch]) + lam * (v - c))
                w = w - SGD.lr * gradient(w, x[batch], y[batch])
            trained[k], personal[k] = w, v
        points = sum(len(pairs[k][1]) for k in selected)
        c = torch.stack([len(pairs[k][1]) / points * trained[k] for k in selected]).sum(0)
    return c, torch.stack(personal)


def test_a_run_equals_the_specification() -> None:
    pairs = regression_clients()
    run = fitted(fs.Ditto(K=3, lam=0.8), pairs, 5, SGD)
    c, personal = specification(pairs, run.model.draw(generator(0, "center", 0)).double(), 3, 0.8, 5)
    assert torch.allclose(run.state.centers[0], c, atol=1e-9)
    assert torch.allclose(run.engine.client_states["w"], personal, atol=1e-9)


# --- who answers, and what it costs -----------------------------------------------------------------------------------


def test_the_mean_is_over_those_who_answered() -> None:
    # Dividing by all that were drawn would shrink the center.
    engine = engine_for(fs.Ditto(), federation(TWO), fs.models.linear(), seed=0, solver=fs.Exact(), dtype="float64")
    engine.dropouts = lambda job, t, names: np.array([name == "1" for name in names])
    with torch.no_grad():
        first = engine.start()
        state, _ = engine.round(first, 0)
    assert float(state.centers) == pytest.approx(14 / 6)
    assert float(engine.client_states["w"][1]) == float(first.centers)


def test_two_tasks_are_counted_and_one_model_goes_each_way() -> None:
    record = fitted(fs.Ditto(), regression_clients(), 1, SGD).history[0]
    assert record.gradients == 2 * SGD.epochs * sum(RAGGED)
    assert record.bytes_down == record.bytes_up == 8 * 3 * 8


@pytest.mark.parametrize("setting", [{"K": 0}, {"lam": -1}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"Ditto\.{next(iter(setting))} = "):
        fs.Ditto(**setting)
