"""From an algorithm, a federation and a model to an engine that is ready for the first round."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from fedsoft.batches import Problem
from fedsoft.clientdata import ClientData
from fedsoft.contract import Algorithm
from fedsoft.errors import InputError
from fedsoft.federation import Federation
from fedsoft.local import Solver
from fedsoft.model import Builder, Model, check_outputs, squared_loss
from fedsoft.models.module import module
from fedsoft.seeds import generator
from fedsoft.simulate import Engine, Simulation
from fedsoft.solvers.adam import Adam
from fedsoft.trust.absence import Absent, dropout, together
from fedsoft.trust.attack import Attack, liars, spoiled
from fedsoft.trust.guards import Care
from fedsoft.trust.robust import Rule

E = TypeVar("E", bound=Engine, default=Simulation)

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def as_model(model: Any, federation: Federation) -> Model:
    """Make the model for the data and try it on a few points."""
    if isinstance(model, nn.Module) or (isinstance(model, type) and issubclass(model, nn.Module)):
        model = module(factory=model)
    elif callable(model) and not inspect.signature(model).parameters:
        model = module(factory=model)  # a function that makes a network
    elif not callable(model) and not isinstance(model, Model):
        raise InputError(f"model = {model!r} is not allowed: should be one of fedsoft.models, or a torch.nn.Module")
    built: Any = model if isinstance(model, Model) else model(federation.shape)
    if isinstance(built, nn.Module):
        raise InputError("model: give the network as fedsoft.models.module(factory), or the network itself")
    x, y = _few_points(federation)
    check_outputs(built, federation.shape, x, y)
    return built


def prepare(
    algorithm: Algorithm, federation: Federation, model: Builder | Model | nn.Module, *, seed: int,
    local: Solver | None = None, device: str = "cpu", dtype: str = "float32", chunk: int | None = None,
    drop: float = 0.0, backend: str = "auto", workers: int | None = None, memory: int | str | None = None,
    rule: Rule | None = None, attack: Attack | None = None, engine: Callable[..., E] = Simulation,
    absent: Absent | None = None, care: Care | None = None,
) -> E:  # fmt: skip
    """Everything in place for the first round. `engine` is a `Factory`, see `fedsoft.engines`."""
    if dtype not in DTYPES:
        raise InputError(f"dtype = '{dtype}' is not allowed: should be 'float32' or 'float64'")
    check_device(device)
    solver, built = local or Adam(), as_model(model, federation).by(_backend(backend, device))
    _try_out(solver, built, federation)
    if care is not None and care.privacy is not None:
        squared = built.loss is squared_loss
        care.privacy.check(algorithm, len(federation), rule=rule, guard=care.norm, squared=squared)
    false = frozenset() if attack is None else liars(federation.names, attack.share, seed)
    if attack is not None:
        rows = np.array([k for k, name in enumerate(federation.names) if name in false], dtype=np.int64)
        federation = replace(federation, train=spoiled(federation.train, rows, attack, federation.shape))
    made = engine(
        algorithm, built, solver, federation,
        seed=seed, chunk=chunk, device=device, dtype=DTYPES[dtype], absent=together(dropout(drop, seed), absent),
        workers=workers, memory=memory, rule=rule, attack=attack, liars=false, care=care or Care(),
    )  # fmt: skip
    made.attacked = attack is not None
    return made


def crowded(algorithm: Algorithm, clients: int) -> str | None:
    """A sentence where there are more centers than clients; else None."""
    S = getattr(algorithm, "S", None)
    if not isinstance(S, int) or S <= clients:
        return None
    return f"S = {S} centers for {clients} client{'s' * (clients != 1)}: some will have hardly any data to learn from"


def _backend(backend: str, device: str) -> str:
    """What is written by hand is written for the CPU; elsewhere large stacks are what is fast."""
    return "stacked" if backend == "auto" and device != "cpu" else backend


def _few_points(federation: Federation) -> tuple[Tensor, Tensor]:
    """Of the client that has most: one point does not tell a mean over points from a value for each."""
    if not len(federation.train.x):  # they are elsewhere: zeros have the shape, too
        x, y = federation.train.x, federation.train.y
        return x.new_zeros(4, *x.shape[1:]), y.new_zeros(4, *y.shape[1:])
    data = federation.train.take([int(federation.train.sizes.argmax())])
    x, y = data.client(0)
    return ClientData.concat([(x[:4], y[:4])]).to("cpu", torch.float32).client(0)


def check_device(device: str) -> None:
    """Complain about a device that is not there."""
    cuda = torch.cuda.is_available()
    if device != "cpu" and not (device.startswith("cuda") and cuda):
        allowed = "'cpu' or 'cuda'" if cuda else "'cpu'"
        raise InputError(f"device = '{device}' is not available here: should be {allowed}")


def _try_out(solver: Solver, model: Model, federation: Federation) -> None:
    """Solve one tiny problem, so that what cannot work is said before a run begins."""
    data = ClientData.concat([_few_points(federation)])
    w = model.draw(generator(0, "try"))[None]
    with torch.no_grad():
        solver.solve(Problem(model, data, None, None, lambda: [generator(0, "try")]), w, solver.moments(w))
