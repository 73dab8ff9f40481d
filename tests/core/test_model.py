from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.metrics import cross_entropy, goal, squared_loss
from fedsoft.core.model import Layout, as_numbers, check_outputs, xavier_normal
from fedsoft.errors import InputError

LAYOUT = Layout({"weight": (3, 4), "scale": (5,), "bias": (3,), "kernel": (8, 2, 3, 3)})


def test_layout_gives_back_what_was_flattened() -> None:
    params = {name: torch.randn(*shape) for name, shape in LAYOUT.shapes.items()}
    back = LAYOUT.unflatten(LAYOUT.flatten(params))
    assert LAYOUT.size == 12 + 5 + 3 + 144
    for name, value in params.items():
        assert torch.equal(back[name], value)


def test_named_tensors_of_a_stack_are_views_of_its_rows() -> None:
    w = torch.zeros(2, LAYOUT.size)
    LAYOUT.unflatten(w)["bias"][1, 2] = 7.0
    assert w[0].sum() == 0
    assert w[1].sum() == 7


def test_xavier_draws_have_the_std_of_their_fans() -> None:
    draws = torch.stack([xavier_normal(LAYOUT)(np.random.default_rng(i)) for i in range(400)])
    params = LAYOUT.unflatten(draws)
    for name, fans in {"weight": 4 + 3, "kernel": (2 + 8) * 9}.items():
        count = params[name].numel()
        assert float(params[name].std()) == pytest.approx(math.sqrt(2 / fans), rel=5 / math.sqrt(2 * count))
        assert float(params[name].mean()) == pytest.approx(0, abs=5 * math.sqrt(2 / fans / count))


def test_xavier_leaves_biases_0_and_other_vectors_as_they_were() -> None:
    kept = torch.arange(float(LAYOUT.size))
    params = LAYOUT.unflatten(xavier_normal(LAYOUT, keep=kept)(np.random.default_rng(0)))
    assert params["bias"].tolist() == [0, 0, 0]
    assert torch.equal(params["scale"], LAYOUT.unflatten(kept)["scale"])


def test_squared_loss_adds_up_the_outputs_of_a_point() -> None:
    output, y = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])
    assert squared_loss(output, y).tolist() == [[5.0, 25.0]]


def test_cross_entropy_is_the_negative_log_probability_of_each_point() -> None:
    output = torch.randn(2, 3, 4)
    y = torch.tensor([[0, 1, 2], [3, 3, 0]])
    expected = [[-output[i, j].log_softmax(0)[y[i, j]] for j in range(3)] for i in range(2)]
    assert torch.allclose(cross_entropy(output, y), torch.tensor(expected), atol=1e-6)


def test_accuracy_counts_hits_and_higher_is_better() -> None:
    metric = goal("classification").metric
    assert metric.higher_is_better
    prediction = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]])
    assert metric.per_point(prediction, torch.tensor([[0, 0]])).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_is_that_of_the_weighted_sum_of_losses_of_each_model_on_its_own_batch(weighted: bool) -> None:
    model = fs.models.mlp(hidden=[3])(DataShape("classification", (2,), 3))
    torch.manual_seed(0)
    w, x = torch.randn(4, model.size), torch.randn(4, 5, 2)
    y = torch.randint(0, 3, (4, 5))
    weight = torch.rand(4, 5) if weighted else torch.full((4, 5), 0.2)
    gradient = model.gradient(w, x, y, weight)
    for k in range(4):
        own: Tensor = w[k].clone().requires_grad_()
        loss = (model.loss(model.outputs(own[None], x[k : k + 1]), y[k : k + 1]) * weight[k]).sum()
        (expected,) = torch.autograd.grad(loss, own)
        assert torch.allclose(gradient[k], expected, atol=1e-6)


def test_an_output_of_the_wrong_shape_is_refused_with_both_shapes() -> None:
    model = fs.models.linear()(DataShape("classification", (2,), 5))
    with pytest.raises(InputError, match=r"output .*\[4, 5\].*\[4, 3\]"):
        check_outputs(model, DataShape("classification", (2,), 3), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))


def test_bytes_are_images_from_0_to_1() -> None:
    x = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert as_numbers(x, torch.float64).tolist() == [[0.0, 0.2, 1.0]]
    assert as_numbers(torch.tensor([51.0]), torch.float64).tolist() == [51.0]  # numbers are what they are


def test_training_on_bytes_is_training_on_their_numbers() -> None:
    rng = np.random.default_rng(0)
    sizes = (7, 12, 5)
    images = [torch.from_numpy(rng.integers(0, 256, (n, 1, 2, 2), dtype=np.uint8)) for n in sizes]
    labels = [torch.from_numpy(rng.integers(3, size=n)) for n in sizes]
    runs = []
    for scale in (lambda x: x, lambda x: x.double() / 255):
        data = ClientData.concat([(scale(x), y) for x, y in zip(images, labels, strict=True)])
        fed = fs.Federation(data, data, ("a", "b", "c"), DataShape("classification", (1, 2, 2), 3))
        runs.append(
            fs.fit(fs.FedSoft(S=2), fed, fs.models.mlp(hidden=[4]), rounds=3, options=fs.FitOptions(dtype="float64"))
        )
    assert torch.allclose(runs[0].state.centers, runs[1].state.centers, atol=1e-12)
    assert runs[0].scores() == runs[1].scores()
