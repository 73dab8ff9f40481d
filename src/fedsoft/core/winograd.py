"""Convolutions of 5 x 5 with few multiplications (Winograd, 1980; Lavin & Gray, 2016).

The output is cut into squares of 2 x 2, whose inputs are 6 x 6. Of the transformed squares only products of matrices
over channels are left, 36 in number, with a third of the arithmetic. Images have their channels last here. See
`kernels` for what all compiled loops have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import njit

from fedsoft.core.kernels import A, F, compiled

KERNEL, STEP = 5, 2  # sides of the kernel, and of a square of outputs
# Interpolation at 0, 1, -1, 2, -2 and infinity: squares of inputs on their way in, products on their way out, weights.
INPUT = np.array([
    [4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
], dtype=np.float64)  # fmt: skip
OUTPUT = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 1]], dtype=np.float64)
SCALED = ((0, 1 / 4), (1, -1 / 6), (-1, -1 / 6), (2, 1 / 24), (-2, 1 / 24))
WEIGHT = np.array([*([scale * point**k for k in range(KERNEL)] for point, scale in SCALED), [0, 0, 0, 0, 1]])


def _inlined(function: F) -> F:
    make: Callable[..., Any] = njit(inline="always")
    return cast(F, make(function))


@_inlined
def _sum(out: A, a: A, b: A, c: A, d: A, e: A, f: A, k: A) -> None:
    k0, k1, k2, k3, k4, k5 = k[0], k[1], k[2], k[3], k[4], k[5]
    for i in range(len(out)):
        out[i] = k0 * a[i] + k1 * b[i] + k2 * c[i] + k3 * d[i] + k4 * e[i] + k5 * f[i]


@_inlined
def _add(out: A, a: A, b: A, c: A, d: A, e: A, f: A, k: A) -> None:
    k0, k1, k2, k3, k4, k5 = k[0], k[1], k[2], k[3], k[4], k[5]
    for i in range(len(out)):
        out[i] += k0 * a[i] + k1 * b[i] + k2 * c[i] + k3 * d[i] + k4 * e[i] + k5 * f[i]


@compiled
def tiles_of(x: A, padding: int, by: A, channels: int, tiles: A) -> None:
    """Transform every square of `x[B, H, W C]` into `tiles[6, 6, B rows, columns C]`; zeros beyond the edge."""
    images, height, width = x.shape[0], x.shape[1], x.shape[2] // channels
    rows, across = tiles.shape[2] // images, tiles.shape[3]
    # Even and odd columns apart, so that those of neighbouring squares lie side by side.
    half = np.zeros((6, 2, across + 2 * channels), dtype=x.dtype)
    beyond = np.zeros(x.shape[2], dtype=x.dtype)
    for at in range(images * rows):
        b, first = at // rows, at % rows * 2 - padding
        r0 = x[b, first] if 0 <= first < height else beyond
        r1 = x[b, first + 1] if 0 <= first + 1 < height else beyond
        r2 = x[b, first + 2] if 0 <= first + 2 < height else beyond
        r3 = x[b, first + 3] if 0 <= first + 3 < height else beyond
        r4 = x[b, first + 4] if 0 <= first + 4 < height else beyond
        r5 = x[b, first + 5] if 0 <= first + 5 < height else beyond
        for w in range(width):
            i, place = w * channels, (w + padding) // 2 * channels
            j = i + channels
            if place + channels <= half.shape[2]:
                for p in range(6):
                    to = half[p, (w + padding) % 2, place : place + channels]
                    _sum(to, r0[i:j], r1[i:j], r2[i:j], r3[i:j], r4[i:j], r5[i:j], by[p])
        for p in range(6):
            even, odd = half[p, 0], half[p, 1]
            a2, a3, a4, a5 = even[channels:], odd[channels:], even[2 * channels :], odd[2 * channels :]
            for q in range(6):
                _sum(tiles[p, q, at], even, odd, a2, a3, a4, a5, by[q])


@compiled
def outputs_of(tiles: A, by: A, bias: A, out: A) -> None:
    """Transform products of tiles `[6, 6, B rows, columns C]` into images `out[B, H, W C]`, plus `bias[C]`."""
    images, height, channels = out.shape[0], out.shape[1], len(bias)
    rows, width = tiles.shape[2] // images, out.shape[2] // channels
    half = np.empty((6, tiles.shape[3]), dtype=out.dtype)
    for at in range(images * rows):
        b, first = at // rows, at % rows * 2
        for r in range(min(2, height - first)):
            for q in range(6):
                _sum(
                    half[q], tiles[0, q, at], tiles[1, q, at], tiles[2, q, at], tiles[3, q, at], tiles[4, q, at],
                    tiles[5, q, at], by[r],
                )  # fmt: skip
            for w in range(width):
                i, at_w = w // 2 * channels, w * channels
                j, to = i + channels, out[b, first + r, at_w : at_w + channels]
                _sum(to, half[0, i:j], half[1, i:j], half[2, i:j], half[3, i:j], half[4, i:j], half[5, i:j], by[w % 2])
                for c in range(channels):
                    to[c] += bias[c]


@compiled
def tiles_of_gradient(grad: A, by: A, channels: int, tiles: A) -> None:
    """The way back through `outputs_of`: from the gradient of images to that of products of tiles."""
    images, height, width = grad.shape[0], grad.shape[1], grad.shape[2] // channels
    rows = tiles.shape[2] // images
    half = np.zeros((6, 2, tiles.shape[3]), dtype=grad.dtype)
    beyond = np.zeros(grad.shape[2], dtype=grad.dtype)
    for at in range(images * rows):
        b, first = at // rows, at % rows * 2
        above, below = grad[b, first], grad[b, first + 1] if first + 1 < height else beyond
        for w in range(width):
            i, place = w * channels, w // 2 * channels
            x0, x1 = above[i : i + channels], below[i : i + channels]
            for p in range(6):
                to, k0, k1 = half[p, w % 2, place : place + channels], by[0, p], by[1, p]
                for c in range(channels):
                    to[c] = k0 * x0[c] + k1 * x1[c]
        for p in range(6):
            x0, x1 = half[p, 0], half[p, 1]
            for q in range(6):
                to, k0, k1 = tiles[p, q, at], by[0, q], by[1, q]
                for c in range(len(to)):
                    to[c] = k0 * x0[c] + k1 * x1[c]


@compiled
def gradient_of(tiles: A, padding: int, back: A, channels: int, out: A) -> None:
    """The way back through `tiles_of`: from the gradient of tiles to that of images `out[B, H, W C]`.

    `back` is the transpose of what tiles were made by.
    """
    images, height, width = out.shape[0], out.shape[1], out.shape[2] // channels
    rows, across = tiles.shape[2] // images, tiles.shape[3]
    half = np.empty((6, 2, across + 2 * channels), dtype=out.dtype)
    out[:] = 0
    for at in range(images * rows):
        b, first = at // rows, at % rows * 2 - padding
        half[:] = 0
        for p in range(6):
            t0, t1, t2 = tiles[p, 0, at], tiles[p, 1, at], tiles[p, 2, at]
            t3, t4, t5 = tiles[p, 3, at], tiles[p, 4, at], tiles[p, 5, at]
            for a in range(6):
                place = a // 2 * channels
                _add(half[p, a % 2, place : place + across], t0, t1, t2, t3, t4, t5, back[a])
        for w in range(width):
            i, r, at_w = (w + padding) // 2 * channels, (w + padding) % 2, w * channels
            j = i + channels
            if j <= half.shape[2]:
                h0, h1, h2 = half[0, r, i:j], half[1, r, i:j], half[2, r, i:j]
                h3, h4, h5 = half[3, r, i:j], half[4, r, i:j], half[5, r, i:j]
                for a in range(6):
                    if 0 <= first + a < height:
                        _add(out[b, first + a, at_w : at_w + channels], h0, h1, h2, h3, h4, h5, back[a])
