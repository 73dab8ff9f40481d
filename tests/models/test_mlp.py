from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.errors import InputError
from tests.helpers import random_stack


def test_a_stack_of_perceptrons_equals_sequential_networks_one_by_one() -> None:
    model = fs.models.mlp(hidden=[5, 4])(DataShape("classification", (2, 3), 3))
    w, x = random_stack(model, 3), torch.randn(3, 7, 2, 3, dtype=torch.float64)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    outputs = model.outputs(w, x)
    for k in range(3):
        vector_to_parameters(w[k], net.parameters())
        assert torch.allclose(outputs[k], net(x[k]), atol=1e-12)


def test_no_hidden_layer_is_softmax_regression_with_an_intercept() -> None:
    model = fs.models.mlp(hidden=[])(DataShape("classification", (3,), 2))
    assert dict(model.layout.shapes) == {"0.weight": (2, 3), "0.bias": (2,)}


def test_regression_with_one_output_gives_one_number_per_point() -> None:
    model = fs.models.mlp()(DataShape("regression", (3,), 1))
    assert model.outputs(random_stack(model, 2), torch.zeros(2, 5, 3, dtype=torch.float64)).shape == (2, 5)


def test_a_layer_without_units_is_refused() -> None:
    with pytest.raises(InputError, match=r"mlp\.hidden = "):
        fs.models.mlp(hidden=[4, 0])
