"""The convolutional networks: sizes by hand, outputs against networks that are written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Builder, Model
from fedsoft.errors import InputError
from tests.helpers import random_stack

GREY28 = DataShape("classification", (1, 28, 28), 26)
GREY14 = DataShape("classification", (1, 14, 14), 10)
GREY8 = DataShape("classification", (1, 8, 8), 10)
COLOUR32 = DataShape("classification", (3, 32, 32), 10)


class Letters(nn.Module):
    """Written out: conv, pool, conv, pool, hidden, logits."""

    def __init__(self, first: int, second: int, hidden: int, paper: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, first, 5, padding=2), nn.Conv2d(first, second, 5, padding=2)
        self.fc1, self.fc2 = nn.Linear(second * 49, hidden), nn.Linear(hidden, 26)
        self.paper = paper

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv1(x), 2)
        x = F.max_pool2d(self.conv2(x), 2).reshape(len(x), -1)
        if self.paper:
            return F.softmax(F.relu(self.fc2(self.fc1(x))), dim=1)
        return self.fc2(F.relu(self.fc1(x)))


class Cifar(nn.Module):
    """Written out: three times (conv, ReLU, conv, ReLU, pool), two hidden layers, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, padding=1)
        self.c3, self.c4 = nn.Conv2d(5, 6, 3, padding=1), nn.Conv2d(6, 7, 3, padding=1)
        self.c5, self.c6 = nn.Conv2d(7, 8, 3, padding=1), nn.Conv2d(8, 9, 3, padding=1)
        self.f1, self.f2, self.f3 = nn.Linear(9 * 16, 11), nn.Linear(11, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.c2(F.relu(self.c1(x)))), 2)
        x = F.max_pool2d(F.relu(self.c4(F.relu(self.c3(x)))), 2)
        x = F.max_pool2d(F.relu(self.c6(F.relu(self.c5(x)))), 2).flatten(1)
        return self.f3(F.relu(self.f2(F.relu(self.f1(x)))))


