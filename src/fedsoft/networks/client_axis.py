"""Layers over a stack of clients where `vmap` would be slow or has no rule.

A matrix times a sequence becomes, by `vmap`, a product for every point whose gradient is written for every point and
then added up; layer normalization takes several passes; recurrent layers (`recurrent`) cannot be stacked at all. Here
each of them is a `torch.autograd.Function` of whole stacks, clients first, with a backward pass written by hand.

To get at the stack, `vmap` is left for the time of the call. That takes functions of torch that have no public name:
where they are missing, or several transforms are nested, nothing is replaced.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._functorch import pyfunctorch
from torch.autograd.function import once_differentiable

inside: Any = getattr(torch._C, "_functorch", None)
outside: Any = getattr(pyfunctorch, "temporarily_pop_interpreter_stack", None)
NEEDED = ("_add_batch_dim", "get_interpreter_stack", "get_unwrapped", "maybe_get_bdim", "is_batchedtensor")
KNOWN = outside is not None and all(hasattr(inside, name) for name in NEEDED)

Function = type[torch.autograd.Function]


def stackable(*tensors: Any) -> bool:
    """Return whether some of the tensors are of all clients, by one `vmap`, and on a CPU."""
    if not KNOWN:
        return False
    levels = inside.get_interpreter_stack()
    if levels is None or len(levels) != 1 or levels[0].key() != inside.TransformType.Vmap:
        return False
    given = [t for t in tensors if isinstance(t, Tensor)]
    return given[0].device.type == "cpu" and any(map(inside.is_batchedtensor, given))


def over_clients(function: Function, *given: Any) -> Any:
    """Apply a function of stacks, clients first, to tensors inside of a `vmap`."""
    interpreter = inside.get_interpreter_stack()[0]
    level, m = interpreter.level(), _clients(given)
    stacks = [_stack(t, m) if isinstance(t, Tensor) else t for t in given]
    with outside():
        found = function.apply(*stacks)
    if isinstance(found, tuple):
        return tuple(t if t is None else inside._add_batch_dim(t, 0, level) for t in found)
    return inside._add_batch_dim(found, 0, level)


def _clients(given: tuple[Any, ...]) -> int:
    tensor = next(t for t in given if isinstance(t, Tensor) and inside.is_batchedtensor(t))
    return inside.get_unwrapped(tensor).shape[inside.maybe_get_bdim(tensor)]


def _stack(tensor: Tensor, m: int) -> Tensor:
    if not inside.is_batchedtensor(tensor):
        return tensor.expand(m, *tensor.shape)
    return inside.get_unwrapped(tensor).movedim(inside.maybe_get_bdim(tensor), 0)


class Linear(torch.autograd.Function):
    """`x[m, ..., in] weight[m, out, in]^T + bias[m, out]`: one product for each client."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        rows = x.reshape(len(x), -1, x.shape[-1])
        ctx.save_for_backward(rows, weight)
        ctx.shape = x.shape
        out = torch.bmm(rows, weight.mT)
        if bias is not None:
            out += bias[:, None]
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        rows, weight = ctx.saved_tensors
        grad = grads[0].reshape(*rows.shape[:2], -1)
        before, its, bias = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight).view(ctx.shape) if before else None,
            torch.bmm(rows.mT, grad).mT if its else None,  # faster than the transposed product
            grad.sum(1) if bias else None,
        )


class LayerNorm(torch.autograd.Function):
    """Every row of `x[m, R, D]` brought to mean 0 and variance 1, times `weight[m, D]`, plus `bias[m, D]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:  # type: ignore[override]
        from fedsoft.core import layer_kernels

        x = x.contiguous()
        shift = torch.zeros_like(weight) if bias is None else bias
        out, mean, scale = torch.empty_like(x), x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
        rows, weights, shifts = (t.detach().contiguous().numpy() for t in (x, weight, shift))
        layer_kernels.layer_norm(rows, weights, shifts, eps, out.numpy(), mean.numpy(), scale.numpy())
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.has_bias = bias is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from fedsoft.core import layer_kernels

        x, weight = ctx.saved_tensors[:2]
        before = torch.empty_like(x)
        weights, shift = (weight.new_zeros(weight.shape) for _ in range(2))
        found = before.numpy(), weights.numpy(), shift.numpy()
        grad, rows, own, mean, scale = (t.contiguous().numpy() for t in (grads[0], *ctx.saved_tensors))
        layer_kernels.layer_norm_gradients(grad, rows, own, mean, scale, *found)
        return before, weights, shift if ctx.has_bias else None, None


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what `F.linear` does, of an input with more axes than one for points and one for features."""
    return over_clients(Linear, input, weight, bias)


def layer_norm(input: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Return what `F.layer_norm` does."""
    rows = input.reshape(-1, weight.numel())
    flat = over_clients(LayerNorm, rows, weight.flatten(), None if bias is None else bias.flatten(), eps)
    return flat.view(input.shape)
