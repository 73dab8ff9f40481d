"""The curvature of clients' losses at their own models: the Gauss-Newton matrix, or its diagonal for large models.

For models that are linear in their parameters (linear, softmax, conditional logit) the Gauss-Newton matrix is the
Hessian. It is never indefinite, so it can serve as the precision of a Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsoft.core.client_data import ClientData
from fedsoft.core.local_solve import blocks
from fedsoft.core.metrics import cross_entropy, squared_loss
from fedsoft.core.model import Model

MOST = 256  # parameters for which the whole matrix is computed: it costs one evaluation for each of them
BLOCK = 2**24  # numbers in the gradients of single points that are held at once


def gauss_newton(model: Model, data: ClientData, w: Tensor, point_weights: Tensor | None = None) -> Tensor:
    """Return the Gauss-Newton matrix `[m, P, P]` of each client's summed loss at its own model `w[m, P]`."""
    m, size = w.shape
    total = w.new_zeros(m, size, size)
    for block in blocks(data):
        rows, x, y = w[block.rows], data.x[block.places], data.y[block.places]
        weight = block.real.to(w.dtype)
        if point_weights is not None:
            weight = weight * point_weights[block.order]
        total.index_add_(0, block.rows, pulled_back(model, jacobian(model, rows, x), model.outputs(rows, x), y, weight))
    return (total + total.mT) / 2


def pulled_back(model: Model, jacobian: Tensor, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the Gauss-Newton matrix `[a, P, P]` of points `[a, B]`, from the derivatives of their outputs."""
    if model.loss is cross_entropy:  # p_o (J_o - mean)(J_o - mean)', with the mean under p
        p = output.softmax(-1)
        apart = jacobian - (p[..., None] * jacobian).sum(2, keepdim=True)
        left = (apart * (p * weight[..., None])[..., None]).flatten(1, 2)
        return left.mT @ apart.flatten(1, 2)
    hessian = _loss_hessian(model.loss, output, y) * weight[:, :, None, None]
    return jacobian.flatten(1, 2).mT @ (hessian @ jacobian).flatten(1, 2)


def gauss_newton_diagonal(
    model: Model, data: ClientData, w: Tensor, targets: Callable[[Tensor], Tensor] | None = None,
    point_weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the diagonal `[m, P]` of that matrix, from squared gradients of single points.

    Arguments:
        targets: draws targets from the model's own outputs `[points, ...]`; the expectation over such draws is the
            Gauss-Newton matrix. Without it the clients' own targets are used (the empirical Fisher matrix).
        point_weights: of the points, in the order of `data.points`.
    """
    total = torch.zeros_like(w)
    step = max(1, BLOCK // max(1, w.shape[1]))
    y = data.y[data.points]
    if targets is not None:
        from fedsoft.core.local_solve import own_outputs

        y = targets(own_outputs(model, data, w)).to(y.dtype)
    for begin in range(0, len(data.points), step):
        places, owners = data.points[begin : begin + step], data.owners[begin : begin + step]
        each = model.gradient(
            w[owners], data.x[places][:, None], y[begin : begin + step, None], w.new_ones(len(places), 1)
        )
        each.square_()
        if point_weights is not None:
            each *= point_weights[begin : begin + step, None]
        total.index_add_(0, owners, each)
    return total


def jacobian(model: Model, w: Tensor, x: Tensor) -> Tensor:
    """Return the derivatives `[a, B, O, P]` of the outputs of each model on its inputs, one parameter at a time.

    Where outputs are linear in the parameters, these are the outputs of unit vectors. Else: a pull-back is linear in
    what is pulled back, so its own derivative is the push-forward: two backward passes give the derivatives of all
    outputs along one direction.
    """
    if model.is_linear:
        none = model.outputs(torch.zeros_like(w), x)
        units = (torch.zeros_like(w).index_fill_(1, torch.tensor(p, device=w.device), 1) for p in range(w.shape[1]))
        return torch.stack([(model.outputs(unit, x) - none).reshape(*none.shape[:2], -1) for unit in units], -1)
    with torch.enable_grad():
        leaf = w.detach().requires_grad_()
        output = model.outputs(leaf, x)
        outer = torch.zeros_like(output).requires_grad_()
        pulled_back = torch.autograd.grad(output, leaf, outer, create_graph=True)[0]
    columns = []
    for p in range(w.shape[1]):
        along = torch.zeros_like(w)
        along[:, p] = 1
        (column,) = torch.autograd.grad(pulled_back, outer, along, retain_graph=True, materialize_grads=True)
        columns.append(column.reshape(*output.shape[:2], -1))
    return torch.stack(columns, -1)


def _loss_hessian(loss: Callable[[Tensor, Tensor], Tensor], output: Tensor, y: Tensor) -> Tensor:
    """Return the second derivatives `[a, B, O, O]` of each point's loss by its outputs."""
    output = output.detach()
    flat = output if output.ndim > 2 else output[..., None]
    width = flat.flatten(2).shape[2]
    if loss is squared_loss:
        return 2 * torch.eye(width, dtype=output.dtype, device=output.device).expand(*output.shape[:2], width, width)
    with torch.enable_grad():
        output = output.requires_grad_()
        slope = torch.autograd.grad(loss(output, y).sum(), output, create_graph=True)[0].flatten(2)
        slope = slope if slope.ndim == 3 else slope[..., None]
        rows = [
            torch.autograd.grad(slope[..., o].sum(), output, retain_graph=True, materialize_grads=True)[0]
            .reshape(*output.shape[:2], width)
            for o in range(width)
        ]  # fmt: skip
    values, vectors = torch.linalg.eigh(torch.stack(rows, -1))
    return vectors @ (values.clamp(min=0)[..., None] * vectors.mT)
