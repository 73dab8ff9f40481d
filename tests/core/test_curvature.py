from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core.curvature import gauss_newton, gauss_newton_diagonal
from fedsoft.core.local_solve import Work
from fedsoft.core.model import Model
from fedsoft.core.site import Site
from tests.helpers import Pairs, class_clients, random_stack, regression_clients


def multilabel_clients() -> Pairs:
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((n, 3)) for n in (4, 7)]
    return [(torch.from_numpy(one), torch.from_numpy(rng.integers(2, size=(len(one), 2)).astype(float))) for one in x]


def choices() -> Pairs:
    rng = np.random.default_rng(0)
    return [
        (torch.from_numpy(rng.standard_normal((n, 3, 2))), torch.from_numpy(rng.integers(3, size=n))) for n in (4, 7)
    ]


CASES = {
    "regression": (regression_clients, fs.models.linear()),
    "softmax": (class_clients, fs.models.linear()),
    "labels": (multilabel_clients, fs.models.linear()),
    "choices": (choices, fs.models.conditional_logit()),
}


def made(case: str) -> tuple[Pairs, fs.Federation, Model]:
    clients, builder = CASES[case]
    pairs = clients()
    fed = fs.Federation.from_clients(pairs, held_out=0.0, task="multilabel" if case == "labels" else "auto")
    return pairs, fed, builder(fed.shape)


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_hessian_of_models_that_are_linear_in_their_parameters(case: str) -> None:
    pairs, fed, model = made(case)
    w, data = random_stack(model, len(pairs)).double(), fed.train.to("cpu", torch.float64)
    found = gauss_newton(model, data, w)
    for k, (x, y) in enumerate(pairs):

        def total(v: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return model.loss(model.outputs(v[None], x[None]), y[None]).sum()

        with torch.enable_grad():
            wanted = torch.autograd.functional.hessian(total, w[k])
        assert isinstance(wanted, Tensor)
        assert torch.allclose(found[k], wanted, atol=1e-9)


def test_points_count_by_their_weight() -> None:
    pairs, fed, model = made("softmax")
    w, data = random_stack(model, len(pairs)).double(), fed.train.to("cpu", torch.float64)
    weights = torch.linspace(0, 2, len(data.points), dtype=torch.float64)
    doubled = gauss_newton(model, data, w, 2 * weights)
    assert torch.allclose(doubled, 2 * gauss_newton(model, data, w, weights))
    assert not torch.allclose(doubled, 2 * gauss_newton(model, data, w))


def test_points_count_by_their_weight_on_the_diagonal() -> None:
    """A point of weight 2 counts as two, one of weight 0 not at all."""
    pairs, fed, model = made("softmax")
    w, data = random_stack(model, len(pairs)).double(), fed.train.to("cpu", torch.float64)
    weights = torch.arange(len(data.points), dtype=torch.float64) % 3
    each = [gauss_newton_diagonal(model, data, w, None, (weights == value).double()) for value in (1, 2)]
    assert torch.allclose(gauss_newton_diagonal(model, data, w, None, weights), each[0] + 2 * each[1])


@pytest.mark.parametrize("case", ["regression", "softmax"])
def test_squared_gradients_at_drawn_targets_have_its_diagonal_as_their_mean(case: str) -> None:
    pairs, fed, model = made(case)
    w, data = random_stack(model, len(pairs)).double(), fed.train.to("cpu", torch.float64)
    wanted = gauss_newton(model, data, w).diagonal(dim1=1, dim2=2)
    draws = []
    for seed in range(400):
        work = Work.none(len(pairs))
        site = Site(model, data, fs.SGD(), list(fed.names), seed, 0, torch.float64, work=work)
        draws.append(site.curvature(w, diagonal=True))
        assert work.gradients.tolist() == data.sizes.tolist()
    mean, error = torch.stack(draws).mean(0), torch.stack(draws).std(0) / 20
    assert ((mean - wanted).abs() <= 5 * error + 1e-9).all()
