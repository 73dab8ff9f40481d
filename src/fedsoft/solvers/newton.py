"""Newton's method, for models of few parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.batches import Problem, Prox
from fedsoft.core.curvature import MOST, gauss_newton
from fedsoft.core.local_solve import OptimizerState, blocks
from fedsoft.core.model import Layout
from fedsoft.errors import InputError
from fedsoft.settings import settings

__all__ = ["Newton"]

CLOSE = 1e-7  # a client stops when no parameter moves by more, as a share of 1 + |w|
HALVINGS = 12  # of a step that does not lower the loss
RIDGE = 1e-6  # of the mean curvature: flat directions stay where they are


@settings
class Newton:
    """Solves the local problem to its minimum by Gauss-Newton steps over all of a client's points.

    For linear, softmax and conditional-logit models these are Newton's own steps, and the problem is convex. A step
    that does not lower the loss is halved. It costs one gradient and one evaluation per parameter, and is counted so.

    Arguments:
        steps: the largest number of steps.
    """

    steps: Annotated[int, Field(ge=1)] = 20

    def init_state(self, w: Tensor, layout: Layout | None = None) -> OptimizerState:
        return {}

    def solve(self, problem: Problem, w: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState, Tensor]:
        size = w.shape[1]
        if size > MOST:
            raise InputError(
                f"local solver 'newton' is for models of at most {MOST} parameters, this one has {size}: use "
                "sgd or adam"
            )
        if problem.model.needs_step:
            raise InputError("local solver 'newton' is not for networks with dropout or BatchNorm: use sgd or adam")
        problem = replace(problem, data=problem.data.to(w.device, torch.float64))
        sizes = problem.data.sizes
        v, taken = w.double(), torch.zeros_like(sizes)
        going = sizes > 0
        value, gradient = _value_and_gradient(problem, v)
        for _ in range(self.steps):
            if not bool(going.any()):
                break
            change = self._direction(problem, v, gradient)
            taken += going
            going &= (change.abs() > CLOSE * (1 + v.abs())).any(1)
            length, there, slope = going.double(), value, gradient
            for _ in range(HALVINGS):
                there, slope = _value_and_gradient(problem, v - length[:, None] * change)
                worse = going & ~(there <= value) & (length > 0)
                if not bool(worse.any()):
                    break
                length = torch.where(worse, length / 2, length)
            better = going & (there <= value)
            going &= better
            v = torch.where(better[:, None], v - length[:, None] * change, v)
            value, gradient = torch.where(better, there, value), torch.where(better[:, None], slope, gradient)
        return v.to(w.dtype), {}, sizes * taken * (size + 1)

    def _direction(self, problem: Problem, v: Tensor, gradient: Tensor) -> Tensor:
        """Return Newton's step of every client."""
        data, size = problem.data, v.shape[1]
        matrix = gauss_newton(problem.model, data, v, problem.point_weights)
        matrix /= data.sizes.clamp(min=1)[:, None, None]
        eye = torch.eye(size, dtype=v.dtype, device=v.device)
        if problem.prox is not None:
            matrix += problem.prox.matrix().to(v)
        mean = matrix.diagonal(dim1=1, dim2=2).mean(1)
        matrix += (RIDGE * mean.clamp(min=torch.finfo(v.dtype).tiny))[:, None, None] * eye
        return torch.linalg.solve(matrix, gradient[:, :, None])[:, :, 0]


def _value_and_gradient(problem: Problem, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each client minimizes, `[m]`, and its gradient `[m, P]`."""
    model, data = problem.model, problem.data
    value, gradient = v.new_zeros(len(v)), torch.zeros_like(v)
    for block in blocks(data):
        rows, x, y = v[block.rows], data.x[block.places], data.y[block.places]
        weight = block.real.to(v.dtype) / data.sizes[block.rows, None]
        if problem.point_weights is not None:
            weight = weight * problem.point_weights[block.order]
        value.index_add_(0, block.rows, (model.loss(model.outputs(rows, x), y) * weight).sum(1))
        gradient.index_add_(0, block.rows, model.gradient(rows, x, y, weight))
    if problem.prox is not None:
        prox = Prox(problem.prox.strength.to(v), problem.prox.target.to(v))
        value, gradient = value + prox.value(v), gradient + prox.gradient(v)
    return value, gradient