class Digits(nn.Module):
    """Written out: conv, ReLU, pool, conv, ReLU, pool, hidden, logits; for images of 14x14."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.f1, self.f2 = nn.Linear(32 * 9, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2).flatten(1)
        return self.f2(F.relu(self.f1(x)))


def dense(before: int, after: int) -> int:
    return before * after + after


def conv(before: int, after: int, kernel: int) -> int:
    return before * after * kernel**2 + after


@pytest.mark.parametrize(
    ("builder", "shape", "size"),
    [
        (fs.models.letters_cnn(), GREY28, conv(1, 32, 5) + conv(32, 64, 5) + dense(3136, 512) + dense(512, 26)),
        (fs.models.letters_cnn_paper(), GREY28, conv(1, 32, 5) + conv(32, 64, 5) + dense(3136, 512) + dense(512, 26)),
        (fs.models.letters_cnn(channels=(8, 16), hidden=64), GREY28, 208 + 3216 + dense(784, 64) + dense(64, 26)),
        (
            fs.models.cifar_cnn(),
            COLOUR32,
            sum(conv(a, b, 3) for a, b in ((3, 32), (32, 64), (64, 128), (128, 128), (128, 256), (256, 256)))
            + dense(4096, 1024) + dense(1024, 512) + dense(512, 10),
        ),
        (fs.models.cifar_cnn(channels=(8, 8), hidden=()), COLOUR32, conv(3, 8, 3) + conv(8, 8, 3) + dense(2048, 10)),
        (fs.models.digits_cnn(), GREY8, 13_706),
        (fs.models.digits_cnn(), GREY14, 160 + 4640 + dense(288, 64) + dense(64, 10)),
    ],
)  # fmt: skip
def test_the_number_of_parameters(builder: Builder, shape: DataShape, size: int) -> None:
    assert builder(shape).size == size


@pytest.mark.parametrize(
    ("builder", "shape", "written"),
    [
        (fs.models.letters_cnn(channels=(3, 4), hidden=5), GREY28, lambda: Letters(3, 4, 5, paper=False)),
        (fs.models.letters_cnn_paper(channels=(3, 4), hidden=5), GREY28, lambda: Letters(3, 4, 5, paper=True)),
        (fs.models.cifar_cnn(channels=(4, 5, 6, 7, 8, 9), hidden=(11, 12)), COLOUR32, Cifar),
        (fs.models.digits_cnn(), GREY14, Digits),
    ],
)
def test_a_stack_equals_networks_that_are_written_out(
    builder: Builder, shape: DataShape, written: Callable[[], nn.Module]
) -> None:
    model, net = builder(shape), written().double()
    w, x = random_stack(model, 2), torch.from_numpy(np.random.default_rng(0).random((2, 3, *shape.input)))
    y = torch.tensor([[0, 1, 2], [3, 4, 5]])
    weight = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    outputs, slopes = model.outputs(w, x), model.gradient(w, x, y, weight)
    for k in range(2):
        vector_to_parameters(w[k], net.parameters())
        found = net(x[k])
        assert torch.allclose(outputs[k], found, atol=1e-10)
        parts = torch.autograd.grad(F.cross_entropy(found, y[k]), list(net.parameters()))
        assert torch.allclose(slopes[k], torch.cat([part.flatten() for part in parts]), atol=1e-10)


def test_first_values_are_xavier_normal_with_biases_of_zero() -> None:
    model = fs.models.letters_cnn()(GREY28)
    drawn = model.layout.unflatten(model.draw(np.random.default_rng(0)))
    for tensor in drawn.values():
        if tensor.ndim == 1:
            assert not tensor.any()
        else:
            field = tensor[0, 0].numel()
            wanted = math.sqrt(2 / ((tensor.shape[0] + tensor.shape[1]) * field))
            assert float(tensor.std()) == pytest.approx(wanted, rel=4 / math.sqrt(2 * tensor.numel()))


def paper_model() -> Model:
    return fs.models.letters_cnn_paper(channels=(2, 2), hidden=3)(GREY28)


def test_the_papers_head_is_a_softmax_of_a_softmax() -> None:
    """With weights of 0 the logits are the last bias: everything is known by hand."""
    model = paper_model()
    w = torch.zeros(1, model.size, dtype=torch.float64)
    logits = torch.linspace(-3, 4, 26, dtype=torch.float64)
    w[0, -26:] = logits
    inner = logits.clamp(min=0).exp() / logits.clamp(min=0).exp().sum()
    output = model.outputs(w, torch.zeros(1, 1, 1, 28, 28, dtype=torch.float64))
    assert torch.allclose(output[0, 0], inner)
    loss = model.loss(output, torch.tensor([[25]]))
    assert torch.allclose(loss, -(inner[25].exp() / inner.exp().sum()).log())


def test_the_papers_loss_cannot_fall_far() -> None:
    """A certain and right answer still costs log(1 + 25 / e), as the documentation says."""
    model = paper_model()
    w = torch.zeros(1, model.size, dtype=torch.float64)
    w[0, -26] = 1000.0
    loss = model.loss(model.outputs(w, torch.zeros(1, 1, 1, 28, 28, dtype=torch.float64)), torch.tensor([[0]]))
    assert float(loss) == pytest.approx(math.log(1 + 25 / math.e))
    assert float(loss) > 2.3


def test_the_papers_head_gives_no_slope_to_what_relu_cut_off() -> None:
    model = paper_model()
    w = torch.zeros(1, model.size, dtype=torch.float64)
    w[0, -26:] = torch.tensor([-1.0, 1.0] * 13)
    x = torch.zeros(1, 1, 1, 28, 28, dtype=torch.float64)
    slope = model.gradient(w, x, torch.tensor([[1]]), torch.ones(1, 1, dtype=torch.float64))[0, -26:]
    assert not slope[::2].any()
    assert slope[1::2].all()


@pytest.mark.parametrize("name", ["letters_cnn", "letters_cnn_paper", "cifar_cnn", "digits_cnn"])
def test_points_that_are_not_images_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} needs images: a point has shape \[10\]"):
        getattr(fs.models, name)()(DataShape("classification", (10,), 2))


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(InputError, match="cifar_cnn needs images of at least 8 x 8 pixels, these have 32 x 7"):
        fs.models.cifar_cnn()(DataShape("classification", (3, 32, 7), 2))
    fs.models.cifar_cnn(hidden=(2,))(DataShape("classification", (1, 8, 8), 2))


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(InputError, match=r"cifar_cnn\.channels = \[3, 4, 5\] is not allowed: should be an even number"):
        fs.models.cifar_cnn(channels=(3, 4, 5))
    with pytest.raises(InputError, match=r"letters_cnn\.channels = 0 is not allowed"):
        fs.models.letters_cnn(channels=(0, 4))
    with pytest.raises(InputError, match=r"^letters_cnn_paper ends in a softmax: it is for classification, not"):
        fs.models.letters_cnn_paper()(DataShape("regression", (1, 28, 28), 1))


def test_a_regression_head_gives_one_number_per_point() -> None:
    model = fs.models.digits_cnn()(DataShape("regression", (1, 8, 8), 1))
    assert model.outputs(random_stack(model, 2), torch.zeros(2, 5, 1, 8, 8, dtype=torch.float64)).shape == (2, 5)
