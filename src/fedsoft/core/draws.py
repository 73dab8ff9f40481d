"""Draws inside a network, such as those of dropout: a hash of names, so that a stack of clients draws in one pass.

A generator for every client, step and layer would cost more than the step. So a client's generator draws one key for a
solve, and every element of a mask is a hash (the finalizer of SplitMix64) of that key, the step, the number of the draw
in the pass and its own coordinates. So it does not depend on the other clients of the stack, nor on how far a batch is
padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
WRAP = 2**64
STRIDES = tuple((GOLDEN * (2 * d + 3) ** 13 | 1) % WRAP for d in range(16))
"""Odd numbers, one for each axis: coordinates along several axes add up to different places."""


def mixed(z: np.ndarray) -> np.ndarray:
    """Return the finalizer of SplitMix64 (Steele, Lea, Flood, 2014) of numbers of 64 bits.

    >>> hex(mixed(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0])
    '0xe220a8397b1dcdaf'
    """
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def sub_key(keys: Tensor, number: Tensor | int) -> Tensor:
    """Return a key of its own for each `number` under each of `keys`, int64."""
    steps = number.cpu().numpy() if isinstance(number, Tensor) else np.array([number])
    # Arrays also of one key: numpy warns where scalars wrap around.
    own = np.atleast_1d(keys.cpu().numpy()).view(np.uint64)
    z = mixed(own + (steps.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)).view(np.int64)
    return torch.from_numpy(z).to(keys.device).view(z.shape if isinstance(number, Tensor) else keys.shape)


def kept(keys: Tensor, shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """Return the mask of a dropout of share `p` for each of `keys[...]`: `[..., *shape]`, 0 or 1 / (1 - p)."""
    from fedsoft.core import kernels

    sides = tuple(shape) or (1,)
    flat = keys.cpu().reshape(-1)
    rows = np.zeros((), dtype=np.uint64)
    for axis, side in enumerate(sides[:-1]):
        rows = rows[..., None] + np.arange(side, dtype=np.uint64) * np.uint64(STRIDES[axis])
    out = torch.empty((len(flat), math.prod(sides[:-1]), sides[-1]), dtype=dtype)
    threshold = np.uint64(min(WRAP - 1, int(p * WRAP)))
    value = 1 / (1 - p) if p < 1 else 0.0
    kernels.kept_elements(
        flat.numpy().view(np.uint64), rows.reshape(-1), np.uint64(STRIDES[len(sides) - 1]), threshold, value,
        out.numpy(),
    )  # fmt: skip
    return out.view(*keys.shape, *shape).to(keys.device)


class Mask(torch.autograd.Function):
    """The mask of the draw `number` of a pass, of one client or, under `vmap`, of a stack of them in one call."""

    @staticmethod
    def forward(key: Tensor, number: int, shape: tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        return kept(sub_key(key, number), shape, p, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, ...]:
        return (None,) * 5

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[Any, int]:
        return Mask.apply(*args), 0
