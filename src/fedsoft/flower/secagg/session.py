"""What all parties of a sum must agree on. It is part of every key: who was told something else only adds noise."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from fedsoft.errors import FedsoftError, InputError
from fedsoft.flower.secagg.primitives import digest, stream
from fedsoft.secure.coding import Coding
from fedsoft.secure.protection import LEAST, part_of

COMPLETE = 64  # parties up to which everybody has a mask with everybody
DISCLOSED, FAILED = 2.0**-40, 2.0**-20  # largest probabilities that a graph may have
CORRUPT, LOST = 0.2, 0.1  # largest shares of parties, for which these hold


class ProtocolError(FedsoftError):
    """A sum that is not made, or a message that is not answered; says why, and who is at fault where that is known."""

    def __init__(self, text: str, parties: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.parties = tuple(parties)


@dataclass(frozen=True)
class Agreement:
    """Keys that some parties agree on, for one sum.

    For one alone: where a party goes missing its key is told, with which masks of every other sum under it would be
    known.

    Arguments:
        run, number: identify it.
        parties: the names of all that are asked, in any order.
        threshold: the share of them that must answer.
    """

    run: str
    number: str
    parties: tuple[str, ...]
    threshold: float

    def __post_init__(self) -> None:
        if len(set(self.parties)) != len(self.parties) or len(self.parties) < LEAST:
            raise InputError(f"a sum of {len(self.parties)} parties is not allowed: should be {LEAST} different ones")

    @cached_property
    def context(self) -> bytes:
        """A hash of all that is said here."""
        about = [self.run, self.number, sorted(self.parties), self.threshold]
        return digest(b"fedsoft secure aggregation 2", json.dumps(about).encode())

    @property
    def least(self) -> int:
        """How many parties a sum must have."""
        return part_of(self.threshold, len(self.parties))

    @cached_property
    def _ring(self) -> list[str]:
        """The parties in an order that nobody chooses."""
        return sorted(self.parties, key=lambda name: digest(b"ring", self.context, name.encode()))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self._ring)}

    @property
    def complete(self) -> bool:
        """Whether everybody has a mask with everybody."""
        return graph(len(self.parties), self.threshold)[0] >= len(self.parties) - 1

    def neighbours(self, name: str) -> list[str]:
        """Return those with whom a party has masks: the nearest on the ring, in either direction."""
        ring, count, at = self._ring, graph(len(self.parties), self.threshold)[0], self._places[name]
        steps = [step for j in range(1, count // 2 + 1) for step in (j, -j)]
        steps = range(1, len(ring)) if self.complete else steps
        return sorted(ring[(at + step) % len(ring)] for step in steps)

    def holders(self, name: str) -> list[str]:
        """Return those who have shares of what a party keeps secret: its neighbours, and itself."""
        return sorted([*self.neighbours(name), name])

    def enough(self, name: str) -> int:
        """Return how many shares of a party's secrets open them."""
        return graph(len(self.parties), self.threshold)[1]


@dataclass(frozen=True)
class Session:
    """One sum, under keys that were agreed on.

    Arguments:
        agreement: the keys.
        round, ask: identify what is summed, within the run; no party helps to open it twice.
        what: a hash of everything else that the parties must agree on, such as the weights of the sum.
        sections: how numbers are coded, and how many there are, one section after the other.
        attempt: counts the tries of the same sum.
    """

    agreement: Agreement
    round: int
    ask: int
    what: str
    sections: tuple[tuple[Coding, int], ...]
    attempt: int = 0

    @cached_property
    def context(self) -> bytes:
        """A hash of all that is said here."""
        coded = [[coding.bits, coding.reach, count] for coding, count in self.sections]
        about = [self.round, self.ask, self.what, coded, self.attempt]
        return digest(b"sum", self.agreement.context, json.dumps(about).encode())

    @property
    def sum(self) -> str:
        """What is summed, whoever takes part and however often it is tried."""
        return f"{self.agreement.run} {self.round} {self.ask}"

    @property
    def bytes(self) -> int:
        """Of what a party sends masked."""
        return sum(coding.size(count) for coding, count in self.sections)

    def mask(self, key: bytes) -> list[Tensor]:
        """Return the mask of a key, one vector for each section."""
        return self.unpacked(stream(key, self.bytes))

    def packed(self, values: Sequence[Tensor]) -> bytes:
        return b"".join(coding.packed(value) for (coding, _), value in zip(self.sections, values, strict=True))

    def unpacked(self, data: bytes) -> list[Tensor]:
        found, begin = [], 0
        for coding, count in self.sections:
            found.append(coding.unpacked(data[begin : begin + coding.size(count)], count))
            begin += coding.size(count)
        return found

    def zeros(self) -> list[Tensor]:
        return [torch.zeros(count, dtype=torch.int64) for _, count in self.sections]


@cache
def graph(parties: int, threshold: float) -> tuple[int, int]:
    """Return how many neighbours a party has, and how many shares open a secret: everybody, or a sparse graph.

    That is one after Bell et al. (2020), for a server that lies. With a share CORRUPT of all parties on its side and a
    share LOST missing, both without regard to the order on the ring, it has a probability below DISCLOSED that it could

    - get the signatures of two lists from the holders of some party: c of its own sign both, the others one of them, so
      with t shares that open a secret it takes c >= 2 t - holders. Then it would have both masks of that party;
    - open the sum of an arc: between two arcs lie as many parties as masks reach to one side. To say that these are
      missing it needs t shares of the key of each, of which there are but one half and those of its own in between.

    A secret has too few shares left with a probability below FAILED.
    """
    if parties <= COMPLETE:
        return parties - 1, part_of(threshold, parties)
    from scipy.stats import hypergeom

    corrupt, lost = math.ceil(CORRUPT * parties), math.ceil(LOST * parties)
    for count in range(16, parties - 1, 2):
        # As many shares as are there: of the neighbours, since a party that is missing tells none.
        t = int(hypergeom.ppf(FAILED / parties, parties - 1, parties - 1 - lost, count))
        holders, half = count + 1, count // 2
        if t < part_of(threshold, holders):
            continue
        twice = parties * hypergeom.sf(2 * t - holders - 1, parties - 1, corrupt, count)
        apart = parties * hypergeom.sf(t - half - 2, parties, corrupt, half)
        if twice + apart <= DISCLOSED:
            return count, t
    return parties - 1, part_of(threshold, parties)
