"""Operations of torch that cannot be stacked over clients, in a form that can.

Attention and bags of embeddings have fused kernels that `vmap` would call for one client after the other, with a
warning. Here they are plain products and sums, which it stacks. Matrices on sequences, layer normalization,
self-attention and recurrent layers have functions of their own (`client_axis`, `attention`, `recurrent`). A mode of
torch is a matter of one thread, so that workers do not disturb each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedsoft.networks.attention import NAMES, self_attention
from fedsoft.networks.client_axis import layer_norm, linear, stackable
from fedsoft.networks.recurrent import CELLS, recurrent

ATTENTION: Any = F.multi_head_attention_forward
# The same function, with what it calls still replaced: torch would hand the whole of it over in one piece.
ATTENTION_INSIDE: Callable[..., Any] = FunctionType(
    ATTENTION.__code__, {**vars(F), "has_torch_function": lambda _: False}, "attention", ATTENTION.__defaults__
)


class Stackable(TorchFunctionMode):
    """Computes what is called inside of it in a form that `vmap` can stack."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given: Mapping[str, Any] = kwargs or {}
        if func is ATTENTION:
            own = self_attention({**dict(zip(NAMES, args, strict=False)), **given})
            if own is not None:
                return own, None
            with self:
                return ATTENTION_INSIDE(*args, **given)
        if func is F.scaled_dot_product_attention and not dropout_of(args, given):
            return attention(*args, **given)
        if func is F.embedding_bag and _is_rectangular(bag := _bag(args, given)):
            return embedding_bag(bag)
        if func is F.linear and args and args[0].ndim > 2 and stackable(*args, *given.values()):
            return linear(*args, **given)
        if func is F.layer_norm and stackable(*args, *given.values()):
            norm = _layer_norm(args, given)
            return func(*args, **given) if norm["weight"] is None else layer_norm(**norm)
        if func in CELLS:
            return recurrent(func, *args)
        return func(*args, **given)


def dropout_of(args: Sequence[Any], given: Mapping[str, Any]) -> float:
    """Return the dropout of a call of `F.scaled_dot_product_attention`."""
    return args[4] if len(args) > 4 else given.get("dropout_p", 0.0)


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, drop: Callable[[Tensor], Tensor] = lambda shares: shares, **how: Any,
) -> Tensor:  # fmt: skip
    """Return what `F.scaled_dot_product_attention` does; `drop` does what dropout would.

    `how`: its further arguments `scale` and `enable_gqa`.
    """
    scale: float | None = how.get("scale")
    if how.get("enable_gqa"):
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        return drop(scores.softmax(-1)) @ value
    if attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=scores.dtype).masked_fill(~attn_mask, -math.inf)
    scores = scores + attn_mask
    # A query that may look at nothing gets 0, not NaN, as from torch's own kernels.
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return drop(scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)) @ value


BAG = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
    "include_last_offset", "padding_idx",
)  # fmt: skip
"""The arguments of `F.embedding_bag`."""


def _bag(args: Sequence[Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**dict(zip(BAG, args, strict=False)), **given}


def _layer_norm(args: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    found = {"weight": None, "bias": None, "eps": 1e-5, **dict(zip(names, args, strict=False)), **given}
    return {key: found[key] for key in names if key != "normalized_shape"}


def _is_rectangular(bag: Mapping[str, Any]) -> bool:
    """Whether bags are rows of indices `[bags, length]`, with no norm to hold and no gradient by frequency."""
    return bag["input"].ndim == 2 and bag.get("max_norm") is None and not bag.get("scale_grad_by_freq")


def embedding_bag(bag: Mapping[str, Any]) -> Tensor:
    """Return what `F.embedding_bag` does for bags that are rows of indices, from its arguments by name."""
    input, weight, mode = bag["input"], bag["weight"], bag.get("mode", "mean")
    per_sample_weights, padding_idx = bag.get("per_sample_weights"), bag.get("padding_idx")
    rows = F.embedding(input, weight)
    if padding_idx is None:
        if mode == "max":
            return rows.amax(1)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights[..., None]
        return rows.sum(1) if mode == "sum" else rows.mean(1)
    real = (input != (padding_idx if padding_idx >= 0 else len(weight) + padding_idx))[..., None]
    if mode == "max":
        empty = ~real.any(1)
        return rows.masked_fill(~real, -math.inf).amax(1).masked_fill(empty, 0.0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    total = (rows * real).sum(1)
    return total if mode == "sum" else total / real.sum(1).clamp(min=1)
