"""An answer of which only sums over clients can be seen, as they come out of the masks: coded, added up, decoded.

Engines in one's own hands simulate the protocol with it: masks cancel out to the last bit, so they are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedsoft.core.replies import Answer, Kind, Rows, weights_of
from fedsoft.errors import InputError
from fedsoft.secure.coding import SHARES, Coded, Coding, coding_of
from fedsoft.secure.protection import Secure


class Weighed(NamedTuple):
    """The sum of coded rows `[S, n]`, that of their weights `[S, 1]`, and the shape of one row."""

    rows: Coded
    weights: Coded
    shape: tuple[int, ...]


@runtime_checkable
class Codes(Rows, Protocol):
    """Rows that clients can code for themselves."""

    def coded(self, weights: Tensor, coding: Coding) -> tuple[Coded, tuple[int, ...]]:
        """Return the sum of coded rows with `weights[S, m]`, `[S, n]`, and the shape of one row."""
        ...


@runtime_checkable
class Weighs(Codes, Protocol):
    """Rows of clients elsewhere, who weigh them by replies of their own."""

    def weighed(self, by: str, count: int, shares: Tensor, coding: Coding) -> Weighed:
        """Return what the protocol opens of `count` sums, with `shares[m]` that the server knows of each client."""
        ...


Single = Callable[[str, Rows], Tensor]
"""What happens when an algorithm asks for single rows: it gets the name of the entry and the rows."""


def refuse(name: str, rows: Rows) -> Tensor:
    """Raise: single rows are never seen."""
    raise InputError(f"secure = true is not allowed here: this algorithm looks at '{name}' of single clients")


@dataclass
class Ledger:
    """What the sums over one answer have cost and shown.

    Arguments:
        secure: what is asked of them.
        spent: called for each sum with the bytes that one client sends, and how many values of all were clipped.
    """

    secure: Secure
    spent: Callable[[int, int], object]
    weights: dict[str, Tensor] = field(default_factory=dict)  # all that were used for an entry, [R, m]

    def use(self, name: str, weights: Tensor) -> None:
        """Count weights; raise where they would show too much, together with those before."""
        before = self.weights.get(name)
        together = weights if before is None else torch.cat([before, weights])
        self.secure.check_weights(together)
        self.weights[name] = together

    def weigh(self, name: str, by: str, factor: Tensor) -> None:
        """Raise where clients that weigh rows themselves count too differently by what the server knows of them."""
        self.secure.check_weights(factor[None])

    def count(self, coding: Coding, found: Coded) -> None:
        self.spent(found.total.numel() * coding.bytes, found.clipped)


@dataclass(frozen=True)
class SummedRows:
    """Replies under one name of which only sums are seen."""

    name: str
    rows: Codes
    coding: Coding
    ledger: Ledger
    single: Single = refuse

    def gather(self) -> Tensor:
        return self.single(self.name, self.rows)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return `weights[S, m] @ rows`: each client applies its own, as shares of their sum."""
        weights = weights.double()
        self.ledger.use(self.name, weights)
        size = weights.abs().sum(1)
        return self.total(weights / size.clamp(min=torch.finfo(torch.float64).tiny)[:, None], size)

    def total(self, shares: Tensor, size: Tensor) -> Tensor:
        """Return the decoded sums with `shares[S, m]`, each times its `size[S]`."""
        return self.decoded(*self.rows.coded(shares, self.coding), size)

    def decoded(self, found: Coded, shape: tuple[int, ...], size: Tensor) -> Tensor:
        self.ledger.count(self.coding, found)
        whole = size / found.share  # as if who went missing on the way had answered as the others did
        return self.coding.decoded(found.total).view(len(size), *shape) * whole.view(-1, *[1] * len(shape))


@dataclass(frozen=True)
class SummedAnswer(Answer):
    """An answer of which only sums are seen; see `Answer` for who answered."""

    ledger: Ledger
    single: Single = refuse

    def note(self, name: str, old: Tensor | None) -> Tensor | None:
        """Return what is known already: nothing is noted of single clients."""
        return old

    def sums(self, name: str, by: str, count: int, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return sums for which clients weigh their own rows; their weights are summed in the same way."""
        if not len(self.ids):
            return super().sums(name, by, count, factor)
        rows, told = self.values[name], self.values[by]
        assert isinstance(rows, SummedRows)
        assert isinstance(told, SummedRows)
        known = torch.ones(len(self.ids), dtype=torch.float64) if factor is None else factor.double().cpu()
        self.ledger.weigh(name, by, known)
        size, shares = known.sum().expand(count), known / known.sum()
        found = rows.rows.weighed(by, count, shares, rows.coding) if isinstance(rows.rows, Weighs) else None
        if found is None:
            own = weights_of(told.rows.gather(), count, shares).clamp(0, 1)  # by each client, of its own
            total, shape = rows.rows.coded(own, rows.coding)
            found = Weighed(total, SHARES.coded_sum(torch.ones(len(self.ids), 1), own), shape)
        self.ledger.count(SHARES, found.weights)
        weights = SHARES.decoded(found.weights.total)[:, 0] * size / found.weights.share
        return rows.decoded(found.rows, found.shape, size), weights


def summed(answer: Answer, kinds: Mapping[str, Kind], ledger: Ledger, single: Single = refuse) -> SummedAnswer:
    """Return an answer of which only sums are seen."""
    seen = {name: SummedRows(name, codes(rows), coding_of(kinds[name]), ledger, single)
            for name, rows in answer.values.items()}  # fmt: skip
    return SummedAnswer(answer.ids, seen, ledger, single)


def codes(rows: Rows) -> Codes:
    """Return rows that can be coded; raise for those of an engine that cannot do it."""
    if not isinstance(rows, Codes):
        raise InputError("secure = true is not allowed with this engine: should be 'local' or 'ray'")
    return rows
