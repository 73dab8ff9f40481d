"""Loops that torch has no single operation for, compiled by numba: one pass over memory where torch would need six.

All of them let other threads run, work in place on arrays of one floating-point type, and keep what is not a number
visible: a model that diverged stays recognisable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])
A = np.ndarray


def compiled(function: F) -> F:
    """Compile on first use; keep the result on disk where there is a place to keep it."""
    # Products may be fused with sums. Nothing may be assumed finite.
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        return cast(F, njit(cache=True, **options)(function))
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return cast(F, njit(**options)(function))


@compiled
def adam_rows(w: A, g: A, first: A, second: A, pulled: bool, strength: A, target: A, keep: A, scale: A, eps: A) -> None:
    """A step of Adam on `g + strength w - target` for every row of `w[m, P]`: w -= first / (scale sqrt(second) + eps).

    `keep` holds beta1 and beta2; the learning rate and the bias corrections of each row are in `scale[m]`, `eps[m]`.
    """
    keep1, keep2 = keep[0], keep[1]
    fresh1, fresh2 = 1 - keep1, 1 - keep2
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
def adam_outer(
    w: A, left: A, right: A, first: A, second: A, pulled: bool, strength: A, target: A, keep: A, scale: A, eps: A
) -> None:
    """The same for one matrix `w[out, in]` whose gradient is `left[B, out]^T right[B, in]`, which is never written out.

    For a layer of 512 x 3136 and five points that saves writing and reading 13 MB in every step.
    """
    keep1, keep2 = keep[0], keep[1]
    fresh1, fresh2 = 1 - keep1, 1 - keep2
    s, a, e = strength[0], scale[0], eps[0]
    points, width = right.shape
    d = np.empty(width, dtype=w.dtype)
    for o in range(w.shape[0]):
        w_o, first_o, second_o, target_o = w[o], first[o], second[o], target[o]
        if pulled:
            for i in range(width):
                d[i] = s * w_o[i] - target_o[i]
        else:
            for i in range(width):
                d[i] = 0
        b = 0
        while b + 4 <= points:
            l0, l1, l2, l3 = left[b, o], left[b + 1, o], left[b + 2, o], left[b + 3, o]
            r0, r1, r2, r3 = right[b], right[b + 1], right[b + 2], right[b + 3]
            for i in range(width):
                d[i] += l0 * r0[i] + l1 * r1[i] + l2 * r2[i] + l3 * r3[i]
            b += 4
        while b < points:
            l0, r0 = left[b, o], right[b]
            for i in range(width):
                d[i] += l0 * r0[i]
            b += 1
        for i in range(width):
            m = keep1 * first_o[i] + fresh1 * d[i]
            v = keep2 * second_o[i] + fresh2 * (d[i] * d[i])
            first_o[i] = m
            second_o[i] = v
            w_o[i] -= m / (a * np.sqrt(v) + e)


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
    """The largest of every 2 x 2 square of `x[B, C, H, W]`, and which of the four it is (the first, of equals).

    Written out: a loop over the four takes five times as long.
    """
    for b in range(out.shape[0]):
        for c in range(out.shape[1]):
            for i in range(out.shape[2]):
                for j in range(out.shape[3]):
                    a, value = x[b, c, 2 * i, 2 * j], x[b, c, 2 * i, 2 * j + 1]
                    most, where, all_four = a, 0, a + value
                    if not value <= most:
                        most, where = value, 1
                    value = x[b, c, 2 * i + 1, 2 * j]
                    all_four += value
                    if not value <= most:
                        most, where = value, 2
                    value = x[b, c, 2 * i + 1, 2 * j + 1]
                    all_four += value
                    if not value <= most:
                        most, where = value, 3
                    out[b, c, i, j] = most + 0 * all_four  # what is not a number shows, as in torch
                    place[b, c, i, j] = where


@compiled
def unpool(slope: A, place: A, out: A) -> None:
    """Bring the slope of each square's largest back to where it came from; all else is 0."""
    out[:] = 0
    for b in range(slope.shape[0]):
        for c in range(slope.shape[1]):
            for i in range(slope.shape[2]):
                for j in range(slope.shape[3]):
                    k = place[b, c, i, j]
                    out[b, c, 2 * i + k // 2, 2 * j + k % 2] = slope[b, c, i, j]
