"""Networks on images with their channels last compute what torch does."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.networks.channels_last import GroupNorm, images_last, prepare


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_and_its_gradients_are_those_of_torch(relu: bool, groups: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, 5, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    norm = nn.GroupNorm(groups, 6).double()
    nn.init.normal_(norm.weight, generator=draw)
    nn.init.normal_(norm.bias, generator=draw)
    plain = norm(x).relu() if relu else norm(x)
    ours: Tensor = GroupNorm.apply(x, norm.weight, norm.bias, groups, norm.eps, relu)  # type: ignore[assignment]
    torch.testing.assert_close(ours, plain)
    slope = torch.randn(plain.shape, generator=draw, dtype=torch.float64)
    wanted = [x, norm.weight, norm.bias]
    for a, b in zip(torch.autograd.grad(ours, wanted, slope), torch.autograd.grad(plain, wanted, slope), strict=True):
        torch.testing.assert_close(a, b)


def test_what_is_not_a_number_shows() -> None:
    x = torch.ones(2, 2, 3, 3)
    x[1, 0, 0, 0] = float("nan")
    out: Tensor = GroupNorm.apply(x, torch.ones(2), torch.zeros(2), 1, 1e-5, True)  # type: ignore[assignment]
    assert not out[0].isnan().any()
    assert out[1].isnan().all()


class Shared(nn.Module):
    """A normalization with and without its ReLU."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.GroupNorm(2, 4)
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3), norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def chain() -> nn.Module:
    norms = nn.GroupNorm(2, 4), nn.GroupNorm(1, 2)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norms[0], nn.ReLU(), nn.Conv2d(4, 2, 3), norms[1])


@pytest.mark.parametrize("make", [chain, Shared])
def test_a_prepared_network_is_the_same_function(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = make().double()
    prepared = copy.deepcopy(net)
    prepare(prepared)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    out = prepared(images_last(x))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, net(x))
    assert [*prepared.state_dict()] == [*net.state_dict()]


class Rows(nn.Module):
    """A network that takes for granted how images lie."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 4, 3), nn.Linear(144, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convolution(x).view(len(x), -1))


def test_a_network_that_views_images_as_rows_is_left_as_it_is() -> None:
    model = fs.models.module(Rows)(DataShape("classification", (3, 8, 8), 2))
    w = model.draw(np.random.default_rng(0))[None]
    assert model.backend.name == "loop"
    assert model.outputs(w, torch.randn(1, 5, 3, 8, 8)).shape == (1, 5, 2)
