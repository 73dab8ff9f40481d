"""Compiled loops of layers over a stack of clients: layer normalization, and a step back through recurrent cells.

See `kernels` for what all compiled loops have in common.
"""

from __future__ import annotations

import numpy as np

from fedsoft.core.kernels import A, compiled, compiled_sums


@compiled_sums
def layer_norm(x: A, weight: A, bias: A, eps: float, out: A, mean: A, scale: A) -> None:
    """Normalize every row of `x[m, R, D]`; keep its mean and what its deviations are multiplied by."""
    zero, one, small, width = x.dtype.type(0), x.dtype.type(1), x.dtype.type(eps), x.dtype.type(x.shape[2])
    for k in range(x.shape[0]):
        weight_k, bias_k = weight[k], bias[k]
        for r in range(x.shape[1]):
            row, to = x[k, r], out[k, r]
            total = zero
            for i in range(len(row)):
                total += row[i]
            middle = total / width
            squares = zero
            for i in range(len(row)):
                squares += (row[i] - middle) * (row[i] - middle)
            factor = one / np.sqrt(squares / width + small)
            for i in range(len(row)):
                to[i] = (row[i] - middle) * factor * weight_k[i] + bias_k[i]
            mean[k, r], scale[k, r] = middle, factor


@compiled_sums
def layer_norm_gradients(grad: A, x: A, weight: A, mean: A, scale: A, before: A, weights: A, shift: A) -> None:
    """Write the gradient of `x` into `before`, and add those of weight and bias to `weights` and `shift`."""
    zero, width = x.dtype.type(0), x.dtype.type(x.shape[2])
    for k in range(x.shape[0]):
        weight_k, weights_k, shift_k = weight[k], weights[k], shift[k]
        for r in range(x.shape[1]):
            g, row, to, middle, factor = grad[k, r], x[k, r], before[k, r], mean[k, r], scale[k, r]
            total, along = zero, zero
            for i in range(len(row)):
                unit, d = (row[i] - middle) * factor, g[i]
                weights_k[i] += d * unit
                shift_k[i] += d
                total += d * weight_k[i]
                along += d * weight_k[i] * unit
            total, along = total / width, along / width
            for i in range(len(row)):
                to[i] = factor * (g[i] * weight_k[i] - total - (row[i] - middle) * factor * along)


@compiled
def lstm_back(t: int, parts: A, cells: A, tanhs: A, grad: A, dh: A, dc: A, out: A) -> None:
    """Go back through step t of LSTM cells.

    Arguments:
        parts: gates i, f, g, o `[m, T, B, 4 H]`.
        cells: states `[m, T + 1, B, H]`, and tanh of those after a step, `[m, T, B, H]`.
        grad: of the outputs `[m, T, B, H]`.
        dh, dc: gradients that the step after it left of hidden state and cell state, `[m, B, H]`; dc becomes that of
            the state before.
        out: becomes the gradient of what gates are made of.
    """
    one, size = parts.dtype.type(1), dh.shape[2]
    for k in range(dh.shape[0]):
        for b in range(dh.shape[1]):
            row, to, before, now = parts[k, t, b], out[k, t, b], cells[k, t, b], tanhs[k, t, b]
            i_, f_, g_, o_ = row[:size], row[size : 2 * size], row[2 * size : 3 * size], row[3 * size :]
            to_i, to_f, to_g, to_o = to[:size], to[size : 2 * size], to[2 * size : 3 * size], to[3 * size :]
            from_out, from_h, from_c = grad[k, t, b], dh[k, b], dc[k, b]
            for j in range(size):
                i, f, g, o, c = i_[j], f_[j], g_[j], o_[j], now[j]
                d = from_out[j] + from_h[j]
                e = from_c[j] + d * o * (one - c * c)
                to_i[j] = e * g * i * (one - i)
                to_f[j] = e * before[j] * f * (one - f)
                to_g[j] = e * i * (one - g * g)
                to_o[j] = d * c * o * (one - o)
                from_c[j] = e * f


@compiled
def gru_back(t: int, parts: A, news: A, hidden: A, grad: A, dh: A, out: A, own: A) -> None:
    """Go back through step t of GRU cells.

    Arguments:
        parts: gates r, z and the new state n `[m, T, B, 3 H]`.
        news: what the hidden state gives to n before r, `[m, T, B, H]`.
        hidden: states `[m, T + 1, B, H]`.
        grad: of the outputs `[m, T, B, H]`.
        dh: gradient that the step after it left of the hidden state, `[m, B, H]`; becomes what goes past the gates.
        out, own: become the gradients of what gates are made of, by input and by hidden state.
    """
    one, size = parts.dtype.type(1), dh.shape[2]
    for k in range(dh.shape[0]):
        for b in range(dh.shape[1]):
            row, to, its, h, new = parts[k, t, b], out[k, t, b], own[k, t, b], hidden[k, t, b], news[k, t, b]
            r_, z_, n_ = row[:size], row[size : 2 * size], row[2 * size :]
            to_r, to_z, to_n = to[:size], to[size : 2 * size], to[2 * size :]
            its_r, its_z, its_n = its[:size], its[size : 2 * size], its[2 * size :]
            from_out, from_h = grad[k, t, b], dh[k, b]
            for j in range(size):
                r, z, n = r_[j], z_[j], n_[j]
                d = from_out[j] + from_h[j]
                last = d * (one - z) * (one - n * n)
                first = last * new[j] * r * (one - r)
                second = d * (h[j] - n) * z * (one - z)
                to_r[j], to_z[j], to_n[j] = first, second, last
                its_r[j], its_z[j], its_n[j] = first, second, last * r
                from_h[j] = d * z
