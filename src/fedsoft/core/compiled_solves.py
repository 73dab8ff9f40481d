"""Local solves of models that are linear in their inputs, by one compiled loop over clients (`solve_kernels`).

A model's backend says that it is one of them by its `form`, a solver by its `rule`. Everything else, and what the loop
does not know (points on disk that do not fit into memory, images that are varied, other devices), is left to the
stacked path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.batches import Problem, check_rows
from fedsoft.core.mapped import MappedRows
from fedsoft.core.schedules import Schedule
from fedsoft.errors import InputError

LARGEST = 2**26  # bytes of the points of a chunk that are gathered or read from disk at once
MOST = 2**14  # parameters: beyond, products of matrices are faster

Solved = tuple[Tensor, dict[str, Tensor], Tensor]


@dataclass(frozen=True)
class Form:
    """How a model depends on its parameters: through products with rows of features alone.

    Arguments:
        kind: `squared`: the squared loss of `<w, x>`; `softmax`: the cross-entropy of `W x`; `choice`: that of the
            products `<w, x_a>` with the rows of each alternative; with `available`, one of which says whether it is.
        features: inputs as numbers `[points, ...]` to rows `[points, width]`, or `[points, alternatives, width]`.
        outputs: scores, or alternatives.
    """

    kind: Literal["squared", "softmax", "choice", "available"]
    features: Callable[[Tensor], Tensor]
    outputs: int = 1


@runtime_checkable
class FormBackend(Protocol):
    """A backend of a model that the compiled loop knows."""

    @property
    def form(self) -> Form | None: ...


@dataclass(frozen=True)
class Rule:
    """How a first-order solver steps: by moments as Adam does, or along a velocity."""

    lr: float
    schedule: Schedule | None
    adam: bool
    beta1: float  # or the momentum
    beta2: float = 0.0
    eps: float = 0.0
    nesterov: bool = False
    decay: float = 0.0  # in the gradient
    decoupled: float = 0.0  # apart from it
    clip: float = 0.0  # 0: none

    def rates(self, steps: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the learning rates of the `steps` of each client, and where each client's begin."""
        nothing = np.zeros(len(steps), dtype=np.int64)
        if self.schedule is None:
            return np.array([self.lr]), nothing
        if self.schedule.over == "rounds":
            now = torch.tensor(t)
            return np.array([self.lr * float(self.schedule.factors(now, now))]), nothing
        begins = np.cumsum(steps) - steps
        number = np.arange(steps.sum()) - np.repeat(begins, steps)
        most = torch.from_numpy(np.repeat(steps, steps))
        done = torch.from_numpy(number) + (t * most if self.schedule.over == "steps" else 0)
        found = self.lr * self.schedule.factors(done, most).numpy()
        # A single rate would be taken for that of all steps.
        return np.append(found, 0.0) if len(found) == 1 else found, begins


