from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.seeds import generator
from tests.helpers import random_stack


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("input", [(3,), (2, 2)])
def test_the_closed_form_of_the_gradient_equals_autograd(bias: bool, input: tuple[int, ...]) -> None:
    model = fs.models.linear(bias=bias)(DataShape("regression", input, 1))
    by_autograd = replace(model, features=None)
    w = random_stack(model, 4)
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, *input, generator=rng, dtype=torch.float64)
    y, weight = torch.randn(2, 4, 6, generator=rng, dtype=torch.float64)
    assert model.features is not None
    assert torch.allclose(model.gradient(w, x, y, weight), by_autograd.gradient(w, x, y, weight), atol=1e-12)


def test_the_closed_form_leaves_its_inputs_alone() -> None:
    # It works in place on intermediate values.
    model = fs.models.linear()(DataShape("regression", (3,), 1))
    w, x, y, weight = (
        random_stack(model, 2),
        torch.ones(2, 4, 3).double(),
        torch.ones(2, 4).double(),
        torch.ones(2, 4).double(),
    )
    before = [value.clone() for value in (w, x, y, weight)]
    model.gradient(w, x, y, weight)
    assert all(torch.equal(a, b) for a, b in zip(before, (w, x, y, weight), strict=True))


def test_outputs_are_the_product_with_the_features() -> None:
    model = fs.models.linear(bias=True)(DataShape("regression", (3,), 1))
    w, x = random_stack(model, 2), torch.randn(2, 5, 3, dtype=torch.float64)
    expected = torch.stack([x[k] @ w[k, :3] + w[k, 3] for k in range(2)])
    assert torch.allclose(model.outputs(w, x), expected, atol=1e-12)


def test_softmax_regression_equals_a_linear_layer_of_torch() -> None:
    model = fs.models.linear()(DataShape("classification", (3,), 4))
    w, x = random_stack(model, 2), torch.randn(2, 5, 3, dtype=torch.float64)
    layer = nn.Linear(3, 4, bias=False).double()
    for k in range(2):
        with torch.no_grad():
            layer.weight.copy_(w[k].view(4, 3))
        assert torch.allclose(model.predict(model.outputs(w, x))[k], layer(x[k]).softmax(1), atol=1e-12)
    assert model.features is None  # no closed form: its loss is not squared


def test_without_intercept_there_is_one_parameter_for_each_input() -> None:
    model = fs.models.linear()(DataShape("regression", (10,), 1))
    assert model.size == 10
    std = np.std([model.draw(np.random.default_rng(i)).numpy() for i in range(500)])
    assert std == pytest.approx(np.sqrt(2 / 11), rel=0.05)


def test_the_intercept_starts_at_0() -> None:
    model = fs.models.linear(bias=True)(DataShape("classification", (3,), 4))
    weight = model.layout.unflatten(model.draw(generator(0, "x")))["weight"]
    assert weight.shape == (4, 4)
    assert weight[:, -1].tolist() == [0.0] * 4
    assert bool((weight[:, :-1] != 0).all())
