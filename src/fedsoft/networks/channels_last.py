"""Networks on images with their channels last, where convolutions are faster; group normalization by compiled loops.

Nothing is converted between layers: a convolution gives its output as its input lay. Group normalization takes its ReLU
along where it follows in an `nn.Sequential`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class GroupNorm(torch.autograd.Function):
    """Group normalization of images `[B, C, H, W]`, followed by a ReLU where there is one."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
    ) -> Tensor:
        from fedsoft.core import image_kernels

        x, weight = images_last(x.detach()), weight.detach().contiguous()
        out, kept = torch.empty_like(x), x.new_empty(2, len(x), groups)
        own, mean, scale = weight.numpy(), *kept.numpy()
        image_kernels.group_norm(_rows(x), own, bias.detach().contiguous().numpy(), eps, relu, _rows(out), mean, scale)
        ctx.save_for_backward(x, out, weight, kept)
        ctx.relu = relu
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from fedsoft.core import image_kernels

        x, out, weight, kept = ctx.saved_tensors
        before, found = torch.empty_like(x), weight.new_zeros(2, len(weight))
        grad, (mean, scale) = images_last(grads[0]), kept.numpy()
        images, own = (_rows(grad), _rows(x), _rows(out)), (weight.numpy(), mean, scale)
        image_kernels.group_norm_gradients(images, own, ctx.relu, _rows(before), (found[0].numpy(), found[1].numpy()))
        return before, found[0], found[1], None, None, None


def prepare(net: nn.Module) -> None:
    """Have a network, a copy that nobody else uses, normalize groups by compiled loops."""
    uses = Counter(id(child) for module in net.modules() for child in module.children())
    rectified = set()
    for module in list(net.modules()):
        if type(module) is not nn.Sequential:
            continue
        for place, (norm, after) in enumerate(zip(module, list(module)[1:], strict=False)):
            if _known(norm) and type(after) is nn.ReLU and uses[id(norm)] == 1:
                rectified.add(id(norm))
                module[place + 1] = nn.Identity()
    for module in net.modules():
        if _known(module):
            _replace(module, relu=id(module) in rectified)


def _known(module: nn.Module) -> TypeGuard[nn.GroupNorm]:
    return type(module) is nn.GroupNorm and module.affine


def images_last(x: Any) -> Any:
    """Return images with their channels last in memory, anything else as it is."""
    known = isinstance(x, Tensor) and x.ndim == 4 and x.is_floating_point() and x.device.type == "cpu"
    return x.contiguous(memory_format=torch.channels_last) if known else x


def _replace(norm: nn.GroupNorm, *, relu: bool) -> None:
    plain: Callable[[Tensor], Tensor] = partial(nn.GroupNorm.forward, norm)

    def forward(input: Tensor) -> Tensor:
        if input.ndim != 4 or input.device.type != "cpu" or input.dtype != norm.weight.dtype:
            return plain(input).relu() if relu else plain(input)
        return GroupNorm.apply(input, norm.weight, norm.bias, norm.num_groups, norm.eps, relu)  # type: ignore[return-value]

    norm.forward = forward


def _rows(x: Tensor) -> np.ndarray:
    """Return images `[B, C, H, W]` whose channels lie last as `[B, H, W, C]`."""
    return x.numpy().transpose(0, 2, 3, 1)