@runtime_checkable
class Ruled(Protocol):
    """A solver whose steps the compiled loop knows; None where it does not."""

    @property
    def rule(self) -> Rule | None: ...

    @property
    def epochs(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def shuffle(self) -> bool: ...


def compiled_solve(solver: object, problem: Problem, w: Tensor, state: dict[str, Tensor]) -> Solved | None:
    """Return the new models, state and gradients of every client; None where the loop does not serve."""
    backend = problem.model.backend
    if not isinstance(backend, FormBackend) or not isinstance(solver, Ruled):
        return None
    form, rule = backend.form, solver.rule
    known = w.device.type == "cpu" and w.dtype in (torch.float32, torch.float64)
    known &= w.shape[1] <= MOST
    if form is None or rule is None or not known or problem.data.augment is not None or not len(w):
        return None
    points = _Points.of(form, problem, w.dtype)
    return None if points is None else _solve(form, rule, solver, problem, points, w, state)


@dataclass(frozen=True)
class _Points:
    """Rows of features in memory, where each client's begin, and targets in the order of the clients."""

    rows: Tensor
    starts: Tensor
    targets: Tensor

    @staticmethod
    def of(form: Form, problem: Problem, dtype: torch.dtype) -> _Points | None:
        """Return the points of a problem; None where they are too many, or not what the loop takes."""
        data, x = problem.data, problem.data.x
        point = x[:1].numel() * (dtype.itemsize if x.is_floating_point() else max(dtype.itemsize, x.element_size()))
        plain = not isinstance(x, MappedRows)
        targets = data.y[data.points]
        known = (
            form.kind == "squared"
            or not len(targets)
            or (int(targets.min()) >= 0 and int(targets.max()) < form.outputs)
        )
        if targets.ndim != 1 or not known:
            return None
        if plain and x.dtype == dtype and x.is_contiguous() and (whole := _view(form, x)) is not None:
            return _Points(whole, data.starts, targets.to(dtype))
        if len(data.points) * point > LARGEST:
            return None
        rows = form.features(problem.model.inputs(data.x.index_select(0, data.points), dtype))
        return _Points(rows.reshape(len(rows), -1).contiguous(), data.offsets, targets.to(dtype))


def _view(form: Form, x: Tensor) -> Tensor | None:
    """Return the features of a whole pool of points, if they are the inputs as they lie in memory."""
    if not len(x):
        return None
    first = form.features(x[:1])
    same = first.numel() == x[:1].numel() and first.data_ptr() == x.data_ptr()
    return x.view(len(x), -1) if same else None


def _solve(
    form: Form, rule: Rule, solver: Ruled, problem: Problem, points: _Points, w: Tensor, state: dict[str, Tensor]
) -> Solved:
    from fedsoft.core import solve_kernels as kernels

    data, m, size = problem.data, *w.shape
    sizes = data.sizes.numpy()
    w, state = w.clone(memory_format=torch.contiguous_format), {name: v.clone() for name, v in state.items()}
    nothing = w.new_empty(1, 0).numpy()
    moments = [state[name] for name in ("first", "second", "velocity") if name in state]
    for each in moments:
        check_rows("the state of the optimizer", each, m, size)
    first, second = ([each.numpy() for each in moments] + [nothing] * 2)[:2]
    taken = state["steps"].numpy() if "steps" in state else np.zeros(m, dtype=np.int64)
    kinds = {
        "squared": kernels.SQUARED, "softmax": kernels.SOFTMAX, "choice": kernels.CHOICE,
        "available": kernels.CHOICE_OF_AVAILABLE,
    }  # fmt: skip
    width = points.rows.shape[1] // (form.outputs if form.kind in ("choice", "available") else 1)
    if problem.prox is None:
        pull = (kernels.NO_PULL, nothing, nothing)
    else:
        strength = problem.prox.strength
        several = kernels.OWN_STRENGTHS if strength.shape[1] > 1 else kernels.ONE_STRENGTH
        kind = kernels.MATRIX if strength.ndim == 3 else several
        pull = (kind, strength.reshape(m, -1).contiguous().numpy(), problem.prox.target.contiguous().numpy())
    weights = problem.point_weights
    if weights is not None and len(weights) != len(points.targets):
        raise InputError(f"there are {len(weights)} weights of points: should be {len(points.targets)}")
    if solver.shuffle:
        order = problem.draws().permutations(sizes, solver.epochs)
    else:
        order = np.tile(np.arange(sizes.sum()), (solver.epochs, 1))
    steps = -(-sizes // solver.batch) * solver.epochs
    kernels.solve(
        (kinds[form.kind], form.outputs, width),
        (
            points.rows.numpy(), points.targets.numpy(), points.starts.numpy(),
            nothing[0] if weights is None else weights.to(w.dtype).contiguous().numpy(),
        ),
        (order, np.cumsum(sizes), solver.batch),
        pull,
        (first, second, taken),
        (
            rule.adam, rule.nesterov,
            np.array([rule.beta1, rule.beta2, rule.eps, rule.decay, rule.decoupled, rule.clip]),
        ),
        rule.rates(steps, problem.t),
        w.numpy(),
    )  # fmt: skip
    if "steps" in state:
        state["steps"] += torch.from_numpy(steps)
    return w, state, data.sizes * solver.epochs
