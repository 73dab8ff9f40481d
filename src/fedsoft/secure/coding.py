"""Fixed-point numbers that can be added under masks: integers modulo 2^bits.

A sum is one over weights a_k with sum_k |a_k| <= 1, so it is at most as large as the largest value. Values are clipped
to the reach R, multiplied by the weight, and rounded to multiples of the unit R 2^(2 - bits). With m clients

    | decoded sum - sum_k a_k clip(x_k) |  <=  m / 2 units  (m <= 2^(bits - 2), and rounding of float64)

and nothing wraps around: the sum of integers is at most 2^(bits - 2) + m / 2 < 2^(bits - 1). The reach is a power of
two, so that scaling is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.replies import Kind


@dataclass(frozen=True)
class Coding:
    """How numbers are coded.

    Arguments:
        bits: of an integer, a multiple of 8 up to 64.
        reach: R, the largest value; larger ones are clipped.
    """

    bits: int
    reach: float

    @property
    def unit(self) -> float:
        """The difference of two numbers that follow each other."""
        return self.reach * 2.0 ** (2 - self.bits)

    @property
    def bytes(self) -> int:
        """Of a coded number."""
        return self.bits // 8

    def error(self, clients: int) -> float:
        """Return the largest error of a sum over so many clients, whose weights sum to 1."""
        return clients / 2 * self.unit

    def coded_sum(self, rows: Tensor, weights: Tensor) -> Coded:
        """Return the sum of what m clients send: `rows[m, n]` in S sums with `weights[S, m]`.

        Every client clips, weighs and rounds for itself. What is not a number counts as 0, and as clipped.
        """
        value = rows.double()
        near = value.nan_to_num(nan=0.0, posinf=self.reach, neginf=-self.reach).clamp(-self.reach, self.reach)
        clipped = int(((near != value) & (weights != 0).any(0)[:, None]).sum())
        parts = [(near * (one[:, None] / self.unit)).round().to(torch.int64).sum(0) for one in weights.double()]
        return Coded(torch.stack(parts), clipped)

    def decoded(self, total: Tensor) -> Tensor:
        """Return the sum that integers modulo 2^bits stand for, in float64."""
        free = 64 - self.bits  # above the highest bit: shifting up and down again repeats the sign
        return ((total << free) >> free).double() * self.unit

    def packed(self, total: Tensor) -> bytes:
        """Return integers modulo 2^bits as bytes, the lowest first."""
        whole = total.contiguous().numpy().astype("<i8").view(np.uint8).reshape(-1, 8)
        return whole[:, : self.bytes].tobytes()

    def unpacked(self, data: bytes) -> Tensor:
        """Return integers from what `packed` made, `[n]`."""
        found = np.zeros((len(data) // self.bytes, 8), dtype=np.uint8)
        found[:, : self.bytes] = np.frombuffer(data, dtype=np.uint8).reshape(-1, self.bytes)
        return torch.from_numpy(found.view("<i8").reshape(-1).astype(np.int64))


class Coded(NamedTuple):
    """The sum of coded rows, `[S, n]` modulo 2^64, how many values were clipped, and which share of weights it has."""

    total: Tensor
    clipped: int
    share: Tensor | float = 1.0

    def plus(self, other: Coded) -> Coded:
        return Coded(self.total + other.total, self.clipped + other.clipped)


MODELS = Coding(40, 2.0**10)  # 1.25 times the bytes of a float32; multiples of 3.7e-9
NUMBERS = Coding(64, 2.0**30)  # of everything else, which is short: multiples of 2.3e-10
WHOLE = Coding(64, 2.0**62)  # of whole numbers
SHARES = Coding(64, 1.0)  # of weights: multiples of 2.2e-19


def coding_of(kind: Kind) -> Coding:
    """Return how an entry of a reply is coded."""
    return MODELS if kind is Kind.MODEL else NUMBERS
