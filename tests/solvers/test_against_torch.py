"""Every solver with every setting, on every backend, is a plain loop with torch.optim for each client alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.core.batches import Prox
from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.model import Model
from tests.helpers import RAGGED, Pairs, problem, random_stack
from tests.solvers.naive import Make, Rate, naive_clients

BATCH, EPOCHS, ROUNDS = 5, 2, 3
COMMON: dict[str, Any] = {"batch": BATCH, "epochs": EPOCHS}


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 4))


def wide() -> nn.Module:  # beyond the few parameters for which steps are left to torch
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))


def images() -> nn.Module:  # with a weight whose gradient stays a product
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(1152, 60), nn.ReLU(), nn.Linear(60, 4)
    )


def class_points(shape: tuple[int, ...], seed: int = 0) -> Pairs:
    rng = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(n, *shape, generator=rng, dtype=torch.float64), torch.randint(0, 4, (n,), generator=rng))
        for n in RAGGED
    ]


NETWORKS = {
    "small": (small, "stacked", (3,)), "stacked": (wide, "stacked", (3,)), "loop": (wide, "loop", (3,)),
    "chain": (images, "chain", (1, 12, 12)),
}  # fmt: skip


def half_each_round(t: int, step: int, steps: int) -> float:
    return 0.5**t


def cosine_of_rounds(t: int, step: int, steps: int) -> float:
    return 0.5 if t == 0 else 0.1 + 0.9 * (1 + math.cos(math.pi * max(0, t - 2) / 4)) / 2


def linear_of_steps(t: int, step: int, steps: int) -> float:
    now = t * steps + step
    return (now + 1) / 3 if now < 3 else max(1 - (now - 3) / 20, 1e-9)


def cosine_of_task(t: int, step: int, steps: int) -> float:
    return (1 + math.cos(math.pi * step / steps)) / 2


SCHEDULES: dict[str, tuple[fs.Schedule, Rate]] = {
    "step": (fs.Schedule(name="step", every=1, factor=0.5), half_each_round),
    "cosine": (fs.Schedule(name="cosine", length=4, warmup=2, least=0.1), cosine_of_rounds),
    "steps": (fs.Schedule(name="linear", over="steps", length=20, warmup=3), linear_of_steps),
    "task": (fs.Schedule(name="cosine", over="task"), cosine_of_task),
}

SOLVERS: dict[str, tuple[Any, Make]] = {
    "sgd, decay": (
        fs.SGD(lr=0.05, weight_decay=0.3, **COMMON), lambda w: torch.optim.SGD(w, lr=0.05, weight_decay=0.3)
    ),
    "sgd, momentum, decay, clip": (
        fs.SGD(lr=0.05, momentum=0.8, weight_decay=0.3, clip=0.7, **COMMON),
        lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.8, weight_decay=0.3),
    ),
    "sgd, nesterov, clip": (
        fs.SGD(lr=0.05, momentum=0.8, nesterov=True, clip=0.7, **COMMON),
        lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.8, nesterov=True),
    ),
    "adam, decay": (
        fs.Adam(lr=0.03, weight_decay=0.3, **COMMON), lambda w: torch.optim.Adam(w, lr=0.03, weight_decay=0.3)
    ),
    "adam, clip": (fs.Adam(lr=0.03, clip=0.7, **COMMON), lambda w: torch.optim.Adam(w, lr=0.03)),
    "adamw": (fs.AdamW(lr=0.03, weight_decay=0.3, **COMMON),
              lambda w: torch.optim.AdamW(w, lr=0.03, weight_decay=0.3)),
    "adamw, clip": (fs.AdamW(lr=0.03, weight_decay=0.3, clip=0.7, **COMMON),
                    lambda w: torch.optim.AdamW(w, lr=0.03, weight_decay=0.3)),
}  # fmt: skip


def given(optimizer: type[torch.optim.Optimizer], **options: Any) -> tuple[fs.TorchOptimizer, Make]:
    return fs.TorchOptimizer(optimizer=optimizer, options=options, **COMMON), lambda w: optimizer(w, **options)


SOLVERS |= {
    f"torch {type.__name__}": given(type, **options)
    for type, options in (
        (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.1}),
        (torch.optim.Adagrad, {"lr": 0.05}),
        (torch.optim.Adadelta, {"lr": 0.5}),
        (torch.optim.Adamax, {"lr": 0.01, "betas": [0.8, 0.9]}),
        (torch.optim.NAdam, {"lr": 0.01}),
        (torch.optim.RAdam, {"lr": 0.01}),
        (torch.optim.Rprop, {"lr": 0.01}),
        (torch.optim.ASGD, {"lr": 0.05}),
        (torch.optim.Adafactor, {"lr": 0.05}),  # factors matrices: it must see the tensors of the network
        (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    )
}


def compared(network: str, solver: Any, make: Make, *, rate: Rate | None = None, atol: float = 1e-8) -> None:
    make_net, backend, shape = NETWORKS[network]
    pairs = class_points(shape)
    if network == "chain":
        pairs = pairs[:4]
    model = fs.models.module(make_net)(DataShape("classification", shape, 4)).by(backend)
    w, data = random_stack(model, len(pairs)), ClientData.concat(pairs)
    alone = naive_clients(make_net, pairs, w, make)
    state = solver.init_state(w, model.layout)
    for t in range(ROUNDS):
        u, centers = pulls(model, len(pairs), t)
        task = replace(problem(model, data, Prox.to_centers(u, centers)), t=t)
        w, state, _ = solver.solve(task, w, state)
        for k, client in enumerate(alone):
            client.round(
                t, u[k], centers, batch=BATCH, epochs=EPOCHS, clip=solver.clip,
                rate=rate or (lambda t, step, steps: 1.0),
            )  # fmt: skip
        expected = torch.stack([client.flat() for client in alone])
        torch.testing.assert_close(w, expected, rtol=0, atol=atol)


def pulls(model: Model, m: int, t: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(t)
    return torch.rand(m, 3, generator=rng, dtype=torch.float64), random_stack(model, 3, seed=t + 1)


IN_A_CHAIN = (
    "sgd, momentum, decay, clip",
    "adam, decay",
    "adam, clip",
    "adamw, clip",
    "torch RMSprop",
    "torch Adafactor",
)
EVERYWHERE = [(network, solver) for network in ("small", "stacked", "loop") for solver in SOLVERS]


@pytest.mark.parametrize(("network", "solver"), [*EVERYWHERE, *(("chain", solver) for solver in IN_A_CHAIN)])
def test_ragged_clients_over_rounds_are_a_plain_loop_with_torch(network: str, solver: str) -> None:
    compared(network, *SOLVERS[solver])


@pytest.mark.parametrize("network", ["small", "stacked", "loop"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("solver", ["sgd, momentum, decay, clip", "adam, decay", "adamw", "torch RMSprop"])
def test_a_schedule_sets_the_rate_of_every_step(network: str, schedule: str, solver: str) -> None:
    ours, make = SOLVERS[solver]
    found, rate = SCHEDULES[schedule]
    compared(network, replace(ours, schedule=found), make, rate=rate)


@pytest.mark.parametrize("network", ["stacked", "loop"])
def test_an_optimizer_with_a_closure_asks_again_and_starts_anew_in_every_task(network: str) -> None:
    make_net, backend, shape = NETWORKS[network]
    pairs = class_points(shape)[:4]
    model = fs.models.module(make_net)(DataShape("classification", shape, 4)).by(backend)
    w, data = random_stack(model, len(pairs)), ClientData.concat(pairs)
    options = {"lr": 0.3, "max_iter": 4, "line_search_fn": "strong_wolfe"}
    solver = fs.TorchOptimizer(optimizer=torch.optim.LBFGS, options=options, batch=50, epochs=2)
    u, centers = pulls(model, len(pairs), 0)
    assert solver.init_state(w, model.layout) == {}
    solved, _, gradients = solver.solve(problem(model, data, Prox.to_centers(u, centers)), w, {})
    alone = naive_clients(make_net, pairs, w, lambda p: torch.optim.LBFGS(p, **options))
    for k, client in enumerate(alone):
        client.round(0, u[k], centers, batch=50, epochs=2)
    torch.testing.assert_close(solved, torch.stack([c.flat() for c in alone]), rtol=0, atol=1e-7)
    assert bool((gradients > 2 * data.sizes).all())  # every evaluation is counted as work
