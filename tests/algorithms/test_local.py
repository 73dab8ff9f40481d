from __future__ import annotations

from typing import Any

import pytest
import torch

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import least_squares
from tests.helpers import RAGGED, fitted, regression_clients


def test_personal_models_are_local_least_squares() -> None:
    run = fitted(fs.Local(), regression_clients(), 1)
    for k, least in enumerate(least_squares(regression_clients())):
        assert run.engine.client_states["w"][k].numpy() == pytest.approx(least, abs=1e-8)
        assert run.personal(k)["weight"][0].numpy() == pytest.approx(least, abs=1e-8)


def test_training_goes_on_where_it_was_left() -> None:
    lr, rounds = 0.1, 3
    run = fitted(fs.Local(), regression_clients(), rounds, fs.SGD(lr=lr, epochs=2, batch=100))
    for k, (x, y) in enumerate(regression_clients()):
        w = fitted(fs.Local(), regression_clients(), 0).engine.client_states["w"][k]
        for _ in range(2 * rounds):
            w = w - lr * 2 / len(y) * x.T @ (x @ w - y)
        assert torch.allclose(run.engine.client_states["w"][k], w, atol=1e-12)


def test_all_clients_share_one_first_draw() -> None:
    run = fitted(fs.Local(), regression_clients(), 0)
    assert torch.equal(run.engine.client_states["w"], run.model.draw(generator(0, "client")).double().expand(8, -1))


def test_nothing_is_sent_and_there_is_no_center() -> None:
    run = fitted(fs.Local(), regression_clients(), 2)
    assert run.state.centers.shape == (0, 3)
    for record in run.history:
        assert (record.bytes_down, record.bytes_up) == (0, 0)
        assert record.gradients == sum(RAGGED)
        assert (record.selected, record.answered) == (8, 8)


def test_only_the_clients_drawn_train() -> None:
    before, run = fitted(fs.Local(), regression_clients(), 0), fitted(fs.Local(K=3), regression_clients(), 1)
    changed = (run.engine.client_states["w"] != before.engine.client_states["w"]).any(1)
    assert int(changed.sum()) == 3
    assert run.history[0].gradients == sum(n for n, c in zip(RAGGED, changed.tolist(), strict=True) if c)


def test_a_client_that_does_not_answer_stays_where_it_was() -> None:
    run = fitted(fs.Local(), regression_clients(), 2, dropout=1.0)
    assert torch.equal(
        run.engine.client_states["w"], fitted(fs.Local(), regression_clients(), 0).engine.client_states["w"]
    )


def test_optimizer_state_is_kept_over_rounds_only_when_asked() -> None:
    adam = fs.Adam(epochs=1, batch=5)
    steps = [-(-n // 5) for n in RAGGED]
    kept, fresh = (fitted(fs.Local(optimizer_state=kept), regression_clients(), 3, adam) for kept in ("kept", "fresh"))
    assert kept.engine.client_states["optimizer.steps"].tolist() == [3 * n for n in steps]
    assert fresh.engine.client_states["optimizer.steps"].tolist() == steps


@pytest.mark.parametrize("setting", [{"K": 0}, {"optimizer_state": "some"}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"Local\.{next(iter(setting))} = "):
        fs.Local(**setting)
