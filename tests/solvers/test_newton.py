from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core.batches import Prox
from fedsoft.core.client_data import ClientData
from fedsoft.core.local_solve import own_gradients
from fedsoft.core.model import Model
from tests.helpers import class_clients, federation, problem, random_stack, regression_clients


def pull(m: int, size: int, kind: str) -> Prox:
    """A pull of one strength, of one for each parameter, or of a matrix."""
    rng = torch.Generator().manual_seed(3)
    root = torch.randn(m, size, size, generator=rng, dtype=torch.float64)
    strength = {
        "one": root[:, 0, :1].abs() + 1,
        "each": root[:, 0].abs() + 0.5,
        "matrix": root @ root.mT + torch.eye(size),
    }
    return Prox(strength[kind], torch.randn(m, size, generator=rng, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["one", "each", "matrix"])
def test_it_agrees_with_the_exact_solver_on_linear_regression(kind: str) -> None:
    fed = federation(regression_clients())
    model, data = fs.models.linear()(fed.shape), fed.train.to("cpu", torch.float64)
    w = random_stack(model, len(data)).double()
    case = problem(model, data, pull(len(data), model.size, kind))
    newton, _, work = fs.Newton().solve(case, w, {})
    exact, _, _ = fs.Exact().solve(case, w, {})
    assert torch.allclose(newton, exact, atol=1e-8)
    assert bool((work % (data.sizes * (model.size + 1)) == 0).all())


@pytest.mark.parametrize("kind", ["one", "each", "matrix"])
def test_it_ends_where_the_gradient_of_a_softmax_model_is_zero(kind: str) -> None:
    fed = federation(class_clients())
    model, data = fs.models.linear()(fed.shape), fed.train.to("cpu", torch.float64)
    prox = pull(len(data), model.size, kind)
    w, _, _ = fs.Newton().solve(problem(model, data, prox), 3 * random_stack(model, len(data)).double(), {})
    assert (own_gradients(model, data, w) + prox.gradient(w)).abs().max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("solver", [fs.SGD(lr=0.02, epochs=400, batch=100), fs.Adam(lr=0.02, epochs=600, batch=100)])
@pytest.mark.parametrize("kind", ["each", "matrix"])
def test_descent_follows_pulls_of_every_kind(solver: fs.SGD | fs.Adam, kind: str) -> None:
    fed = federation(class_clients((6, 9, 4), classes=16))  # 64 parameters: the compiled step of Adam
    model, data = fs.models.linear()(fed.shape), fed.train.to("cpu", torch.float64)
    prox = pull(len(data), model.size, kind)
    prox = Prox(prox.strength / prox.matrix().diagonal(dim1=1, dim2=2).amax() * 20, prox.target / 4)
    case, w = problem(model, data, prox), torch.zeros(len(data), model.size, dtype=torch.float64)
    wanted, _, _ = fs.Newton().solve(case, w, {})
    found, _, _ = solver.solve(case, w, solver.init_state(w))
    assert _height(prox, model, data, found) < _height(prox, model, data, w) * 0.05 + 1e-3
    assert (found - wanted).norm() < 0.2 * wanted.norm()


def _height(prox: Prox, model: Model, data: ClientData, w: Tensor) -> float:
    return float((own_gradients(model, data, w) + prox.gradient(w)).norm())


def test_large_models_are_refused() -> None:
    fed = federation(class_clients())
    with pytest.raises(fs.InputError, match="at most 256 parameters, this one has"):
        fs.fit(fs.Local(), fed, fs.models.mlp(hidden=[64]), rounds=1, solver=fs.Newton())
