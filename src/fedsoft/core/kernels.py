"""Loops that torch has no single operation for, compiled by numba: one pass over memory where torch would need six.

All of them let other threads run, work in place on arrays of one floating-point type, and keep what is not a number
visible: a model that diverged stays recognisable. Constants are made of the arrays' own type: a plain 1 among numbers
of single precision would turn the loop into one of double precision, at half the speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

from fedsoft.core.kernel_cache import kept_in, own_folder

F = TypeVar("F", bound=Callable[..., Any])
A = np.ndarray
AdamState = tuple[A, A]
Pull = tuple[bool, A, A]
Rate = tuple[A, A, A]


def _options(*more: str) -> dict[str, Any]:
    # Products may be fused with sums. Nothing may be assumed finite.
    return {"nogil": True, "fastmath": {"contract", *more}, "error_model": "numpy"}


def compiled(function: F, *more: str) -> F:
    """Compile on first use; keep the result on disk where there is a place to keep it."""
    options, folder = _options(*more), own_folder()
    if folder is None:
        return cast(F, njit(**options)(function))
    with kept_in(folder):
        return cast(F, njit(cache=True, **options)(function))


def compiled_sums(function: F) -> F:
    """Compile a loop of long sums, whose terms may be added in another order: several at once."""
    return compiled(function, "reassoc")


def part(function: F) -> F:
    """Make a loop a part of those in the same file that use it: a call would pass a dozen words for every array."""
    return cast(F, njit(forceinline=True, **_options())(function))


def part_sums(function: F) -> F:
    """The same for long sums, see `compiled_sums`."""
    return cast(F, njit(forceinline=True, **_options("reassoc"))(function))


@compiled
def adam_rows(w: A, g: A, state: AdamState, pull: Pull, rate: Rate) -> None:
    """A step of Adam on `g + strength w - target` for every row of `w[m, P]`: w -= first / (scale sqrt(second) + eps).

    Arguments:
        state: first and second, the running means of the gradient and of its square.
        pull: whether there is a proximal pull, strength and target.
        rate: beta1 and beta2; scale and eps hold the learning rate and the bias corrections of each row, `[m]`.
    """
    (first, second), (pulled, strength, target), (keep, scale, eps) = state, pull, rate
    keep1, keep2 = keep[0], keep[1]
    fresh1, fresh2 = keep.dtype.type(1 - keep1), keep.dtype.type(1 - keep2)
    for k in range(w.shape[0]):
        w_k, g_k, first_k, second_k, target_k = w[k], g[k], first[k], second[k], target[k]
        s, a, e = strength[k], scale[k], eps[k]
        if pulled:
            for i in range(w.shape[1]):
                d = g_k[i] + s * w_k[i] - target_k[i]
                m = keep1 * first_k[i] + fresh1 * d
                v = keep2 * second_k[i] + fresh2 * (d * d)
                first_k[i] = m
                second_k[i] = v
                w_k[i] -= m / (a * np.sqrt(v) + e)
        else:
            for i in range(w.shape[1]):
                d = g_k[i]
                m = keep1 * first_k[i] + fresh1 * d
                v = keep2 * second_k[i] + fresh2 * (d * d)
                first_k[i] = m
                second_k[i] = v
                w_k[i] -= m / (a * np.sqrt(v) + e)


@compiled
def adam_outer(w: A, left: A, right: A, state: AdamState, pull: Pull, rate: Rate) -> None:
    """The same for one matrix `w[out, in]` whose gradient is `left[B, out]^T right[B, in]`, which is never written out.

    For a layer of 512 x 3136 and five points that saves writing and reading 13 MB in every step. Five points are added
    up on the way; those before them in a row that stays in the cache.
    """
    (first, second), (pulled, strength, target), (keep, scale, eps) = state, pull, rate
    keep1, keep2 = keep[0], keep[1]
    fresh1, fresh2 = keep.dtype.type(1 - keep1), keep.dtype.type(1 - keep2)
    s, a, e = strength[0], scale[0], eps[0]
    points, width = right.shape
    last = max(0, points - 5)
    # Without a pull, or with fewer than five points, what is not there counts 0 times.
    nothing, one = w.dtype.type(0), w.dtype.type(1 if pulled else 0)
    s = s if pulled else nothing
    r0, r1, r2 = right[last], right[min(last + 1, points - 1)], right[min(last + 2, points - 1)]
    r3, r4 = right[min(last + 3, points - 1)], right[min(last + 4, points - 1)]
    d = np.empty(width, dtype=w.dtype)
    for o in range(w.shape[0]):
        w_o, first_o, second_o, target_o = w[o], first[o], second[o], target[o]
        l0 = left[last, o]
        l1 = left[last + 1, o] if points > 1 else nothing
        l2 = left[last + 2, o] if points > 2 else nothing
        l3 = left[last + 3, o] if points > 3 else nothing
        l4 = left[last + 4, o] if points > 4 else nothing
        if last == 0:
            for i in range(width):
                g = s * w_o[i] - one * target_o[i]
                g += l0 * r0[i] + l1 * r1[i] + l2 * r2[i] + l3 * r3[i] + l4 * r4[i]
                m = keep1 * first_o[i] + fresh1 * g
                v = keep2 * second_o[i] + fresh2 * (g * g)
                first_o[i] = m
                second_o[i] = v
                w_o[i] -= m / (a * np.sqrt(v) + e)
            continue
        for i in range(width):
            d[i] = s * w_o[i] - one * target_o[i]
        for b in range(last):
            left_b, right_b = left[b, o], right[b]
            for i in range(width):
                d[i] += left_b * right_b[i]
        for i in range(width):
            g = d[i] + l0 * r0[i] + l1 * r1[i] + l2 * r2[i] + l3 * r3[i] + l4 * r4[i]
            m = keep1 * first_o[i] + fresh1 * g
            v = keep2 * second_o[i] + fresh2 * (g * g)
            first_o[i] = m
            second_o[i] = v
            w_o[i] -= m / (a * np.sqrt(v) + e)


@compiled_sums
def thin_outputs(x: A, w: A, bias: A, out: A) -> None:
    """`out[B, out] = x[B, in] w[out, in]^T + bias` for few points: one pass over a large w, two rows and five points at
    a time."""
    points, width, zero = x.shape[0], x.shape[1], out.dtype.type(0)
    for o in range(0, w.shape[0], 2):
        other = min(o + 1, w.shape[0] - 1)  # the last row of an odd number is worked on twice
        v, u = w[o], w[other]
        b = 0
        while b + 5 <= points:
            x0, x1, x2, x3, x4 = x[b], x[b + 1], x[b + 2], x[b + 3], x[b + 4]
            s0, s1, s2, s3, s4, t0, t1, t2, t3, t4 = zero, zero, zero, zero, zero, zero, zero, zero, zero, zero
            for i in range(width):
                s0 += x0[i] * v[i]
                s1 += x1[i] * v[i]
                s2 += x2[i] * v[i]
                s3 += x3[i] * v[i]
                s4 += x4[i] * v[i]
                t0 += x0[i] * u[i]
                t1 += x1[i] * u[i]
                t2 += x2[i] * u[i]
                t3 += x3[i] * u[i]
                t4 += x4[i] * u[i]
            out[b, o], out[b + 1, o], out[b + 2, o], out[b + 3, o], out[b + 4, o] = s0, s1, s2, s3, s4
            out[b, other], out[b + 1, other], out[b + 2, other] = t0, t1, t2
            out[b + 3, other], out[b + 4, other] = t3, t4
            b += 5
        while b < points:
            x0, s0, t0 = x[b], zero, zero
            for i in range(width):
                s0 += x0[i] * v[i]
                t0 += x0[i] * u[i]
            out[b, o], out[b, other] = s0, t0
            b += 1
    for b in range(points):
        for o in range(w.shape[0]):
            out[b, o] += bias[o]


@compiled
def thin_input_gradients(grad: A, w: A, out: A) -> None:
    """`out[B, in] = grad[B, out] w[out, in]` for few points: one pass over a large w, four rows and five points at a
    time."""
    points, (rows, width), zero = len(out), w.shape, out.dtype.type(0)
    out[:] = 0
    for o in range(0, rows, 4):
        # Beyond the last row another one counts 0 times.
        a1, a2, a3 = min(o + 1, rows - 1), min(o + 2, rows - 1), min(o + 3, rows - 1)
        w0, w1, w2, w3 = w[o], w[a1], w[a2], w[a3]
        b = 0
        while b + 5 <= points:
            out0, out1, out2, out3, out4 = out[b], out[b + 1], out[b + 2], out[b + 3], out[b + 4]
            g = grad[b : b + 5]
            p0, p1, p2, p3, p4 = g[0, o], g[1, o], g[2, o], g[3, o], g[4, o]
            q0, q1, q2, q3, q4 = g[0, a1], g[1, a1], g[2, a1], g[3, a1], g[4, a1]
            r0, r1, r2, r3, r4 = g[0, a2], g[1, a2], g[2, a2], g[3, a2], g[4, a2]
            s0, s1, s2, s3, s4 = g[0, a3], g[1, a3], g[2, a3], g[3, a3], g[4, a3]
            if o + 1 >= rows:
                q0, q1, q2, q3, q4 = zero, zero, zero, zero, zero
            if o + 2 >= rows:
                r0, r1, r2, r3, r4 = zero, zero, zero, zero, zero
            if o + 3 >= rows:
                s0, s1, s2, s3, s4 = zero, zero, zero, zero, zero
            for i in range(width):
                x0, x1, x2, x3 = w0[i], w1[i], w2[i], w3[i]
                out0[i] += p0 * x0 + q0 * x1 + r0 * x2 + s0 * x3
                out1[i] += p1 * x0 + q1 * x1 + r1 * x2 + s1 * x3
                out2[i] += p2 * x0 + q2 * x1 + r2 * x2 + s2 * x3
                out3[i] += p3 * x0 + q3 * x1 + r3 * x2 + s3 * x3
                out4[i] += p4 * x0 + q4 * x1 + r4 * x2 + s4 * x3
            b += 5
        while b < points:
            out0, p0 = out[b], grad[b, o]
            q0 = grad[b, a1] if o + 1 < rows else zero
            r0 = grad[b, a2] if o + 2 < rows else zero
            s0 = grad[b, a3] if o + 3 < rows else zero
            for i in range(width):
                out0[i] += p0 * w0[i] + q0 * w1[i] + r0 * w2[i] + s0 * w3[i]
            b += 1


@compiled
def columns(x: A, cols: A, kernel: int, padding: int) -> None:
    """Every patch of `x[B, C, H, W]` as a column: `cols[B, C * kernel^2, rows, columns]`, zeros beyond the edge."""
    _, _, height, width = x.shape
    _, _, rows, across = cols.shape
    for b in range(x.shape[0]):
        at = 0
        for c in range(x.shape[1]):
            for dy in range(kernel):
                for dx in range(kernel):
                    out = cols[b, at]
                    at += 1
                    begin, end = max(0, padding - dx), min(across, width + padding - dx)
                    for i in range(rows):
                        y = i + dy - padding
                        if 0 <= y < height:
                            for j in range(begin):
                                out[i, j] = 0
                            for j in range(begin, end):
                                out[i, j] = x[b, c, y, j + dx - padding]
                            for j in range(end, across):
                                out[i, j] = 0
                        else:
                            for j in range(across):
                                out[i, j] = 0


@compiled
def pool(x: A, out: A, place: A) -> None:
    """The largest of every 2 x 2 square of `x[B, H, W, C]`, and which of the four it is (the first, of equals).

    Choices between two values instead of branches: several channels are worked on at once.
    """
    nothing = x.dtype.type(0)
    for b in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                to, its = out[b, i, j], place[b, i, j]
                left, right = x[b, 2 * i, 2 * j], x[b, 2 * i, 2 * j + 1]
                for c in range(len(to)):
                    x0, x1 = left[c], right[c]
                    larger = x1 > x0
                    # What is not a number shows, as in torch.
                    to[c] = (x1 if larger else x0) + nothing * (x0 + x1)
                    its[c] = 1 if larger else 0
                left, right = x[b, 2 * i + 1, 2 * j], x[b, 2 * i + 1, 2 * j + 1]
                for c in range(len(to)):
                    x2, x3, above = left[c], right[c], to[c]
                    larger = x3 > x2
                    below, where = x3 if larger else x2, 3 if larger else 2
                    lower = below > above
                    to[c] = (below if lower else above) + nothing * (x2 + x3)
                    its[c] = where if lower else its[c]


@compiled
def unpool(grad: A, place: A, out: A) -> None:
    """Bring the gradient of each square's largest back to where it came from in `out[B, H, W, C]`; all else is 0."""
    nothing = grad.dtype.type(0)
    if out.shape[1] % 2 or out.shape[2] % 2:
        out[:] = 0
    for b in range(grad.shape[0]):
        for i in range(grad.shape[1]):
            for j in range(grad.shape[2]):
                given, its = grad[b, i, j], place[b, i, j]
                for k in range(4):
                    to = out[b, 2 * i + k // 2, 2 * j + k % 2]
                    for c in range(len(to)):
                        to[c] = given[c] if its[c] == k else nothing


@compiled
def kept_elements(bases: A, rows: A, stride: np.uint64, threshold: np.uint64, value: float, out: A) -> None:
    """Write `value` or 0 into `out[m, R, L]` by the hash of `bases[m] + rows[R] + l stride`, see `draws.kept`.

    The loop over l is `draws.mixed`: numbers of 64 bits that wrap around.
    """
    one, two = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
    s30, s27, s31 = np.uint64(30), np.uint64(27), np.uint64(31)
    kept, dropped = out.dtype.type(value), out.dtype.type(0)
    for k in range(out.shape[0]):
        for r in range(out.shape[1]):
            begin = bases[k] + rows[r]
            for i in range(out.shape[2]):
                z = begin + np.uint64(i) * stride
                z = (z ^ (z >> s30)) * one
                z = (z ^ (z >> s27)) * two
                z = z ^ (z >> s31)
                out[k, r, i] = dropped if z < threshold else kept
