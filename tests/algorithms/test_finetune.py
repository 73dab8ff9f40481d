from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.training import Run
from tests.algorithms.plain import least_squares
from tests.helpers import RAGGED, engine_for, federation, fitted, regression_clients

LR = 0.05
ONE_STEP = fs.SGD(lr=LR, epochs=1, batch=100)
SGD = fs.SGD(lr=LR, epochs=2, batch=5)


def predictions(run: Run) -> list[Tensor]:
    return [run.predict(x, client=k) for k, (x, _) in enumerate(regression_clients())]


def test_the_tuned_model_is_one_gradient_step_from_the_last_center() -> None:
    run = fitted(fs.FineTune(), regression_clients(), 3, ONE_STEP)
    c = run.state.centers[0]
    for k, (x, y) in enumerate(regression_clients()):
        expected = c - LR * 2 / len(y) * x.T @ (x @ c - y)
        assert torch.allclose(run.engine.client_states["w"][k], expected, atol=1e-12)
        assert torch.allclose(predictions(run)[k], x @ expected, atol=1e-12)


def test_several_tasks_go_on_where_the_last_one_ended() -> None:
    run, once = (fitted(fs.FineTune(tasks=n), regression_clients(), 3, ONE_STEP) for n in (3, 1))
    assert torch.equal(run.state.centers, once.state.centers)
    for k, (x, y) in enumerate(regression_clients()):
        w = run.state.centers[0]
        for _ in range(3):
            w = w - LR * 2 / len(y) * x.T @ (x @ w - y)
        assert torch.allclose(run.engine.client_states["w"][k], w, atol=1e-12)


def test_tuning_may_have_a_smaller_rate_than_the_rounds() -> None:
    run, usual = (fitted(fs.FineTune(own_rate=r), regression_clients(), 3, ONE_STEP) for r in (0.25, 1))
    assert torch.equal(run.state.centers, usual.state.centers)
    c = run.state.centers[0]
    for k, (x, y) in enumerate(regression_clients()):
        expected = c - LR / 4 * 2 / len(y) * x.T @ (x @ c - y)
        assert torch.allclose(run.engine.client_states["w"][k], expected, atol=1e-12)


@pytest.mark.parametrize("K", ["all", 3])
def test_the_center_is_exactly_that_of_fedavg(K: Any) -> None:
    tuned, plain = (fitted(a, regression_clients(), 4, SGD) for a in (fs.FineTune(K=K), fs.FedAvg(K=K)))
    assert torch.equal(tuned.state.centers, plain.state.centers)


def test_with_the_exact_solver_everybody_ends_at_local_least_squares() -> None:
    run = fitted(fs.FineTune(K=3), regression_clients(), 2, fs.Exact())
    assert run.engine.client_states["w"].numpy() == pytest.approx(least_squares(regression_clients()), abs=1e-8)


def test_the_optimiser_is_fresh_when_tuning() -> None:
    # The first step of Adam goes by lr along the signs of the gradient; a kept memory would not.
    run = fitted(fs.FineTune(), regression_clients(), 5, fs.Adam(lr=0.01, epochs=1, batch=100))
    moved = run.engine.client_states["w"] - run.state.centers
    assert torch.allclose(moved.abs(), torch.full_like(moved, 0.01), rtol=1e-5)


def test_everybody_tunes_in_the_last_round_only() -> None:
    history = fitted(fs.FineTune(K=3), regression_clients(), 3, ONE_STEP).history
    assert ["tuned" in record.notes for record in history] == [False, False, True]
    assert history[-1].notes["tuned"] == 8
    plain = fitted(fs.FedAvg(K=3), regression_clients(), 3, ONE_STEP).history
    model = 3 * 8  # three parameters in float64
    assert [r.gradients for r in history[:2]] == [r.gradients for r in plain[:2]]
    assert history[2].gradients == plain[2].gradients + sum(RAGGED)
    assert history[2].bytes_down == plain[2].bytes_down + 8 * model
    assert [r.bytes_up for r in history] == [r.bytes_up for r in plain]


def test_before_the_end_everybody_predicts_with_the_center_of_the_day() -> None:
    engine = engine_for(
        fs.FineTune(K=3), federation(regression_clients()), fs.models.linear(), seed=0, solver=SGD, dtype="float64"
    )
    with torch.no_grad():
        state = engine.start()
        for t in range(2):
            state, _ = engine.round(state, t, last=False)
    run = Run(federation(regression_clients()), engine, state, [])
    for (x, _), prediction in zip(regression_clients(), predictions(run), strict=True):
        assert torch.allclose(prediction, x @ state.centers[0], atol=1e-12)


def test_a_client_that_did_not_tune_predicts_as_under_fedavg() -> None:
    engine = engine_for(
        fs.FineTune(K=3), federation(regression_clients()), fs.models.linear(), seed=0, solver=SGD, dtype="float64"
    )
    engine.dropouts = lambda job, t, names: np.array([job == "tune" and int(name) < 4 for name in names])
    with torch.no_grad():
        state = engine.start()
        state, _ = engine.round(state, 0, last=False)
        state, notes = engine.round(state, 1, last=True)
    run = Run(federation(regression_clients()), engine, state, [])
    assert notes["tuned"] == 4
    for k, (x, _) in enumerate(regression_clients()):
        is_center = torch.allclose(predictions(run)[k], x @ state.centers[0], atol=1e-12)
        assert is_center == (k < 4)


def test_when_nobody_answers_everybody_keeps_the_first_center() -> None:
    run = fitted(fs.FineTune(), regression_clients(), 2, SGD, dropout=1.0)
    assert torch.equal(run.engine.client_states["w"], run.state.centers.expand(8, -1))
    assert not run.engine.client_states["tuned"].any()


def test_the_mean_is_over_those_who_answered() -> None:
    # Dividing by all that were drawn would shrink the center.
    two = [(torch.ones(n, 1).double(), torch.full((n,), y).double()) for n, y in ((3, 2.0), (1, 6.0))]
    engine = engine_for(fs.FineTune(), federation(two), fs.models.linear(), seed=0, solver=fs.Exact(), dtype="float64")
    with torch.no_grad():
        first = engine.start()
        both, _ = engine.round(first, 0)
        engine.dropouts = lambda job, t, names: np.array([name == "1" for name in names])
        one, _ = engine.round(first, 0)
    assert float(both.centers) == pytest.approx((3 * 2 + 1 * 6) / 4)
    assert float(one.centers) == pytest.approx(2)


def test_settings_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"FineTune\.K = 0"):
        fs.FineTune(K=0)
