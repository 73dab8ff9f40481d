"""Self-attention of a stack of clients, written out: two products for each head, four for each client."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedsoft.networks.client_axis import over_clients, stackable

NAMES = tuple(inspect.signature(F.multi_head_attention_forward).parameters)
LEFT_OUT = ("bias_k", "bias_v", "static_k", "static_v")
FLAGS = ("add_zero_attn", "need_weights", "use_separate_proj_weight")


class SelfAttention(torch.autograd.Function):
    """`x[m, T, B, E]` to the same shape, by `inner[m, 3 E, E]` for queries, keys and values, and `outer[m, E, E]`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, heads: int, unread: Tensor | None, mask: Tensor | None, *weights: Any
    ) -> Tensor:
        inner, inner_bias, outer, outer_bias = weights
        m, steps, points, width = x.shape
        rows = x.transpose(1, 2).reshape(m, -1, width)
        parts = torch.bmm(rows, inner.mT)
        if inner_bias is not None:
            parts += inner_bias[:, None]
        # [3, m B heads, T, d]
        split = (
            parts.view(m, points, steps, 3, heads, -1).permute(3, 0, 1, 4, 2, 5).reshape(3, -1, steps, width // heads)
        )
        split[0] *= 1 / math.sqrt(width // heads)
        query, key, value = split
        shares = _shares(torch.bmm(query, key.mT).view(m, points, heads, steps, steps), unread, mask)
        shares = shares.view(-1, steps, steps)
        seen = _merged(torch.bmm(shares, value), m, heads)
        out = torch.bmm(seen, outer.mT)
        if outer_bias is not None:
            out += outer_bias[:, None]
        ctx.save_for_backward(rows, inner, outer, split, shares, seen)
        ctx.shape, ctx.heads = x.shape, heads
        return out.view(m, points, steps, width).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        rows, inner, outer, (query, key, value), shares, seen = ctx.saved_tensors
        (m, steps, points, width), heads = ctx.shape, ctx.heads
        grad = grads[0].transpose(1, 2).reshape(m, -1, width)
        after = torch.bmm(grad, outer).view(m, points, steps, heads, -1).transpose(2, 3).reshape(value.shape)
        scores = torch.ops.aten._softmax_backward_data(torch.bmm(after, value.mT), shares, -1, shares.dtype)
        parts = grad.new_empty(m, points, steps, 3, heads, width // heads)
        to = parts.permute(3, 0, 1, 4, 2, 5)
        first = torch.bmm(scores, key).mul_(1 / math.sqrt(width // heads))
        for place, part in zip(to, (first, torch.bmm(scores.mT, query), torch.bmm(shares.mT, after)), strict=True):
            place.copy_(part.view(place.shape))
        parts = parts.view(m, -1, 3 * width)
        needs = ctx.needs_input_grad
        before = torch.bmm(parts, inner).view(m, points, steps, width).transpose(1, 2) if needs[0] else None
        return (
            before, None, None, None,
            torch.bmm(rows.mT, parts).mT if needs[4] else None, parts.sum(1) if needs[5] else None,
            torch.bmm(seen.mT, grad).mT if needs[6] else None, grad.sum(1) if needs[7] else None,
        )  # fmt: skip


def _shares(scores: Tensor, unread: Tensor | None, mask: Tensor | None) -> Tensor:
    """Return the shares of `scores[m, B, heads, T, T]`, with keys left `unread[m, B, T]` and a `mask[m, T, T]`."""
    for added in (None if unread is None else unread[:, :, None, None], None if mask is None else mask[:, None, None]):
        if added is not None and added.dtype == torch.bool:
            scores.masked_fill_(added, -math.inf)
        elif added is not None:
            scores += added
    shares = scores.softmax(-1)
    # A query that may look at nothing gets 0, not NaN, as from torch's own kernels.
    return shares if unread is None and mask is None else shares.masked_fill_((scores == -math.inf).all(-1, True), 0.0)


def _merged(parts: Tensor, m: int, heads: int) -> Tensor:
    """Bring `[m B heads, T, d]` into rows `[m, B T, heads d]`."""
    steps, width = parts.shape[1:]
    return parts.view(-1, heads, steps, width).transpose(1, 2).reshape(m, -1, heads * width)


def self_attention(given: dict[str, Any]) -> Tensor | None:
    """Return what `F.multi_head_attention_forward` does, from its arguments by name; None where it is another case."""
    x, inner, outer = given["query"], given["in_proj_weight"], given["out_proj_weight"]
    if x is not given["key"] or x is not given["value"] or x.ndim != 3 or not stackable(x, inner):
        return None
    mask, unread = given.get("attn_mask"), given.get("key_padding_mask")
    if (
        any(given.get(name) is not None for name in LEFT_OUT)
        or inner is None
        or (mask is None and given.get("is_causal"))
    ):
        return None
    if any(given.get(name, name == "need_weights") for name in FLAGS):
        return None
    if any(m is not None and m.ndim != 2 for m in (mask, unread)) or (
        given["dropout_p"] and given.get("training", True)
    ):
        return None
    heads, inner_bias, outer_bias = given["num_heads"], given["in_proj_bias"], given["out_proj_bias"]
    return over_clients(SelfAttention, x, heads, unread, mask, inner, inner_bias, outer, outer_bias)
