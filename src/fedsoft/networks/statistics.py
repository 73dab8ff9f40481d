"""The running statistics of BatchNorm as parameters of a client.

They are the last entries of its parameter vector. So they are averaged, sent, saved and exported as all others are; but
every batch of training updates them, in place of the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedsoft.core.model import Params
from fedsoft.errors import InputError

PARTS = ("running_mean", "running_var")


class CannotStack(RuntimeError):
    """A batch whose padding cannot be told from its points."""


def statistics_of(net: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics that training updates, by name; layers with frozen parameters are left out."""
    found: dict[str, Tensor] = {}
    for name, part in net.named_modules():
        if getattr(part, "running_mean", None) is None:
            continue
        if isinstance(part, _InstanceNorm) or not isinstance(part, _BatchNorm):
            raise InputError(
                f"module: '{name}' ({type(part).__name__}) keeps running statistics in a way of its own: use "
                "BatchNorm, GroupNorm, or track_running_stats=False"
            )
        if part.momentum is None:
            raise InputError(
                f"module: '{name}' ({type(part).__name__}) has momentum=None, a mean over all batches ever seen, which "
                "clients that train at different times cannot share: give a number, such as 0.1"
            )
        own = list(part.parameters(recurse=False))
        if not own or any(p.requires_grad for p in own):
            found |= {f"{name}.{key}" if name else key: getattr(part, key).detach() for key in PARTS}
    return found


class Statistics:
    """The statistics of the layers of one network in one pass.

    Arguments:
        params: the tensors of the network by name; those of `names` are statistics.
        local: whether a model may come without any, all variances 0, because clients keep their own.
    """

    def __init__(self, params: Params, names: tuple[str, ...] = (), *, local: bool = False) -> None:
        self.local = local
        self.now = {name: params[name] for name in names}

    def find(self, running_mean: Tensor | None) -> str | None:
        """Return the name of a layer's mean; None for a layer whose statistics do not change."""
        return next((name for name, value in self.now.items() if value is running_mean), None)

    def vector(self, like: Tensor) -> Tensor:
        """Return all of them in a row."""
        return torch.cat([value.detach() for value in self.now.values()]) if self.now else like.new_zeros(0)

    def predicted(
        self, func: Callable[..., Tensor], x: Tensor, mean: Tensor, var: Tensor, affine: Mapping[str, Any]
    ) -> Tensor:
        """Return a batch normalised by running statistics; by its own, where there are none."""
        # Noise that hides a client, or a malicious one, may leave a variance below 0.
        mean, var = mean.detach(), var.detach().clamp(min=0)
        if self.local and len(x):
            none = (var == 0).all()
            axes, own = [0, *range(2, x.ndim)], x.detach()
            mean = torch.where(none, own.mean(axes), mean)
            var = torch.where(none, own.var(axes, correction=0), var)
        return func(x, mean, var, training=False, **affine)

    def normalised(
        self, func: Callable[..., Tensor], x: Tensor, name: str | None, real: Tensor | None, affine: Mapping[str, Any]
    ) -> Tensor:
        """Return a batch normalised by its own statistics; note what they make of the layer `name`'s.

        A batch of one value for each channel has no variance: it is normalised by the running statistics, and leaves
        them alone.
        """
        mean, var = (None, None) if name is None else (self.now[name], self.now[_variance(name)])
        if self.local and mean is not None and var is not None:  # a new client's first batch is all that it knows
            none = (var <= 0).all()
            var = torch.where(none, torch.ones_like(var), var)
            affine = {**affine, "momentum": torch.where(none, 1.0, affine["momentum"])}
        if real is not None:
            out, mean, var = _masked(x, real, mean, var, affine)
        elif x.numel() // x.shape[1] > 1:
            mean, var = (None, None) if mean is None or var is None else (mean.clone(), var.clone())
            out = func(x, mean, var, training=True, **{**affine, "momentum": float(affine["momentum"])})
        elif mean is None or var is None:
            raise InputError("module: a batch of one point has no statistics to normalise it by: use GroupNorm")
        else:
            return self.predicted(func, x, mean, var, {**affine, "momentum": 0.0})
        if name is not None and mean is not None and var is not None:
            self._put(name, mean, var)
        return out

    def _put(self, name: str, mean: Tensor, var: Tensor) -> None:
        self.now[name], self.now[_variance(name)] = mean, var


def _variance(name: str) -> str:
    return name.removesuffix(PARTS[0]) + PARTS[1]


def _masked(
    x: Tensor, real: Tensor, mean: Tensor | None, var: Tensor | None, affine: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise the `real[B]` points of a padded batch `x[B, C, ...]`; return it with the new running statistics."""
    if len(x) != len(real):
        raise CannotStack("the batch of a BatchNorm layer is not that of the points")
    if mean is None or var is None:
        raise CannotStack("no statistics for batches of one point")
    axes, sides = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
    share = real.to(x.dtype).view(-1, *[1] * (x.ndim - 1))
    count = share.sum() * (x.numel() // (len(x) * x.shape[1]))
    several = count > 1
    own_mean = (x * share).sum(axes) / count
    centered = (x - own_mean.view(sides)) * share
    own_var = centered.square().sum(axes) / count
    used_mean = torch.where(several, own_mean, mean)
    used_var = torch.where(several, own_var, var.clamp(min=0))
    scale = (used_var + affine["eps"]).rsqrt()
    scale = scale if affine["weight"] is None else scale * affine["weight"]
    out = (x - used_mean.view(sides)) * scale.view(sides)
    out = out if affine["bias"] is None else out + affine["bias"].view(sides)
    fresh = several.to(x.dtype) * affine["momentum"]
    spread = own_var.detach() * (count / (count - 1).clamp(min=1))  # as torch: the running variance is the unbiased one
    return out, mean + fresh * (own_mean.detach() - mean), var + fresh * (spread - var)
