"""What clients send back from a job, and what an algorithm does with it: sums over clients, or rows of single ones."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

ClientState = dict[str, Tensor]
"""What clients keep between rounds, one row each. Leaves them only in a reply."""

Reply = dict[str, Tensor]
"""What clients send back from a job, one row each."""

Ids = np.ndarray
"""Row numbers of clients, ascending."""


class Kind(enum.Enum):
    """What an entry of a reply is, for guards, noise and attacks."""

    MODEL = "models, gradients of them, or sums of either: parameters along the last axis"
    MIXTURE = "shares of the centers, one row for each client"
    CHOICE = "the number of a center"
    COUNTS = "numbers of points for each center"
    NUMBER = "anything else"
    STEP = "how far models are from a center, weighted: parameters along the last axis"

    @property
    def has_parameters(self) -> bool:
        """Whether a row is as long as models are, once or several times."""
        return self in (Kind.MODEL, Kind.STEP)


MODEL, MIXTURE, CHOICE, COUNTS, NUMBER, STEP = Kind


class Rows(Protocol):
    """One row for each client that answered, kept where it is (in memory, on disk or elsewhere) until asked for."""

    def gather(self) -> Tensor:
        """Return all rows, `[m, ...]`."""
        ...

    def weighted(self, weights: Tensor) -> Tensor:
        """Return `weights[S, m] @ rows` in float64, `[S, ...]`, without gathering all rows in one place."""
        ...


@runtime_checkable
class Averages(Rows, Protocol):
    """Rows that compute means in their own way."""

    def average(self, weights: Tensor, old: Tensor) -> Tensor:
        """Return centers `[S, P]` in place of the `old` ones, see `averaging.average`."""
        ...


class _Nobody:
    """No rows, in a shape that fits any other."""

    def gather(self) -> Tensor:
        return torch.empty(0)

    def weighted(self, weights: Tensor) -> Tensor:
        return weights.new_zeros((len(weights), 1), dtype=torch.float64)


@dataclass(frozen=True)
class Answer:
    """The replies of the clients that answered, one row for each of `ids`; no entries when nobody did."""

    ids: Ids
    values: Mapping[str, Rows]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Rows:
        return self.values[name] if len(self.ids) else _Nobody()

    def rows(self, name: str, like: Tensor) -> Tensor:
        """Return all replies under `name`; when nobody answered, an empty tensor shaped like `like`."""
        return self[name].gather() if len(self.ids) else like[:0]

    def update(self, name: str, old: Tensor) -> Tensor:
        """Return a copy of `old[N, ...]` with the rows of the clients that answered replaced."""
        return old.index_copy(0, torch.as_tensor(self.ids, device=old.device), self.rows(name, like=old))

    def note(self, name: str, old: Tensor | None) -> Tensor | None:
        """Return mixtures `old[N, S]` with those under `name` in place, for the record alone.

        No result may depend on it: None stays None, where replies are seen as sums only.
        """
        if old is None or not len(self.ids):
            return old
        shares = shares_of(self[name].gather(), old.shape[1]).to(old.dtype)
        return old.index_copy(0, torch.as_tensor(self.ids, device=old.device), shares)

    def sums(
        self, name: str, by: str, count: int, factor: Tensor | None = None, around: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return `sum_k f_k b_ks row_k`, `[count, ...]`, and `sum_k f_k b_ks`, `[count]`, both in float64.

        Every client weighs its own row by its own reply b under `by`: shares `[count]`, or the number of a center. So
        where replies are seen as sums only, neither rows nor weights of a client are seen.

        Arguments:
            name: of the rows.
            by: of the weights.
            count: of sums.
            factor: f_k of those that answered, `[m]`, known to the server; default: 1.
            around: where the rows are expected, `[count, ...]`, known to clients: differences take fewer bits to send.
        """
        if not len(self.ids):
            none = torch.zeros(count, dtype=torch.float64)
            return self[name].weighted(none[:, None][:, :0]), none
        weights = weights_of(self[by].gather(), count, factor)
        return self[name].weighted(weights), weights.sum(1)


def shares_of(rows: Tensor, count: int) -> Tensor:
    """Return replies as shares `[m, count]`: mixtures as they are, the number of a center as a single 1."""
    return torch.nn.functional.one_hot(rows.long(), count) if rows.ndim == 1 else rows


def weights_of(rows: Tensor, count: int, factor: Tensor | None) -> Tensor:
    """Return the weights `[count, m]` that clients give their own rows by their replies, times `factor[m]`."""
    shares = shares_of(rows, count).double()
    return shares.T if factor is None else shares.T * factor.to(shares)


def prefixed(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return entries under a common prefix, to keep an optimizer's state beside other things."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def under(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries under a prefix, see `prefixed`."""
    return {name.removeprefix(f"{prefix}."): v for name, v in values.items() if name.startswith(f"{prefix}.")}
