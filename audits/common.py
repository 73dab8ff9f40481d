"""One small federation for every audit, our side of it, and what an audit finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.core.contract import Algorithm
from fedsoft.training import Plan, Run, train

SIZES = (5, 11, 23, 8, 19, 6, 14, 12)
INPUTS, CLASSES = 3, 4
TOLERANCE = 1e-5

Pairs = list[tuple[Tensor, Tensor]]
Verdict = Literal["equal", "different", "cannot run"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Arguments:
        what: was compared.
        verdict: `equal` within 1e-5 of the largest number, `different`, or `cannot run`.
        difference: the largest, relative to the largest number of ours; None where there is none.
        remark: why, and what it does.
    """

    what: str
    verdict: Verdict
    difference: float | None = None
    remark: str = ""


@dataclass(frozen=True)
class Audit:
    """One repository.

    Arguments:
        method: of ours.
        paper: it belongs to.
        repository: owner and name.
        commit: that was audited.
        inside: who wrote it: the method's authors, or others.
        findings: in order.
    """

    method: str
    paper: str
    repository: str
    commit: str
    by: Literal["the authors", "others"]
    findings: list[Finding]


@dataclass(frozen=True)
class Ours:
    """A run of fedsoft and where it started: the other side starts there too."""

    centers: Tensor
    personal: Tensor | None
    run: Run


def class_points(seed: int = 0) -> Pairs:
    """Clients of 5 to 23 points in four classes; half of them count the classes backwards."""
    rng = np.random.default_rng(seed)
    theta, pairs = rng.standard_normal((INPUTS, CLASSES)) * 2, []
    for k, n in enumerate(SIZES):
        x = rng.standard_normal((n, INPUTS)).astype(np.float32)
        y = (x @ theta).argmax(1)
        pairs.append((torch.from_numpy(x), torch.from_numpy(y if k % 2 else CLASSES - 1 - y)))
    return pairs


def linear_points(seed: int = 0) -> Pairs:
    """Clients of 5 to 23 points of two linear sources, in shares that run from one to the other."""
    rng = np.random.default_rng(seed)
    theta, pairs = rng.standard_normal((2, INPUTS)) * 2, []
    for k, n in enumerate(SIZES):
        x = rng.standard_normal((n, INPUTS))
        source = (rng.random(n) < (k + 0.5) / len(SIZES)).astype(int)
        y = (x * theta[source]).sum(1) + 0.3 * rng.standard_normal(n)
        pairs.append((torch.from_numpy(x).float(), torch.from_numpy(y).float()))
    return pairs


def softmax_model() -> nn.Module:
    """The network of the classification audits."""
    return nn.Linear(INPUTS, CLASSES)


def linear_model() -> nn.Module:
    """The model of the regression audits."""
    return nn.Linear(INPUTS, 1, bias=False)


def ours(
    algorithm: Algorithm, pairs: Pairs, model: Callable[[], nn.Module] | Any, solver: Any, rounds: int, seed: int = 3
) -> Ours:
    """Train by fedsoft, in float32 as the others do, and say where it started."""
    federation = fs.Federation.from_clients(pairs, held_out=0.0)
    options = fs.FitOptions(progress=False, workers=1)
    plan = Plan.of(algorithm, model, rounds=rounds, solver=solver, seed=seed, options=options)
    engine = plan.engine(federation)
    with torch.no_grad():
        state = engine.start()
    states = engine.client_states
    own = states["w"].clone() if "w" in states else None
    return Ours(state.centers.clone(), own, train(plan, federation, Run))


def load(module: nn.Module, weights: Tensor) -> nn.Module:
    """Give a module the weights of a row of ours."""
    with torch.no_grad():
        nn.utils.vector_to_parameters(weights.float().clone(), module.parameters())
    return module


def row(module: nn.Module) -> Tensor:
    """Return the weights of a module as a row of ours."""
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def compared(what: str, mine: Tensor, theirs: Tensor, remark: str = "") -> Finding:
    """Say whether two results are the same."""
    gap = float((mine.double() - theirs.double()).abs().max() / mine.double().abs().max().clamp(min=1e-12))
    return Finding(what, "equal" if gap <= TOLERANCE else "different", gap, remark)
