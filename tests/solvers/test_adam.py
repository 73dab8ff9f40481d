from __future__ import annotations

import pytest
import torch

import fedsoft as fs
from fedsoft.core.client_data import ClientData
from fedsoft.errors import InputError
from tests.helpers import RAGGED, problem, random_stack, regression_clients, shape_of


def test_every_client_counts_its_own_steps_over_rounds() -> None:
    pairs = regression_clients()
    model = fs.models.linear()(shape_of(pairs))
    solver, w = fs.Adam(epochs=3, batch=5), random_stack(model, len(pairs))
    state = solver.init_state(w)
    for _ in range(2):
        w, state, _ = solver.solve(problem(model, ClientData.concat(pairs)), w, state)
    assert state["steps"].tolist() == [2 * 3 * -(-n // 5) for n in RAGGED]


def test_the_first_step_has_the_length_of_the_learning_rate_whatever_the_scale_of_the_loss() -> None:
    # What bias correction is for; without it the first step would be 0.1 / sqrt(0.001) times as long.
    x, y = torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([1e4], dtype=torch.float64)
    model = fs.models.linear()(shape_of([(x, y)]))
    w = torch.zeros(1, 1, dtype=torch.float64)
    solver = fs.Adam(lr=0.25, epochs=1, batch=1)
    solved, _, _ = solver.solve(problem(model, ClientData.concat([(x, y)])), w, solver.init_state(w))
    assert float(solved) == pytest.approx(0.25, rel=1e-9)


@pytest.mark.parametrize(
    "setting", [{"lr": 0}, {"beta1": 1.0}, {"beta2": -0.1}, {"eps": 0}, {"epochs": 0}, {"batch": 0}]
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, float]) -> None:
    with pytest.raises(InputError, match=rf"Adam\.{next(iter(setting))} = "):
        fs.Adam(**setting)  # type: ignore[arg-type]
