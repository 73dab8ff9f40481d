"""Philox4x64-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011) for many clients.

Every block of four words is a function of a key (of seed, label and round) and of a counter: the number of the block
and of the call, and two words that name the client. numpy has the same generator for one client at a time; tests hold
the words against it. `ends` are the running sums of how many numbers each client draws.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedsoft.core.kernels import compiled

A = np.ndarray
U = np.uint64
Key = tuple[np.uint64, np.uint64]
Tables = tuple[A, A, A]
Int = int | np.int64 | np.uint64

LAYERS = 256  # of the ziggurat


def _high(typing: Any, a: Any, b: Any) -> Any:
    """The upper 64 of the 128 bits of a product."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(values[0], wide), builder.zext(values[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), build


high: Any = intrinsic(_high)


@compiled
def block(key: Key, name: Key, call: Int, number: Int) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """The four words at a counter."""
    (k0, k1), (c2, c3), c0, c1 = key, name, U(number), U(call)
    for _ in range(10):
        h0, l0 = high(U(0xD2E7470EE14C6C93), c0), U(0xD2E7470EE14C6C93) * c0
        h1, l1 = high(U(0xCA5A826395121157), c2), U(0xCA5A826395121157) * c2
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = k0 + U(0x9E3779B97F4A7C15), k1 + U(0xBB67AE8584CAA73B)
    return c0, c1, c2, c3


@compiled
def halves(words: tuple[np.uint64, np.uint64, np.uint64, np.uint64], out: A) -> None:
    """Four words as eight of 32 bits, the lower half of each first."""
    a, b, c, d = words
    low, half = U(0xFFFFFFFF), U(32)
    out[0], out[1], out[2], out[3] = a & low, a >> half, b & low, b >> half
    out[4], out[5], out[6], out[7] = c & low, c >> half, d & low, d >> half


@compiled
def words(key: Key, names: A, call: int, ends: A, out: A) -> None:
    """Words of 64 bits, client after client."""
    at = 0
    for k in range(len(names)):
        name, number = (names[k, 0], names[k, 1]), 0
        while at < ends[k]:
            number += 1
            a, b, c, d = block(key, name, call, number)
            left = ends[k] - at
            out[at] = a
            if left > 1:
                out[at + 1] = b
            if left > 2:
                out[at + 2] = c
            if left > 3:
                out[at + 3] = d
            at += min(left, 4)


@compiled
def permutations(key: Key, names: A, call: int, ends: A, out: A) -> None:
    """In every row of `out[times, ...]` each client's own places, shuffled (Fisher and Yates).

    Numbers below n + 1 are drawn as in Lemire (2019): the upper half of a product, and again where that would be
    uneven.
    """
    buffer = np.empty(8, dtype=np.uint32)
    low, half = U(0xFFFFFFFF), U(32)
    begin = 0
    for k in range(len(names)):
        name, number, used = (names[k, 0], names[k, 1]), 0, 8
        for row in range(len(out)):
            own = out[row, begin : ends[k]]
            for i in range(len(own)):
                own[i] = begin + i
            for i in range(len(own) - 1, 0, -1):
                side = U(i + 1)
                least = U(0)
                while True:
                    if used == 8:
                        number += 1
                        used = 0
                        halves(block(key, name, call, number), buffer)
                    product = U(buffer[used]) * side
                    used += 1
                    rest = product & low
                    if rest >= side:
                        break
                    least = (U(1) << half) % side
                    if rest >= least:
                        break
                j = np.int64(product >> half)
                own[i], own[j] = own[j], own[i]
        begin = ends[k]


@compiled
def normals(key: Key, names: A, call: int, ends: A, tables: Tables, out: A) -> None:
    """Standard normal numbers by the ziggurat of Marsaglia and Tsang (2000), client after client.

    Number i of a client is made of half a word, number i of those: 8 bits choose the layer, one the sign, 23 the place
    in it. The rare ones that fall outside their layer draw on from a counter of their own.
    """
    at = 0
    width, inside, _ = tables
    buffer = np.empty(8, dtype=np.uint32)
    for k in range(len(names)):
        name, number = (names[k, 0], names[k, 1]), 0
        while at < ends[k]:
            number += 1
            halves(block(key, name, call, number), buffer)
            left = min(ends[k] - at, 8)
            for place in range(left):
                word = buffer[place]
                layer, distance = np.int64(word & 0xFF), np.int64(word >> 9)
                x = distance * width[layer]
                if distance >= inside[layer]:
                    x = outside(x, layer, (key, name, call, 8 * number + place), tables)
                out[at + place] = -x if word & 0x100 else x
            at += left


@compiled
def outside(x: float, layer: Int, where: tuple[Key, Key, int, int], tables: Tables) -> float:
    """The size of a normal number that does not lie in the part of its layer that is below the curve as a whole."""
    (width, inside, height), (key, name, call, place) = tables, where
    edge = width[1] * 2.0**23
    further = U(call) | (U(1) << U(63))
    number = U(place) << U(32)
    scale = 2.0**-53
    while True:
        number += U(1)
        a, b, c, d = block(key, name, further, number)
        first = (np.float64(a >> U(11)) + 0.5) * scale
        second = (np.float64(b >> U(11)) + 0.5) * scale
        if layer == 0:  # beyond the lowest layer
            far = -np.log(first) / edge
            if -2 * np.log(second) > far * far:
                return edge + far
            continue
        if height[layer] + first * (height[layer + 1] - height[layer]) < np.exp(-0.5 * x * x):
            return x
        layer = np.int64(c & U(0xFF))
        distance = np.int64(d >> U(41))
        x = distance * width[layer]
        if distance < inside[layer]:
            return x


@compiled
def regressions(drawn: A, theta: A, source: A, noise: float, x: A, y: A) -> None:
    """Points of linear regressions, y = <x, theta_s> + noise e, from normal numbers `drawn[points, e and x]`."""
    for n in range(len(drawn)):
        theta_s, total = theta[source[n]], 0.0
        for i in range(x.shape[1]):
            value = drawn[n, i + 1]
            x[n, i] = value
            total += np.float64(value) * theta_s[i]
        y[n] = total + noise * drawn[n, 0]


def ziggurat() -> Tables:
    """Return for every layer its width (in units of 2^-23), the part of it that is below the curve as a whole, and the
    height of the curve where it ends."""
    edge = 3.6541528853610088  # such that 256 parts of equal area cover all
    area = edge * math.exp(-edge * edge / 2) + math.sqrt(math.pi / 2) * math.erfc(edge / math.sqrt(2))
    ends = [area / math.exp(-edge * edge / 2), edge]
    while len(ends) < LAYERS:
        x = ends[-1]
        ends.append(math.sqrt(-2 * math.log(math.exp(-x * x / 2) + area / x)))
    x = np.array([*ends, 0.0])
    inside = (x[1:] / x[:-1] * 2.0**23).astype(np.int64)
    return x[:-1] * 2.0**-23, inside, np.exp(-0.5 * x * x)


TABLES = ziggurat()
