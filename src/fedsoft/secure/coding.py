"""Fixed-point numbers that can be added under masks: integers modulo 2^bits.

A sum is one over weights a_k with sum_k |a_k| <= 1, so it is at most as large as the largest value. Values are clipped
to the reach R, multiplied by the weight, and rounded to multiples of a unit.

To the nearest multiple of R 2^(2 - bits), with m <= 2^(bits - 2) clients:

    | decoded sum - sum_k a_k clip(x_k) |  <=  m / 2 units

At random, up or down so that the mean is right, to a multiple of R / (2^(bits - 1) - m - 1). That is for few bits:

    | decoded sum - sum_k a_k clip(x_k) |  <=  m units,  and its standard deviation is at most sqrt(m) / 2 units

Nothing wraps around: the sum of integers is at most 2^(bits - 2) + m / 2, or 2^(bits - 1) - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.replies import Kind

LEVELS = 32  # powers of two by which the size of values is told
FINE = 20  # bits of a client's own weight


@dataclass(frozen=True)
class Coding:
    """How numbers are coded.

    Arguments:
        bits: of an integer, up to 64.
        reach: R, the largest value; larger ones are clipped.
        levels: how many counts of values are summed beside them: the first is of those that were clipped, the others of
            those in (R / 2^j, R / 2^(j - 1)], j = 1, 2, ..., the last of all that are smaller.
        clients: m, if numbers are rounded at random: the largest number of them.
        seed: of the random rounding. It is no secret.
        step: the unit, where it does not follow from the others.
    """

    bits: int
    reach: float
    levels: int = 1
    clients: int = 0
    seed: int = 0
    step: float = 0.0

    @property
    def unit(self) -> float:
        """The difference of two numbers that follow each other."""
        if self.step:
            return self.step
        if self.clients:
            return self.reach / (2.0 ** (self.bits - 1) - self.clients - 1)
        return self.reach * 2.0 ** (2 - self.bits)

    @property
    def bytes(self) -> float:
        """Of a coded number, among many."""
        return self.bits / 8

    def size(self, count: int) -> int:
        """Return the bytes of so many coded numbers."""
        return -(-self.bits * count // 8)

    def error(self, clients: int) -> float:
        """Return the largest error of a sum over so many clients, whose weights sum to 1."""
        return (clients if self.clients else clients / 2) * self.unit

    def rounded(self, scaled: Tensor, places: Tensor | None) -> Tensor:
        """Return numbers `[m, n]` in units as integers; `places` of the clients name their draws."""
        if not self.clients:
            return scaled.round().to(torch.int64)
        names = range(len(scaled)) if places is None else places.tolist()
        draws = [np.random.Generator(np.random.Philox(key=[self.seed, k])).random(scaled.shape[1]) for k in names]
        drawn = torch.from_numpy(np.stack(draws) if draws else np.zeros(tuple(scaled.shape)))
        return (scaled + drawn.to(scaled.device)).floor().to(torch.int64)

    def counts(self, value: Tensor) -> Tensor:
        """Return how many values have which size, `[levels]`. What is not a number counts as clipped."""
        lost = ~value.isfinite() | (value.abs() > self.reach)
        if self.levels == 1:
            return lost.sum()[None]
        size = value[~lost & (value != 0)].abs() / self.reach
        level = (1 - torch.frexp(size * (1 - 2.0**-53)).exponent).clamp(1, self.levels - 1)
        found = torch.bincount(level.long(), minlength=self.levels)
        found[0] = lost.sum()
        return found

    def coded_sum(self, rows: Tensor, weights: Tensor, places: Tensor | None = None) -> Coded:
        """Return the sum of what m clients send: `rows[m, n]` in S sums with `weights[S, m]`.

        Every client clips, weighs and rounds for itself. What is not a number counts as 0, and as clipped. `places` of
        the clients in the sum, `[m]`, name the draws of their rounding; default: 0 to m - 1.
        """
        value = rows.double()
        near = value.nan_to_num(nan=0.0, posinf=self.reach, neginf=-self.reach).clamp(-self.reach, self.reach)
        each = [replace(self, seed=(self.seed + s) % 2**63) for s in range(len(weights))]
        parts = [
            coding.rounded(near * (one[:, None] / self.unit), places).sum(0)
            for coding, one in zip(each, weights.double(), strict=True)
        ]
        return Coded(torch.stack(parts), self.counts(value[(weights != 0).any(0)]))

    def decoded(self, total: Tensor) -> Tensor:
        """Return the sum that integers modulo 2^bits stand for, in float64."""
        free = 64 - self.bits  # above the highest bit: shifting up and down again repeats the sign
        return ((total << free) >> free).double() * self.unit

    def packed(self, total: Tensor) -> bytes:
        """Return integers modulo 2^bits as bytes, the lowest first."""
        whole = total.contiguous().numpy().astype("<i8").view(np.uint8).reshape(-1, 8)
        if self.bits % 8 == 0:
            return whole[:, : self.bits // 8].tobytes()
        bits = np.unpackbits(whole[:, : -(-self.bits // 8)], axis=1, count=self.bits, bitorder="little")
        return np.packbits(bits, bitorder="little").tobytes()

    def unpacked(self, data: bytes, count: int) -> Tensor:
        """Return `count` integers from what `packed` made, `[n]`."""
        found = np.zeros((count, 8), dtype=np.uint8)
        read = np.frombuffer(data, dtype=np.uint8)
        if self.bits % 8 == 0:
            found[:, : self.bits // 8] = read.reshape(count, self.bits // 8)
        else:
            bits = np.unpackbits(read, count=count * self.bits, bitorder="little").reshape(count, self.bits)
            part = np.packbits(bits, axis=1, bitorder="little")
            found[:, : part.shape[1]] = part
        return torch.from_numpy(found.view("<i8").reshape(-1).astype(np.int64))


@dataclass(frozen=True)
class Coded:
    """The sum of coded rows, `[S, n]` modulo 2^64; counts of values, see `Coding`; which share of weights it has."""

    total: Tensor
    counts: Tensor
    share: Tensor | float = 1.0

    def plus(self, other: Coded) -> Coded:
        return Coded(self.total + other.total, self.counts + other.counts)


MODELS = Coding(40, 2.0**10)  # 1.25 times the bytes of a float32; multiples of 3.7e-9
NUMBERS = Coding(64, 2.0**30)  # of everything else: multiples of 2.3e-10
WHOLE = Coding(64, 2.0**62)  # of whole numbers


def weights_coding(clients: int, seed: int = 0) -> Coding:
    """Return how the clients' own weights are coded: in multiples of 2^-20 of what one client counts, at random.

    Finer ones would tell them: a share of points is one of few numbers, each with digits of its own once it is rounded
    to a float32, and the digits of a sum would be those of one set of shares only.
    """
    step = 2.0 ** -(FINE + math.ceil(math.log2(clients)))
    return Coding(64, 1.0, clients=clients, seed=seed % 2**63, step=step)


def coding_of(kind: Kind) -> Coding:
    """Return how an entry of a reply is coded as long as nothing is known of its size."""
    return MODELS if kind.has_parameters else NUMBERS
