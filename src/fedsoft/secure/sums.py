"""An answer of which only sums over clients can be seen, as they come out of the masks: coded, added up, decoded.

Engines in one's own hands simulate the protocol with it: masks cancel out to the last bit, so they are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedsoft.core.replies import Answer, Kind, Rows, weights_of
from fedsoft.errors import InputError
from fedsoft.secure.coding import Coded, Coding, weights_coding
from fedsoft.secure.distributed import Distributed
from fedsoft.secure.leverage import shares_of, whole_weights
from fedsoft.secure.protection import Secure
from fedsoft.secure.weighing import Reaches, Weighing

TINY = torch.finfo(torch.float64).tiny


class Weighed(NamedTuple):
    """The sum of coded rows `[S, n]`, and that of their weights `[S, 1]`, which is None where rows have it."""

    rows: Coded
    weights: Coded | None


@runtime_checkable
class Codes(Rows, Protocol):
    """Rows that clients can code for themselves."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one row."""
        ...

    def coded(self, what: Weighing) -> Coded:
        """Return the sum of coded rows, `[S, n]`."""
        ...


@runtime_checkable
class Weighs(Codes, Protocol):
    """Rows of clients elsewhere, who weigh them by replies of their own."""

    def weighed(self, by: str, what: Weighing) -> Weighed:
        """Return what the protocol opens of sums for which clients know `own` by their reply `by`."""
        ...

    def knows(self, around: Tensor) -> bool:
        """Return whether clients have what rows are to be seen from."""
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
        job: what clients did.
        reaches: how large values were before.
        seed: of random rounding, for this answer.
        noise: that clients add to their models.
        keys: return the keys of the noise of those that answered, for the next sum.
        points: of each client that answered; default: weights may be any.
    """

    secure: Secure
    spent: Callable[[int, int], object]
    job: str = ""
    reaches: Reaches = field(default_factory=Reaches)
    seed: int = 0
    noise: Distributed | None = None
    keys: Callable[[int], Tensor] | None = None
    points: Tensor | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)  # all that were used for an entry, [R, m]
    own: dict[str, Tensor] = field(default_factory=dict)  # beside weights of the clients' own, by their entry
    codings: dict[tuple[str, int], Coding] = field(default_factory=dict)
    sums: int = 0

    def whole(self, weights: Tensor) -> Tensor:
        """Return weights as whole numbers; refuse others."""
        return weights.double() if self.points is None else whole_weights(weights, self.points).to(weights.device)

    def use(self, name: str, weights: Tensor) -> None:
        """Count weights; raise where they would show too much, together with those before."""
        if name in self.own:
            raise InputError(f"secure = true: '{name}', by which clients weigh, is not summed by itself")
        before = self.weights.get(name)
        together = weights if before is None else torch.cat([before, weights])
        self.secure.check_weights(together)
        self.weights[name] = together

    def weigh(self, name: str, by: str, factor: Tensor) -> None:
        """Raise where clients that weigh rows themselves count too differently by what the server knows of them.

        Nor may two sums of the same weights of their own differ in that.
        """
        self.secure.check_weights(factor[None])
        if by in self.weights or not torch.equal(self.own.setdefault(by, factor), factor):
            raise InputError(f"secure = true: '{by}', by which clients weigh, is summed in one way only")

    def coding(self, name: str, kind: Kind, size: int, weights: Tensor, count: int) -> Coding:
        """Return how an entry is coded in `count` sums over as many clients as there are `weights`."""
        self.sums += 1
        if (name, count) not in self.codings:  # one for all sums of a reply: two would tell more than one
            seed = (self.seed + self.sums * 2**20) % 2**63
            found = self.reaches.coding(f"{self.job}.{name}", kind, size, count, weights.shape[-1], seed)
            self.codings[name, count] = found
        return self.codings[name, count]

    def count(self, name: str, coding: Coding, found: Coded) -> None:
        self.spent(coding.size(found.total.numel()), int(found.counts[0]))
        self.reaches.learn(f"{self.job}.{name}", coding, found.counts)


@dataclass(frozen=True)
class SummedRows:
    """Replies under one name of which only sums are seen."""

    name: str
    kind: Kind
    rows: Codes
    clients: int  # that answered
    ledger: Ledger
    single: Single = refuse

    def gather(self) -> Tensor:
        return self.single(self.name, self.rows)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return `weights[S, m] @ rows`: each client applies its own, as shares of their sum."""
        return self._weighted(weights.double(), None)

    def average(self, weights: Tensor, old: Tensor) -> Tensor:
        """Return means `[S, P]` of rows, coded as seen from the `old` ones, which clients have."""
        if self.ledger.noise is not None:
            return self._hidden_mean(weights, old, self.ledger.noise)
        total = weights.double().sum(1, keepdim=True)
        mean = self._weighted(weights.double() / total.clamp(min=TINY), old)
        return torch.where(total > 0, mean.to(old.dtype), old)

    def _weighted(self, weights: Tensor, around: Tensor | None) -> Tensor:
        if self.ledger.noise is not None:
            raise InputError(
                f"privacy.clip is not allowed here: this algorithm takes sums of '{self.name}' that have no noise"
            )
        if self.kind is Kind.CHOICE:
            raise InputError(f"secure = true: '{self.name}', by which clients weigh, is not summed by itself")
        whole, size = self.ledger.whole(weights), weights.abs().sum(1)
        self.ledger.use(self.name, whole)
        shares = weights / size.clamp(min=TINY)[:, None] if self.ledger.points is None else shares_of(whole)
        coding = self.ledger.coding(self.name, self.kind, _size(self.rows.shape), weights, len(weights))
        around = self._seen_from(around, coding)
        found = self.rows.coded(Weighing(coding, shares, around=around))
        return self.decoded(coding, found, size, around)

    def _seen_from(self, around: Tensor | None, coding: Coding) -> Tensor | None:
        """Return what rows are seen from, `[S, n]`: where that makes numbers smaller, and clients have it."""
        if around is None or coding.levels == 1 or (isinstance(self.rows, Weighs) and not self.rows.knows(around)):
            return None
        return around.double().flatten(1)

    def decoded(self, coding: Coding, found: Coded, size: Tensor, around: Tensor | None) -> Tensor:
        """Return sums of rows, for weights of this `size[S]`."""
        self.ledger.count(self.name, coding, found)
        # As if who went missing on the way had answered as the others did.
        total = coding.decoded(found.total) * (size / found.share)[:, None]
        if around is not None:
            total = total + around * size[:, None]
        return total.view(len(size), *self.rows.shape)

    def _hidden_mean(self, weights: Tensor, old: Tensor, noise: Distributed) -> Tensor:
        """Return centers moved by clipped updates, which clients have hidden; see `Distributed`."""
        drawn = (weights > 0).double()
        if not bool(drawn.all()):
            raise InputError("privacy.clip is not allowed here: this algorithm leaves clients out of a sum")
        self.ledger.use(self.name, drawn)
        what = noise.weighing(drawn, old.double(), self._keys(), self.ledger.seed + self.ledger.sums)
        found = self.rows.coded(what)
        self.ledger.count(self.name, what.coding, found)
        noise.release()
        return (old.double() + what.coding.decoded(found.total) / noise.members).to(old.dtype)

    def _keys(self) -> Tensor | None:
        self.ledger.sums += 1
        return None if self.ledger.keys is None else self.ledger.keys(self.ledger.sums)

    def hidden_sums(self, own: Tensor | None, by: str, around: Tensor, noise: Distributed) -> tuple[Tensor, Tensor]:
        """Return sums of rows and of the clients' own weights, all of them hidden by the clients."""
        ones = torch.ones(len(around), self.clients, dtype=torch.float64)
        self.ledger.use(self.name, ones[:1])
        what = noise.weighing(
            ones, around.double(), self._keys(), self.ledger.seed + self.ledger.sums, True if own is None else own
        )
        found = self.rows.weighed(by, what).rows if isinstance(self.rows, Weighs) else self.rows.coded(what)
        self.ledger.count(self.name, what.coding, found)
        noise.release()
        total = what.coding.decoded(found.total)
        weights = total[:, -1] / what.coding.reach
        weights = torch.where(weights < noise.least_weight, 0.0, weights)  # too little to divide noise by
        return (total[:, :-1] + around.double() * weights[:, None]) * (weights > 0)[:, None], weights

    def sums(self, by: str, own: Tensor | None, count: int, known: Tensor, around: Tensor | None) -> tuple[Tensor, ...]:
        """Return sums that clients weigh themselves, and the sums of their weights."""
        if self.ledger.noise is not None:
            if around is None:
                raise InputError(f"privacy.clip is not allowed here: nothing is known of where '{self.name}' begin")
            return self.hidden_sums(own, by, around, self.ledger.noise)
        whole = self.ledger.whole(known[None])
        self.ledger.weigh(self.name, by, whole[0])
        size, shares = known.sum().expand(count), shares_of(whole).expand(count, -1)
        coding = self.ledger.coding(self.name, self.kind, _size(self.rows.shape), known, count)
        around = self._seen_from(around, coding)
        what, fine = Weighing(coding, shares, own, around), weights_coding(self.clients, self.ledger.seed)
        if isinstance(self.rows, Weighs):
            rows, told = self.rows.weighed(by, what)
        else:
            assert own is not None
            rows, told = self.rows.coded(what), fine.coded_sum(torch.ones(self.clients, 1), own * shares)
        assert told is not None
        self.ledger.spent(fine.size(count), 0)
        weights = fine.decoded(told.total)[:, 0] * size / told.share
        total = self.decoded(coding, rows, size, None)
        if around is not None:
            total = total + (around * weights[:, None]).view_as(total)
        return total, weights


