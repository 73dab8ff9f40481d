from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from fedsoft.training import Run
from tests.helpers import RAGGED, federation, regression_clients


def fitted(rounds: int, local: Any = None, **settings: Any) -> Run:
    return fs.fit(
        fs.Local(**settings), federation(regression_clients()), fs.models.linear(), rounds=rounds,
        local=local or fs.Exact(), dtype="float64",
    )  # fmt: skip


def test_personal_models_are_local_least_squares() -> None:
    run = fitted(1)
    for k, (x, y) in enumerate(regression_clients()):
        least = np.linalg.lstsq(x.numpy(), y.numpy())[0]
        assert run.engine.memory["w"][k].numpy() == pytest.approx(least, abs=1e-8)
        assert run.personal(k)["weight"][0].numpy() == pytest.approx(least, abs=1e-8)


def test_training_goes_on_where_it_was_left() -> None:
    lr, rounds = 0.1, 3
    run = fitted(rounds, fs.SGD(lr=lr, epochs=2, batch=100))
    for k, (x, y) in enumerate(regression_clients()):
        w = fitted(0).engine.memory["w"][k]
        for _ in range(2 * rounds):
            w = w - lr * 2 / len(y) * x.T @ (x @ w - y)
        assert torch.allclose(run.engine.memory["w"][k], w, atol=1e-12)


def test_all_clients_share_one_first_draw() -> None:
    run = fitted(0)
    assert torch.equal(run.engine.memory["w"], run.model.draw(generator(0, "client")).double().expand(8, -1))


def test_nothing_is_sent_and_there_is_no_center() -> None:
    run = fitted(2)
    assert run.state["centers"].shape == (0, 3)
    for record in run.history:
        assert (record["bytes_down"], record["bytes_up"]) == (0, 0)
        assert record["gradients"] == sum(RAGGED)
        assert (record["selected"], record["answered"]) == (8, 8)


def test_only_the_clients_drawn_train() -> None:
    before, run = fitted(0), fitted(1, K=3)
    changed = (run.engine.memory["w"] != before.engine.memory["w"]).any(1)
    assert int(changed.sum()) == 3
    assert run.history[0]["gradients"] == sum(n for n, c in zip(RAGGED, changed.tolist(), strict=True) if c)


def test_a_client_that_does_not_answer_stays_where_it_was() -> None:
    run = fs.fit(
        fs.Local(), federation(regression_clients()), fs.models.linear(), rounds=2, dtype="float64", dropout=1.0
    )
    assert torch.equal(run.engine.memory["w"], fitted(0).engine.memory["w"])


def test_moments_are_kept_over_rounds_only_when_asked() -> None:
    adam = fs.Adam(epochs=1, batch=5)
    steps = [-(-n // 5) for n in RAGGED]
    kept, fresh = (fitted(3, adam, moments=moments) for moments in ("kept", "fresh"))
    assert kept.engine.memory["moments.steps"].tolist() == [3 * n for n in steps]
    assert fresh.engine.memory["moments.steps"].tolist() == steps


@pytest.mark.parametrize("setting", [{"K": 0}, {"moments": "some"}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"Local\.{next(iter(setting))} = "):
        fs.Local(**setting)


def test_more_clients_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match=r"Local\.K = 9 .*at most 8"):
        fitted(1, K=9)
