"""What every client does with its row before it is added up: subtract, clip, weigh, round, and add its share of noise.

So many bits as `Reaches` chooses: from how large the values of the sum before were, from the number of clients and of
sums. All of that is known to the server from sums; a client reveals nothing by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.replies import Kind
from fedsoft.secure.coding import LEVELS, Coded, Coding, coding_of, weights_coding

PLAIN = 32  # bits of a plain number
BUDGET = int(1.3 * PLAIN)  # bits of all sums together of one number
FEWEST = 3  # bits beyond the logarithm of the number of clients
SHORT = 64  # numbers of one client up to which they are coded in full, if they are no model
HEADROOM = 1.5  # times the largest value before, which is known up to a factor of 2


@dataclass(frozen=True)
class Noise:
    """The noise that each client adds to its row in whole units, so that those of a sum hide any one of them.

    Arguments:
        clip: C, the largest norm of a row seen from where it is `around`.
        variance: of a client's noise on every number, in units squared.
    """

    clip: float
    variance: float

    def clipped(self, rows: Tensor) -> Tensor:
        """Return rows `[m, n]` of norm C at most."""
        known = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, 0.0)
        length = torch.linalg.vector_norm(known, dim=1, keepdim=True)
        return known * (self.clip / length.clamp(min=self.clip))

    def drawn(self, keys: Tensor, shape: tuple[int, int]) -> Tensor:
        """Return the sum of the noise of clients with these keys: Skellam, so that sums of it are Skellam again."""
        total = np.zeros(shape, dtype=np.int64)
        for key in keys.tolist():
            draw = np.random.Generator(np.random.Philox(key=[one % 2**64 for one in key]))
            total += draw.poisson(self.variance / 2, shape) - draw.poisson(self.variance / 2, shape)
        return torch.from_numpy(total)


@dataclass(frozen=True)
class Weighing:
    """How rows of m clients become S coded sums.

    Arguments:
        coding: of what is sent.
        weights: known to the server, `[S, m]`.
        own: known to each client alone, `[S, m]`, from 0 to 1; what it multiplies is clipped afterwards.
        around: what is subtracted from every row before, `[S, n]`.
        noise: that clients add; keys: of the clients' draws, `[m, 2]`. With `own` rows then have one more number, C,
            whose sums are those of the weights, and nothing is counted.
        places: of the clients in the sum, `[m]`; default: 0 to m - 1.
    """

    coding: Coding
    weights: Tensor
    own: Tensor | None = None
    around: Tensor | None = None
    noise: Noise | None = None
    keys: Tensor | None = None
    places: Tensor | None = None

    def of(self, clients: slice | Tensor) -> Weighing:
        """Return the same for some of the clients."""
        own = None if self.own is None else self.own[:, clients]
        keys = None if self.keys is None else self.keys[clients]
        places = torch.arange(self.weights.shape[1]) if self.places is None else self.places
        return replace(self, weights=self.weights[:, clients], own=own, keys=keys, places=places[clients])

    def to(self, device: str | torch.device) -> Weighing:
        moved = {name: None if (one := getattr(self, name)) is None else one.to(device)
                 for name in ("weights", "own", "around")}  # fmt: skip
        return replace(self, **moved)

    def sum(self, rows: Tensor) -> Coded:
        """Return what the clients send, added up: each sees its own row of `rows[m, n]` only."""
        if self.own is None and self.around is None and self.noise is None:
            return self.coding.coded_sum(rows, self.weights, self.places)
        found: list[Coded] = []
        own = None if self.own is None else self.own.double().nan_to_num().clamp(0, 1)
        if own is not None and self.noise is not None:
            own = own / own.sum(0).clamp(min=1)  # what is hidden is shares, which sum to 1
        for s, weights in enumerate(self.weights.double()):
            value = rows.double()
            if self.around is not None:
                value = value - self.around[s].double()
            if self.noise is not None:
                value = self.noise.clipped(value)
            if own is not None:
                if self.noise is not None:
                    value = torch.cat([value, value.new_full((len(value), 1), self.noise.clip)], 1)
                value = value * own[s][:, None]
            coding = replace(self.coding, seed=(self.coding.seed + s) % 2**63)
            found.append(coding.coded_sum(value, weights[None], self.places))
        total = torch.cat([one.total for one in found])
        if self.noise is not None:
            assert self.keys is not None
            there = (self.weights != 0).any(0)
            total = total + self.noise.drawn(self.keys[there], (total.shape[0], total.shape[1])).to(total.device)
        counts = torch.stack([one.counts for one in found]).sum(0) * (self.noise is None)
        return Coded(total, counts)


@dataclass
class Reaches:
    """How large the values of each entry are, as far as sums have told, and how they are coded for it.

    Arguments:
        known: the largest value that the next sum of an entry should have room for.
    """

    known: dict[str, float] = field(default_factory=dict)

    def coding(self, entry: str, kind: Kind, size: int, sums: int, clients: int, seed: int) -> Coding:
        """Return how rows of an entry are coded.

        Arguments:
            size: of a row; sums: S, of every row; clients: m; seed: for rounding.
        """
        if kind is Kind.MIXTURE:
            return weights_coding(clients, seed)
        wide = coding_of(kind)
        if wide.bits * sums <= BUDGET if kind.has_parameters else size <= SHORT:
            return wide
        if entry not in self.known:
            return replace(wide, levels=LEVELS)
        bits = max(BUDGET // sums, math.ceil(math.log2(clients + 1)) + FEWEST)
        return Coding(min(bits, 40), self.known[entry], LEVELS, clients, seed)

    def learn(self, entry: str, coding: Coding, counts: Tensor) -> None:
        """Note what the counts of a sum tell of the size of its values."""
        if coding.levels == 1:
            return
        if counts[0] > 0:
            self.known[entry] = 16 * coding.reach
        elif len(found := counts.nonzero()):
            self.known[entry] = HEADROOM * coding.reach * 2.0 ** (1 - int(found[0]))
        else:
            self.known[entry] = coding.reach
