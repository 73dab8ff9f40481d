"""Recurrent layers of a stack of clients: LSTM, GRU, and plain ones with tanh or ReLU.

A step of one client is too small to be fast: products of ten rows. Here a step is one product for all clients of a
stack, and the way back through the cells one compiled loop; gradients of weights are products over all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedsoft.networks.client_axis import over_clients, stackable

Saved = list[Tensor]
TorchFunction: Any = torch


class Cell(Protocol):
    """Steps of a kind of cell. Hidden states are `[m, T + 1, B, H]`, the first one given."""

    gates: int

    def forward(self, parts: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, cell: Tensor | None) -> Saved:
        """Fill in the hidden states, and make gates of `parts[m, T, B, gates H]`; return what the way back needs.

        `weight[m, H, gates H]` is that of the hidden state; `bias` is its own where it is apart. Cell states are first.
        """
        ...

    def backward(
        self, parts: Tensor, hidden: Tensor, saved: Saved, weight: Tensor, grad: Tensor, last: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of what gates are made of, by input and by hidden state.

        `last` holds the gradients of the last states; they become those of the first ones.
        """
        ...


class LSTM:
    """Hochreiter & Schmidhuber (1997), with gates i, f, g, o."""

    gates = 4

    def forward(self, parts: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, cell: Tensor | None) -> Saved:
        size = hidden.shape[-1]
        cells, tanhs = torch.empty_like(hidden), hidden.new_empty((*parts.shape[:3], size))
        cells[:, 0] = 0.0 if cell is None else cell
        i, f, g, o = (gate.unbind(1) for gate in parts.split(size, -1))
        both, states, nows = parts[..., : 2 * size].unbind(1), hidden.unbind(1), cells.unbind(1)
        own = parts.new_empty(parts[:, 0].shape)  # a product of stacks is fast where it is written in one piece
        for t, (part, tanh) in enumerate(zip(parts.unbind(1), tanhs.unbind(1), strict=True)):
            part.add_(torch.bmm(states[t], weight, out=own))
            both[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            now = torch.mul(f[t], nows[t], out=nows[t + 1]).addcmul_(i[t], g[t])
            torch.mul(o[t], torch.tanh(now, out=tanh), out=states[t + 1])
        return [cells, tanhs]

    def backward(
        self, parts: Tensor, hidden: Tensor, saved: Saved, weight: Tensor, grad: Tensor, last: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        from fedsoft.core import layer_kernels

        dh, dc = last
        out = torch.empty_like(parts)
        given = [t.numpy() for t in (parts, *saved, grad, dh, dc, out)]
        for t, now in reversed(list(enumerate(out.unbind(1)))):
            layer_kernels.lstm_back(t, *given)
            torch.bmm(now, weight, out=dh)
        return out, out


class GRU:
    """Cho et al. (2014), with gates r, z and the new state n."""

    gates = 3

    def forward(self, parts: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, cell: Tensor | None) -> Saved:
        size = hidden.shape[-1]
        news = hidden.new_empty((*parts.shape[:3], size))
        r, z, n = (gate.unbind(1) for gate in parts.split(size, -1))
        both, states = parts[..., : 2 * size].unbind(1), hidden.unbind(1)
        own = parts.new_empty(parts[:, 0].shape)
        for t, new in enumerate(news.unbind(1)):
            torch.bmm(states[t], weight, out=own)
            if bias is not None:
                own += bias[:, None]
            both[t].add_(own[..., : 2 * size]).sigmoid_()
            new.copy_(own[..., 2 * size :])
            n[t].addcmul_(r[t], new).tanh_()
            torch.lerp(n[t], states[t], z[t], out=states[t + 1])
        return [news]

    def backward(
        self, parts: Tensor, hidden: Tensor, saved: Saved, weight: Tensor, grad: Tensor, last: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        from fedsoft.core import layer_kernels

        dh, _ = last
        out, own = torch.empty_like(parts), torch.empty_like(parts)
        given = [t.numpy() for t in (parts, *saved, hidden, grad, dh, out, own)]
        for t, now in reversed(list(enumerate(own.unbind(1)))):
            layer_kernels.gru_back(t, *given)
            dh.baddbmm_(now, weight)
        return out, own


class Plain:
    """Elman (1990): `h = act(x + W h)`."""

    gates = 1

    def __init__(self, act: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> None:
        self.act, self.slope = act, slope

    def forward(self, parts: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, cell: Tensor | None) -> Saved:
        for t in range(parts.shape[1]):
            hidden[:, t + 1] = self.act(parts[:, t].add_(torch.bmm(hidden[:, t], weight)))
        return []

    def backward(
        self, parts: Tensor, hidden: Tensor, saved: Saved, weight: Tensor, grad: Tensor, last: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        dh, _ = last
        out = self.slope(hidden[:, 1:])  # of the function, by its value
        for t in reversed(range(parts.shape[1])):
            out[:, t].mul_(dh.add_(grad[:, t]))
            torch.bmm(out[:, t], weight, out=dh)
        return out, out


class Steps(torch.autograd.Function):
    """All steps of one layer in one direction, from `x[m, T, B, I]` to outputs `[m, T, B, H]` and the last states."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, cell: Cell, x: Tensor, h: Tensor, c: Tensor | None, *weights: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        inner, weight, inner_bias, bias = weights
        m, steps, points, _ = x.shape
        rows = x.reshape(m, steps * points, -1)
        apart = isinstance(cell, GRU)
        parts = torch.bmm(rows, inner.mT)
        for b in (inner_bias,) if apart else (inner_bias, bias):
            if b is not None:
                parts += b[:, None]
        parts = parts.view(m, steps, points, -1)
        hidden = x.new_empty(m, steps + 1, points, h.shape[-1])
        hidden[:, 0] = h
        saved = cell.forward(parts, hidden, weight.mT.contiguous(), bias if apart else None, c)
        ctx.save_for_backward(rows, inner, weight, parts, hidden, *saved)
        ctx.cell = cell
        ctx.set_materialize_grads(True)
        # Not views of what is kept: a user may write into them.
        return hidden[:, 1:].clone(), hidden[:, -1].clone(), saved[0][:, -1].clone() if c is not None else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        grad, last_h, last_c = grads
        rows, inner, weight, parts, hidden, *saved = ctx.saved_tensors
        m, steps, points, width = parts.shape
        dh, dc = (t if t is None else t.clone(memory_format=torch.contiguous_format) for t in (last_h, last_c))
        out, own = ctx.cell.backward(
            parts, hidden, saved, weight.contiguous(), grad.contiguous(), (dh, dh if dc is None else dc)
        )
        out, own = out.view(m, -1, width), own.view(m, -1, width)
        states = hidden[:, :-1].flatten(1, 2)
        needs = ctx.needs_input_grad
        return (
            None,
            torch.bmm(out, inner).view(m, steps, points, -1) if needs[1] else None,
            dh,
            dc if needs[3] else None,
            torch.bmm(rows.mT, out).mT if needs[4] else None,
            torch.bmm(states.mT, own).mT if needs[5] else None,
            out.sum(1) if needs[6] else None,
            own.sum(1) if needs[7] else None,
        )


CELLS: dict[Any, Cell] = {
    TorchFunction.lstm: LSTM(), TorchFunction.gru: GRU(),
    TorchFunction.rnn_tanh: Plain(torch.tanh, lambda h: 1 - h * h),
    TorchFunction.rnn_relu: Plain(torch.relu, lambda h: (h > 0).to(h.dtype)),
}  # fmt: skip


def recurrent(func: Any, *args: Any) -> Any:
    """Return what `torch.lstm` and its like do, by all clients at once where that is known to be the same.

    Packed sequences, projections and dropout between layers are left to torch.
    """
    if len(args) != 9 or isinstance(args[3], list | tuple):
        return func(*args)
    x, states, params, has_biases, layers, drop, train, both, batch_first = cast(Any, args)
    first: list[Any] = [*states] if isinstance(states, list | tuple) else [states]
    directions, each = 1 + both, 2 + 2 * has_biases
    if len(params) != layers * directions * each or (train and drop > 0 and layers > 1) or not stackable(x, *params):
        return func(*args)
    cell, last = CELLS[func], []
    x = x.transpose(0, 1) if batch_first else x
    for layer in range(layers):
        found = []
        for direction in range(directions):
            at = layer * directions + direction
            own = params[at * each : (at + 1) * each]
            h, c = first[0][at], first[1][at] if len(first) > 1 else None
            given = x.flip(0) if direction else x
            out, *end = over_clients(Steps, cell, given, h, c, *own, *(() if has_biases else (None, None)))
            found.append(out.flip(0) if direction else out)
            last.append(end[: len(first)])
        x = torch.cat(found, -1) if both else found[0]
    x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.stack(parts) for parts in zip(*last, strict=True)))
