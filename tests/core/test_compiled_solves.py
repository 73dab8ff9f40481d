"""The compiled loop takes the steps of the stacked path, whatever the solver, the pull and the clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core import compiled_solves, solve_kernels
from fedsoft.core.batches import Problem, Prox
from fedsoft.core.client_data import Augment, ClientData, DataShape
from fedsoft.core.client_draws import Draws
from fedsoft.core.compiled_solves import compiled_solve
from fedsoft.core.mapped import MappedRows
from fedsoft.core.model import Model
from tests.helpers import random_stack

SIZES = [13, 1, 30, 4, 22, 9]
SOLVERS = {
    "sgd": fs.SGD(lr=0.05),
    "momentum": fs.SGD(lr=0.02, momentum=0.9),
    "nesterov": fs.SGD(lr=0.02, momentum=0.8, nesterov=True, weight_decay=0.1, clip=0.5),
    "adam": fs.Adam(lr=0.03, beta1=0.8, beta2=0.95, eps=1e-6),
    "decay": fs.Adam(lr=0.03, weight_decay=0.1, clip=0.7, shuffle=False),
    "adamw": fs.AdamW(lr=0.03, weight_decay=0.2),
    "rounds": fs.SGD(lr=0.05, schedule=fs.Schedule(name="step", every=1)),
    "steps": fs.Adam(lr=0.05, schedule=fs.Schedule(name="cosine", over="steps", length=40, warmup=3)),
    "task": fs.AdamW(lr=0.05, weight_decay=0.1, schedule=fs.Schedule(name="linear", over="task")),
}


def shaped(kind: str) -> tuple[Model, Tensor, Tensor]:
    """A model and points for all clients."""
    rng, points = np.random.default_rng(0), sum(SIZES)
    x = torch.from_numpy(rng.standard_normal((points, 7)))
    if kind == "squared":
        return fs.models.linear()(DataShape("regression", (7,), 1)), x, torch.from_numpy(rng.standard_normal(points))
    if kind == "softmax":
        y = torch.from_numpy(rng.integers(0, 3, points))
        return fs.models.linear(bias=True)(DataShape("classification", (7,), 3)), x, y
    x = torch.from_numpy(rng.standard_normal((points, 3, 5)))
    x[..., -1] = torch.from_numpy(rng.integers(0, 2, (points, 3)))
    x[:, 1, -1] = 1
    y = torch.ones(points, dtype=torch.int64)
    y[::3], x[::3, 2, -1] = 2, 1
    shape = DataShape("classification", (3, 5), 3)
    return fs.models.conditional_logit(available=kind == "available")(shape), x, y


KINDS = ("squared", "softmax", "choice", "available")


def clients(x: Tensor, y: Tensor) -> ClientData:
    return ClientData.concat(list(zip(x.split(SIZES), y.split(SIZES), strict=True)))


def pull(kind: str, m: int, size: int) -> Prox | None:
    rng = torch.Generator().manual_seed(3)
    target = torch.randn(m, size, generator=rng, dtype=torch.float64)
    if kind == "none":
        return None
    if kind == "matrix":
        root = torch.randn(m, size, size, generator=rng, dtype=torch.float64) / 5
        return Prox(root @ root.mT, target)
    return Prox(torch.rand(m, 1 if kind == "one" else size, generator=rng, dtype=torch.float64), target)


def problem_of(model: Model, data: ClientData, prox: Prox | None = None, weights: Tensor | None = None) -> Problem:
    names = [str(k) for k in range(len(data))]
    return Problem(model, data, prox, weights, lambda: Draws(0, "batches", names=names), t=1)


def settings() -> list[tuple[str, str, str]]:
    """Every solver and pull with some model."""
    pulls = ("none", "one", "own", "matrix")
    found = [(solver, KINDS[i % 4], pulls[(i + i // 4) % 4]) for i, solver in enumerate(SOLVERS)]
    more = [("adam", kind, "one") for kind in KINDS] + [("sgd", "squared", kind) for kind in pulls]
    return list(dict.fromkeys([*found, *more]))


@pytest.mark.parametrize(("solver", "kind", "pulled"), settings())
def test_all_steps_are_those_of_the_stacked_path(solver: str, kind: str, pulled: str) -> None:
    model, x, y = shaped(kind)
    data, ours = clients(x, y), replace(SOLVERS[solver], epochs=3, batch=5)
    prox = pull(pulled, len(SIZES), model.size)
    w = stacked = random_stack(model, len(SIZES))
    state = kept = ours.init_state(w)
    weights = torch.rand(len(y), dtype=torch.float64) if solver in ("momentum", "adamw") else None
    for _ in range(2):
        found = compiled_solve(ours, problem_of(model, data, prox, weights), w, state)
        assert found is not None
        w, state, work = found
        stacked, kept, told = ours.solve(problem_of(model.by("stacked"), data, prox, weights), stacked, kept)
        assert torch.allclose(w, stacked, rtol=1e-9, atol=1e-11)
        assert torch.equal(work, told)
        assert state.keys() == kept.keys()
        assert all(torch.allclose(state[name].double(), kept[name].double(), rtol=1e-9) for name in state)
    assert not torch.allclose(w, random_stack(model, len(SIZES)), atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_agrees_to_a_millionth(kind: str) -> None:
    model, x, y = shaped(kind)
    data = clients(x, y).to("cpu", torch.float32)
    w = random_stack(model, len(SIZES)).float()
    ours = fs.Adam(epochs=10)
    found, *_ = ours.solve(problem_of(model, data), w, ours.init_state(w))
    other, *_ = ours.solve(problem_of(model.by("stacked"), data), w, ours.init_state(w))
    assert found.dtype == torch.float32
    assert torch.linalg.norm(found - other) < 1e-6 * torch.linalg.norm(other)


@pytest.mark.parametrize("outputs", [2, 4, 5, 10])
@pytest.mark.parametrize("kind", ["softmax", "choice", "available"])
def test_gradients_of_any_number_of_outputs_and_points_are_those_of_torch(kind: str, outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    points = 37  # two full blocks of lanes, and a part of one
    wide = torch.from_numpy(rng.standard_normal((points, 21) if kind == "softmax" else (points, outputs, 7)))
    y, weight = torch.from_numpy(rng.integers(0, outputs, points)), torch.from_numpy(rng.random(points))
    if kind == "available":
        wide[..., -1] = torch.from_numpy(rng.integers(0, 2, (points, outputs)))
        wide[torch.arange(points), y, -1] = 1
    maker = fs.models.linear() if kind == "softmax" else fs.models.conditional_logit(available=kind == "available")
    model = maker(DataShape("classification", tuple(wide.shape[1:]), outputs))
    data, w = ClientData.concat([(wide, y)]), random_stack(model, 1)
    ours = fs.SGD(lr=1.0, epochs=1, batch=points, shuffle=False)
    stepped = ours.solve(problem_of(model, data, weights=weight), w, ours.init_state(w))[0]
    w.requires_grad_()
    with torch.enable_grad():
        if kind == "softmax":
            scores = wide @ w.view(outputs, -1).T
        else:
            scores = wide[..., : w.shape[1]] @ w[0]
            scores = scores - 1e4 * (1 - wide[..., -1]) if kind == "available" else scores
        loss = (torch.nn.functional.cross_entropy(scores, y, reduction="none") * weight).sum() / points
    (gradient,) = torch.autograd.grad(loss, w)
    assert torch.allclose(w.detach() - stepped, gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponentials_are_those_of_torch(dtype: type) -> None:
    x = np.concatenate([-np.logspace(-8, 1.93, 3000), [0.0, -87.0]]).astype(dtype)
    found, total = x.copy(), np.zeros_like(x)
    solve_kernels.exponentials(found, np.zeros_like(x), total)
    assert np.allclose(found, np.exp(x.astype(np.float64)), rtol=3e-7 if dtype == np.float32 else 1e-14, atol=0)
    assert np.array_equal(found, total)
    odd = np.array([np.nan, -np.inf, -1e4], dtype)
    solve_kernels.exponentials(odd, np.zeros_like(odd), np.zeros_like(odd))
    assert np.isnan(odd[0])
    assert (odd[1:] < 2e-38).all()


@pytest.mark.parametrize("kind", ["squared", "softmax"])
def test_bits_do_not_depend_on_the_other_clients(kind: str) -> None:
    model, x, y = shaped(kind)
    data, ours = clients(x, y).to("cpu", torch.float32), fs.Adam(epochs=2, batch=5)
    w = random_stack(model, len(SIZES)).float()
    whole = ours.solve(problem_of(model, data), w, ours.init_state(w))[0]
    rows = np.array([4, 2])
    some = replace(problem_of(model, data.take(rows)), draws=lambda: Draws(0, "batches", names=["4", "2"]))
    assert torch.equal(ours.solve(some, w[rows], ours.init_state(w[rows]))[0], whole[rows])


def test_points_as_bytes_and_on_disk_are_the_same(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (sum(SIZES), 1, 3, 2), dtype=np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    y = torch.arange(sum(SIZES)) % 3
    model = fs.models.linear()(DataShape("classification", (1, 3, 2), 3))
    data = clients(torch.from_numpy(pixels), y)
    on_disk = replace(data, x=MappedRows.of(np.load(tmp_path / "x.npy", mmap_mode="r")))
    w, ours = random_stack(model, len(SIZES)).float(), fs.SGD(epochs=2)
    found, other = (ours.solve(problem_of(model, each), w, {})[0] for each in (data, on_disk))
    assert torch.equal(found, other)
    assert torch.allclose(found, ours.solve(problem_of(model.by("stacked"), data), w, {})[0], atol=1e-6)


@pytest.mark.parametrize("backend", ["compiled", "stacked"])
def test_clients_without_points_stay_as_they_are(backend: str) -> None:
    model, x, y = shaped("softmax")
    model, empty = model.by(backend), (x[:0], y[:0])
    w, ours = random_stack(model, 2), fs.Adam(epochs=2, batch=5)
    solved, state, work = ours.solve(problem_of(model, ClientData.concat([empty, empty])), w, ours.init_state(w))
    assert torch.equal(solved, w)
    assert int(state["steps"].sum()) == int(work.sum()) == 0
    some = ClientData.concat([empty, (x[:7], y[:7])])
    solved, state, work = ours.solve(problem_of(model, some), w, ours.init_state(w))
    assert torch.equal(solved[0], w[0])
    assert not torch.equal(solved[1], w[1])
    assert state["steps"].tolist() == [0, 4]
    assert work.tolist() == [0, 14]


@pytest.mark.parametrize("why", ["augment", "labels", "much", "solver", "stacked", "type"])
def test_what_the_loop_does_not_know_is_left_to_the_stacked_path(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = shaped("softmax")
    data, ours = clients(x, y), fs.SGD(epochs=1)
    w = random_stack(model, len(SIZES))
    assert compiled_solve(ours, problem_of(model, data), w, {}) is not None
    changes: dict[str, Callable[[], Problem]] = {
        "augment": lambda: problem_of(model, replace(data, augment=Augment(0, flip=True))),
        "labels": lambda: problem_of(model, replace(data, y=data.y + 1)),
        "stacked": lambda: problem_of(model.by("stacked"), data),
    }
    if why == "much":
        monkeypatch.setattr(compiled_solves, "LARGEST", 100)
    solver = fs.TorchOptimizer(optimizer="torch.optim.SGD", options={"lr": 0.1}) if why == "solver" else ours
    w = w.bfloat16() if why == "type" else w
    assert compiled_solve(solver, changes.get(why, lambda: problem_of(model, data))(), w, {}) is None
