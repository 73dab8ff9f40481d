"""Whole runs of the package against the specification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.core.model import Builder
from fedsoft.seeds import generator
from fedsoft.training import Run
from tests.helpers import Pairs, class_clients, fitted, regression_clients
from tests.specification import fedsoft_loop as specification
from tests.specification.fedsoft_loop import Client, Loss, Options, Outcome

ROUNDS = 6
SEED = 3

ADAM = Options()
SGD = Options(solver="sgd", lr=0.02, momentum=0.9)


def package_run(pairs: Pairs, model: Builder, options: Options, dtype: Literal["float32", "float64"]) -> Run:
    solver = fs.Adam(lr=options.lr, epochs=options.epochs, batch=options.batch, shuffle=options.shuffle)
    if options.solver == "sgd":
        solver = fs.SGD(
            lr=options.lr,
            momentum=options.momentum,
            epochs=options.epochs,
            batch=options.batch,
            shuffle=options.shuffle,
        )
    algorithm = fs.FedSoft(
        S=options.S,
        K=options.K,
        tau=options.tau,
        lam=options.lam,
        sigma=options.sigma,
        replacement=options.replacement,
        start=options.start,
        optimizer_state=options.optimizer_state,
    )
    return fitted(algorithm, pairs, ROUNDS, solver, model=model, seed=SEED, dtype=dtype)


def specified_run(pairs: Pairs, make: Callable[[], nn.Module], run: Run, loss: Loss, options: Options) -> Outcome:
    dtype = run.state.centers.dtype
    clients = [
        Client(str(k), x.to(dtype), y.to(dtype) if y.is_floating_point() else y) for k, (x, y) in enumerate(pairs)
    ]
    return specification.run(clients, make, run.model.draw, loss, options, rounds=ROUNDS, seed=SEED)


def largest(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def assert_agree(run: Run, expected: Outcome, tolerance: float) -> None:
    assert [record.selected for record in run.history] == expected.selected
    assert largest(run.state.u, expected.u) <= tolerance
    assert largest(run.state.centers, expected.centers) <= tolerance
    assert largest(run.engine.client_states["w"], expected.personal) <= tolerance
    # The run went somewhere: agreement of two runs that stand still would mean nothing.
    start = torch.stack([run.model.draw(generator(SEED, "center", s)) for s in range(len(expected.centers))])
    assert largest(start.to(expected.centers), expected.centers) > 0.01


VARIANTS = {
    "adam-own-kept-K": replace(ADAM, K=3),
    "adam-own-fresh-K": replace(ADAM, K=3, optimizer_state="fresh"),
    "adam-own-kept-all": ADAM,
    "adam-mixture-kept-K": replace(ADAM, K=3, start="mixture"),
    "adam-mixture-fresh-replacement": replace(ADAM, K=5, start="mixture", optimizer_state="fresh", replacement=True),
    "adam-three-centers-in-order": replace(ADAM, S=3, K=4, tau=3, sigma=0.05, shuffle=False),
    "adam-no-pull": replace(ADAM, K=3, lam=0.0),
    "sgd-own-kept-K": replace(SGD, K=3),
    "sgd-own-kept-replacement": replace(SGD, K=12, replacement=True),
    "sgd-mixture-fresh-all": replace(SGD, start="mixture", optimizer_state="fresh"),
    "sgd-plain-every-round": replace(SGD, K=3, momentum=0.0, tau=1),
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_linear_regression_run_equals_the_specification(options: Options) -> None:
    pairs = regression_clients()
    run = package_run(pairs, fs.models.linear(), options, "float64")
    expected = specified_run(pairs, lambda: nn.Linear(3, 1, bias=False), run, specification.squared_error, options)
    assert_agree(run, expected, tolerance=1e-9)


def small_network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, outputs))


@pytest.mark.parametrize("name", ["adam-own-kept-K", "adam-own-fresh-K", "sgd-own-kept-K", "sgd-mixture-fresh-all"])
@pytest.mark.parametrize("kind", ["mlp", "module"])
def test_network_regression_run_equals_the_specification(name: str, kind: str) -> None:
    pairs, options = regression_clients(), VARIANTS[name]
    model = fs.models.mlp(hidden=[6, 5]) if kind == "mlp" else fs.models.module(lambda: small_network(1))
    run = package_run(pairs, model, options, "float64")
    expected = specified_run(pairs, lambda: small_network(1), run, specification.squared_error, options)
    assert_agree(run, expected, tolerance=1e-9)


@pytest.mark.parametrize("name", ["adam-own-kept-all", "sgd-mixture-fresh-all"])
@pytest.mark.parametrize("kind", ["mlp", "module"])
def test_classification_run_equals_the_specification(name: str, kind: str) -> None:
    pairs, options = class_clients(), replace(VARIANTS[name], lam=0.1)
    model = fs.models.mlp(hidden=[6, 5]) if kind == "mlp" else fs.models.module(lambda: small_network(4))
    run = package_run(pairs, model, options, "float64")
    expected = specified_run(pairs, lambda: small_network(4), run, specification.cross_entropy, options)
    assert_agree(run, expected, tolerance=1e-9)


def test_adam_run_from_the_mixture_equals_the_specification() -> None:
    # Without ReLU: a parameter that no point of a batch reaches has no gradient but the pull, which vanishes at the
    # mixture itself up to rounding, and Adam blows rounding up to full steps.
    def make() -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))

    pairs, options = regression_clients(), VARIANTS["adam-mixture-fresh-replacement"]
    run = package_run(pairs, fs.models.module(make), options, "float64")
    expected = specified_run(pairs, make, run, specification.squared_error, options)
    assert_agree(run, expected, tolerance=1e-9)


def test_float32_run_equals_the_specification_to_1e_4() -> None:
    # Rounding of 1e-7 per step, over some 150 steps of values near 1.
    pairs, options = regression_clients(), VARIANTS["adam-own-kept-K"]
    run = package_run(pairs, fs.models.mlp(hidden=[6, 5]), options, "float32")
    expected = specified_run(pairs, lambda: small_network(1), run, specification.squared_error, options)
    assert run.state.centers.dtype == torch.float32
    assert_agree(run, expected, tolerance=1e-4)
