"""Noise that clients add in shares, so that only sums are hidden by it, and the guarantee that it gives.

Every client clips what it adds to a center to the norm C, rounds it to whole units, and adds Skellam noise of variance
(z D)^2 / t units, where D is how much another client in place of one can change the sums, and t is how many are in a
sum at least. Sums of Skellam noise are Skellam noise (Agarwal, Kairouz, Liu, NeurIPS 2021), so those of any t honest
clients hide each client, whatever the others and the server do.

How much another client changes the sums: where the server knows who is in a mean, 2 C sqrt(S). Where clients weigh
their models by shares u_s, the sums are those of u_s (w - c_s) and of C u_s: for two clients they differ by 2 C and
sqrt(2) C at most, together by sqrt(6) C. Rounding adds sqrt(d) units, for d numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedsoft.secure.coding import Coding
from fedsoft.secure.weighing import BUDGET, Noise, Weighing

COARSEST, FINEST = 8, 16  # logarithms of C in units
ROUNDING = 8.0  # units that C has at least for each unit that rounding adds to the sensitivity
TAIL = 12.0  # standard deviations of the noise for which there is room
ORDERS = [*range(2, 65), 80, 96, 128, 192, 256, 384, 512]  # whole ones, as the bound asks for


@dataclass(frozen=True)
class Mechanism:
    """One release of noisy sums.

    Arguments:
        clip: C.
        noise: z, the standard deviation in units of the sensitivity.
        sums, size: S sums of rows with so many numbers.
        clients: the most that a sum has; it decides about bits alone.
        own: whether clients weigh their rows by shares of their own.
    """

    clip: float
    noise: float
    sums: int
    size: int
    clients: int
    own: bool

    @property
    def sensitivity(self) -> float:
        """Of all sums together to one client, before anything is rounded."""
        return self.clip * (math.sqrt(6) if self.own else 2 * math.sqrt(self.sums))

    @property
    def step(self) -> float:
        """The unit: as fine as the bits of a plain reply allow, but so fine that rounding costs little."""
        room, least = math.ceil(math.log2(self._most)), math.ceil(math.log2(ROUNDING * math.sqrt(self._count)))
        return self.clip * 2.0 ** -min(max(BUDGET // self.sums - room, COARSEST, least), FINEST)

    @property
    def _count(self) -> int:
        """How many numbers all sums have."""
        return self.sums * (self.size + self.own)

    @property
    def _most(self) -> float:
        """The largest sum, and twice for its sign, over C."""
        return 2 * (self.clients + TAIL * self.noise * 1.5 * self.sensitivity / self.clip)

    @property
    def bits(self) -> int:
        return math.ceil(math.log2(self._most * self.clip / self.step))

    @property
    def variance(self) -> float:
        """Of the noise of all together on each number, in units squared."""
        return (self.noise * self.sensitivity / self.step) ** 2

    @functools.cached_property
    def divergences(self) -> np.ndarray:
        """Bounds of the Renyi divergences of one release, for `ORDERS`: Agarwal et al., theorem 3.5."""
        two = self.sensitivity / self.step + math.sqrt(self._count)
        one, v = min(math.sqrt(self._count) * two, two**2), self.variance
        a = np.array(ORDERS, dtype=np.float64)
        return a * two**2 / (2 * v) + np.minimum(((2 * a - 1) * two**2 + 6 * one) / (4 * v**2), 3 * one / (2 * v))

    def noise_of(self, least: int) -> Noise:
        """Return what each client adds where at least so many are in a sum."""
        return Noise(self.clip, self.variance / least)

    def coding(self) -> Coding:
        return Coding(self.bits, self.clip, clients=self.clients, step=self.step)


@dataclass(frozen=True)
class Distributed:
    """The noise of the clients of one answer.

    Arguments:
        make: returns the mechanism for so many sums, weighed by clients or not.
        least: how many clients are in a sum at least.
        members: how many clients a mean is over.
        release: called for each release.
    """

    make: Callable[[int, bool], Mechanism]
    least: int
    members: int
    release: Callable[[], object]

    least_weight = 0.5  # of a client: with less than that a center stays where it was

    def weighing(
        self, weights: Tensor, around: Tensor, keys: Tensor | None, seed: int, own: Tensor | bool = False
    ) -> Weighing:
        """Return what clients do, for `weights[S, m]` of 0 and 1; `own`: weights of their own, or whether there are."""
        found = self.make(len(weights), own is not False)
        coding = replace(found.coding(), seed=seed)
        known = own if isinstance(own, Tensor) else None
        return Weighing(coding, weights, known, around.flatten(1), found.noise_of(self.least), keys)
