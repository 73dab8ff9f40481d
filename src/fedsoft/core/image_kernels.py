"""Compiled loops of group normalization on images with their channels last, and of the ReLU that often follows it.

Rows of images are as long as loops should be; what belongs to channels is laid out along a whole row. See `kernels` for
what all compiled loops have in common.
"""

from __future__ import annotations

import numpy as np

from fedsoft.core.kernels import A, compiled, part


@part
def rows_of(images: A) -> A:
    """Images `[B, H, W, C]` as `[B, H, W C]`."""
    return images.reshape(images.shape[0], images.shape[1], images.shape[2] * images.shape[3])


@part
def along(values: A, row: A) -> None:
    """Repeat the values of channels over a whole row."""
    for at in range(0, len(row), len(values)):
        for c in range(len(values)):
            row[at + c] = values[c]


@part
def by_channel(row: A, values: A) -> None:
    """Add up a row by channel."""
    values[:] = 0
    for at in range(0, len(row), len(values)):
        for c in range(len(values)):
            values[c] += row[at + c]


@compiled
def group_norm(x4: A, weight: A, bias: A, eps: float, relu: bool, out4: A, mean: A, scale: A) -> None:
    """Normalize every group of channels of `x[B, H, W, C]`; keep its mean and what its deviations are multiplied by.

    Arguments:
        weight, bias: of channels `[C]`.
        relu: whether what is negative becomes 0.
        mean, scale: of groups `[B, G]`.
    """
    x, out = rows_of(x4), rows_of(out4)
    wide, channels, groups = x.shape[2], len(weight), mean.shape[1]
    each, kind = channels // groups, x.dtype.type
    zero, count = kind(0), kind(x.shape[1] * wide // groups)
    total, factor, shift = np.empty(wide, x.dtype), np.empty(wide, x.dtype), np.empty(wide, x.dtype)
    own, factors, shifts = np.empty(channels, x.dtype), np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    for b in range(len(x)):
        total[:] = 0
        for h in range(x.shape[1]):
            row = x[b, h]
            for i in range(wide):
                total[i] += row[i]
        by_channel(total, own)
        for g in range(groups):
            middle = own[g * each : (g + 1) * each].sum() / count
            mean[b, g] = middle
            shifts[g * each : (g + 1) * each] = middle
        along(shifts, shift)
        total[:] = 0
        for h in range(x.shape[1]):
            row = x[b, h]
            for i in range(wide):
                total[i] += (row[i] - shift[i]) * (row[i] - shift[i])
        by_channel(total, own)
        for g in range(groups):
            scale[b, g] = kind(1) / np.sqrt(own[g * each : (g + 1) * each].sum() / count + kind(eps))
        for c in range(channels):
            factors[c] = scale[b, c // each] * weight[c]
            shifts[c] = bias[c] - mean[b, c // each] * factors[c]
        along(factors, factor)
        along(shifts, shift)
        for h in range(x.shape[1]):
            row, to = x[b, h], out[b, h]
            if relu:
                for i in range(wide):
                    value = row[i] * factor[i] + shift[i]
                    to[i] = zero if value < zero else value  # what is not a number shows
            else:
                for i in range(wide):
                    to[i] = row[i] * factor[i] + shift[i]


@compiled
def group_norm_gradients(
    images: tuple[A, A, A], own: tuple[A, A, A], relu: bool, before4: A, found: tuple[A, A]
) -> None:
    """Go back through `group_norm`.

    Arguments:
        images: gradient of the output, input and output, `[B, H, W, C]`.
        own: weight, mean and scale.
        before4: becomes the gradient of the input.
        found: gradients of weight and bias are added here.
    """
    (grad4, x4, out4), (weight, mean, scale), (weights, biases) = images, own, found
    grad, x, out, before = rows_of(grad4), rows_of(x4), rows_of(out4), rows_of(before4)
    wide, channels, groups = x.shape[2], len(weight), mean.shape[1]
    each, kind = channels // groups, x.dtype.type
    zero, count = kind(0), kind(x.shape[1] * wide // groups)
    sums, alongside = np.empty(wide, x.dtype), np.empty(wide, x.dtype)
    first, second, third = np.empty(wide, x.dtype), np.empty(wide, x.dtype), np.empty(wide, x.dtype)
    plain, its = np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    firsts, seconds, thirds = np.empty(channels, x.dtype), np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    for b in range(len(x)):
        for c in range(channels):
            firsts[c] = mean[b, c // each]
        along(firsts, first)
        sums[:] = 0
        alongside[:] = 0
        for h in range(x.shape[1]):
            row, given, done, d = x[b, h], grad[b, h], out[b, h], before[b, h]
            for i in range(wide):
                passed = zero if relu and done[i] <= zero else given[i]
                d[i] = passed
                sums[i] += passed
                alongside[i] += passed * (row[i] - first[i])
        by_channel(sums, plain)
        by_channel(alongside, its)
        for g in range(groups):
            s, total, product = scale[b, g], zero, zero
            for c in range(g * each, (g + 1) * each):
                biases[c] += plain[c]
                weights[c] += its[c] * s
                total += weight[c] * plain[c]
                product += weight[c] * its[c]
            for c in range(g * each, (g + 1) * each):
                firsts[c] = s * weight[c]
                thirds[c] = s * s * s * product / count
                seconds[c] = s * total / count - mean[b, g] * thirds[c]
        along(firsts, first)
        along(seconds, second)
        along(thirds, third)
        for h in range(x.shape[1]):
            row, d = x[b, h], before[b, h]
            for i in range(wide):
                d[i] = d[i] * first[i] - second[i] - row[i] * third[i]