@dataclass(frozen=True)
class SummedAnswer(Answer):
    """An answer of which only sums are seen; see `Answer` for who answered."""

    ledger: Ledger
    single: Single = refuse

    def note(self, name: str, old: Tensor | None) -> Tensor | None:
        """Return what is known already: nothing is noted of single clients."""
        return old

    def sums(
        self, name: str, by: str, count: int, factor: Tensor | None = None, around: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return sums for which clients weigh their own rows; their weights are summed in the same way."""
        if not len(self.ids):
            return super().sums(name, by, count, factor)
        rows, told = self.values[name], self.values[by]
        assert isinstance(rows, SummedRows)
        assert isinstance(told, SummedRows)
        known = torch.ones(len(self.ids), dtype=torch.float64) if factor is None else factor.double().cpu()
        own = None
        if not isinstance(rows.rows, Weighs):  # by each client, of its own
            own = weights_of(told.rows.gather(), count, None).clamp(0, 1)
        total, weights = rows.sums(by, own, count, known, around)
        return total, weights


def summed(answer: Answer, kinds: Mapping[str, Kind], ledger: Ledger, single: Single = refuse) -> SummedAnswer:
    """Return an answer of which only sums are seen."""
    seen = {name: SummedRows(name, kinds[name], codes(rows), len(answer.ids), ledger, single)
            for name, rows in answer.values.items()}  # fmt: skip
    return SummedAnswer(answer.ids, seen, ledger, single)


def codes(rows: Rows) -> Codes:
    """Return rows that can be coded; raise for those of an engine that cannot do it."""
    if not isinstance(rows, Codes):
        raise InputError("secure = true is not allowed with this engine: should be 'local' or 'ray'")
    return rows


def _size(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
