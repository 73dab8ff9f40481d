from __future__ import annotations

import pytest
import torch

import fedsoft as fs
from fedsoft.core.client_data import ClientData
from fedsoft.errors import InputError
from tests.helpers import problem, shape_of


def test_two_steps_with_momentum_by_hand() -> None:
    # f(w) = (w - 1)^2 from w = 0, lr 0.1, mu 0.5: m = -2, w = 0.2; m = -1 - 1.6 = -2.6, w = 0.46.
    pair = (torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    model = fs.models.linear()(shape_of([pair]))
    solver, w = fs.SGD(lr=0.1, momentum=0.5, epochs=2, batch=1), torch.zeros(1, 1, dtype=torch.float64)
    w, state, _ = solver.solve(problem(model, ClientData.concat([pair])), w, solver.init_state(w))
    assert float(w) == pytest.approx(0.46)
    assert float(state["velocity"]) == pytest.approx(-2.6)


def test_without_momentum_nothing_is_remembered() -> None:
    assert fs.SGD().init_state(torch.zeros(2, 3)) == {}


@pytest.mark.parametrize("setting", [{"lr": -1}, {"momentum": 1.0}, {"epochs": 0}, {"batch": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, float]) -> None:
    with pytest.raises(InputError, match=rf"SGD\.{next(iter(setting))} = "):
        fs.SGD(**setting)  # type: ignore[arg-type]
