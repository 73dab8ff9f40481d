"""Newton's method, for models of few parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.batches import Problem, Prox
from fedsoft.core.curvature import MOST, jacobian, pulled_back
from fedsoft.core.local_solve import OptimizerState, blocks
from fedsoft.core.model import Layout
from fedsoft.errors import InputError
from fedsoft.settings import settings

__all__ = ["Newton"]

CLOSE = 1e-7  # a client stops when no parameter moves by more, as a share of 1 + |w|
HALVINGS = 12  # of a step that does not lower the loss
KEPT = 2**24  # derivatives that are kept from step to step, where they stay the same
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
        sizes, parts = problem.data.sizes, _parts(problem, w.double())
        v, taken = w.double(), torch.zeros_like(sizes)
        going = sizes > 0
        value, gradient = _value_and_gradient(problem, parts, v, going)
        for _ in range(self.steps):
            if not bool(going.any()):
                break
            change = self._direction(problem, parts, v, gradient, going)
            taken += going
            going &= (change.abs() > CLOSE * (1 + v.abs())).any(1)
            length, there, slope, moving = going.double(), value, gradient, going
            for _ in range(HALVINGS):
                if not bool(moving.any()):
                    break
                new, new_slope = _value_and_gradient(problem, parts, v - length[:, None] * change, moving)
                there, slope = torch.where(moving, new, there), torch.where(moving[:, None], new_slope, slope)
                moving = moving & ~(there <= value)
                length = torch.where(moving, length / 2, length)
            better = going & ~moving
            going &= better
            v = torch.where(better[:, None], v - length[:, None] * change, v)
            value, gradient = torch.where(better, there, value), torch.where(better[:, None], slope, gradient)
        return v.to(w.dtype), {}, sizes * taken * (size + 1)

    def _direction(self, problem: Problem, parts: list[_Part], v: Tensor, gradient: Tensor, among: Tensor) -> Tensor:
        """Return Newton's step of every client among these, and none of the others."""
        size, matrix = v.shape[1], v.new_zeros(len(v), v.shape[1], v.shape[1])
        for part in parts:
            one = part.among(among)
            if not len(one.rows):
                continue
            output = problem.model.outputs(v[one.rows], one.x)
            known = jacobian(problem.model, v[one.rows], one.x) if one.jacobian is None else one.jacobian
            matrix.index_add_(0, one.rows, pulled_back(problem.model, known, output, one.y, one.weight))
        if problem.prox is not None:
            matrix += problem.prox.matrix().to(v)
        mean = matrix.diagonal(dim1=1, dim2=2).mean(1)
        eye = torch.eye(size, dtype=v.dtype, device=v.device)
        matrix += (RIDGE * mean.clamp(min=torch.finfo(v.dtype).tiny))[:, None, None] * eye
        found = torch.zeros_like(v)
        found[among] = torch.linalg.solve(matrix[among], gradient[among, :, None])[:, :, 0]
        return found


@dataclass(frozen=True)
class _Part:
    """Points of clients, padded, with what does not change from step to step.

    Arguments:
        rows: the clients, `[a]`.
        x, y: their points, `[a, B, ...]`.
        weight: of the points in the client's mean, 0 where padded.
        jacobian: derivatives of the outputs, of models for which they are always the same.
    """

    rows: Tensor
    x: Tensor
    y: Tensor
    weight: Tensor
    jacobian: Tensor | None

    def among(self, clients: Tensor) -> _Part:
        """Return the part of some clients, `clients[m]`."""
        kept = clients[self.rows]
        if bool(kept.all()):
            return self
        known = None if self.jacobian is None else self.jacobian[kept]
        return _Part(self.rows[kept], self.x[kept], self.y[kept], self.weight[kept], known)


def _parts(problem: Problem, v: Tensor) -> list[_Part]:
    """Return the points of all clients."""
    model, data, found = problem.model, problem.data, []
    for block in blocks(data):
        x, y = data.x[block.places], data.y[block.places]
        weight = block.real.to(v.dtype) / data.sizes[block.rows, None]
        if problem.point_weights is not None:
            weight = weight * problem.point_weights[block.order]
        known = (
            jacobian(model, v[block.rows], x) if model.is_linear and block.places.numel() * model.size <= KEPT else None
        )
        found.append(_Part(block.rows, x, y, weight, known))
    return found


def _value_and_gradient(problem: Problem, parts: list[_Part], v: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each client among these minimizes, `[m]`, and its gradient `[m, P]`."""
    model, value, gradient = problem.model, v.new_zeros(len(v)), torch.zeros_like(v)
    for part in parts:
        one = part.among(among)
        rows = v[one.rows]
        if not len(rows):
            continue
        with torch.enable_grad():
            output = model.outputs(rows, one.x).detach().requires_grad_()
            losses = (model.loss(output, one.y) * one.weight).sum(1)
            slope = torch.autograd.grad(losses.sum(), output)[0] if one.jacobian is not None else output
        value.index_add_(0, one.rows, losses.detach())
        if one.jacobian is None:
            found = model.gradient(rows, one.x, one.y, one.weight)
        else:
            found = (one.jacobian.flatten(1, 2).mT @ slope.flatten(1)[:, :, None])[:, :, 0]
        gradient.index_add_(0, one.rows, found)
    if problem.prox is not None:
        prox = Prox(problem.prox.strength.to(v), problem.prox.target.to(v))
        value, gradient = value + prox.value(v), gradient + prox.gradient(v)
    return value, gradient
