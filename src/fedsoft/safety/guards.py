"""Every reply is looked at before it is used, wherever the clients are: finite, in range, and of a likely size.

What one reply tells about itself is found where it is (`Guards.look`), what only a comparison tells by the server
(`Guards.judge`): for that no more than a norm for each client and model has to be sent. Those who are not accepted are
missing from the answer, as if they had not answered; no algorithm needs to know of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.contract import Algorithm
from fedsoft.core.replies import Answer, Ids, Kind, Rows
from fedsoft.safety.exclusions import Reason, Refusal
from fedsoft.secure.coding import Coded
from fedsoft.secure.sums import codes
from fedsoft.secure.weighing import Weighing

SLACK = 1e-3  # of a share or a count, for rounding
FEW = 3  # clients of a cluster that have a median of their own
POINTS = 2**40  # more than anybody has


@dataclass(frozen=True)
class Facts:
    """What the guards know of m replies.

    Arguments:
        refused: rows that are not accepted, and why.
        norms: of every model, and of how far models are from a center, `[m]` each.
        steps: names of the latter.
        clusters: the cluster that each client says it is of, `[m]`, where it says so.
    """

    refused: Mapping[int, Refusal] = field(default_factory=dict)
    norms: Mapping[str, np.ndarray] = field(default_factory=dict)
    clusters: np.ndarray | None = None
    steps: frozenset[str] = frozenset()

    @staticmethod
    def join(parts: Sequence[tuple[int, Facts]]) -> Facts:
        """Of replies that follow each other, this many in each part."""
        refused, begin = {}, 0
        for count, facts in parts:
            refused |= {begin + row: why for row, why in facts.refused.items()}
            begin += count
        found = [facts for count, facts in parts if count]
        if not found:
            return Facts(refused)
        norms = {name: np.concatenate([facts.norms[name] for facts in found]) for name in found[0].norms}
        known = [facts.clusters for facts in found if facts.clusters is not None]
        clusters = np.concatenate(known) if len(known) == len(found) else None
        return Facts(refused, norms, clusters, found[0].steps)

    @property
    def bytes(self) -> int:
        """How much has to be sent of it."""
        arrays = [*self.norms.values(), *([] if self.clusters is None else [self.clusters])]
        return sum(array.nbytes for array in arrays) + sum(len(why.text) + 8 for why in self.refused.values())


@dataclass(frozen=True)
class Guards:
    """What is accepted of the replies of clients.

    Arguments:
        size: parameters of the model.
        norm: how many times the median norm it may have, among clients of the same cluster where that is known; 0 for
            any. Sums over points grow with their number: the norm for each point must be too large as well. Distances
            of models from a center differ more than models do: they may have the square of it times the median.
        smallest_share: of a mixture, by which its sum may be above 1.
    """

    size: int
    norm: float = 0.0
    smallest_share: float = 0.0

    @staticmethod
    def of(norm: float, algorithm: Algorithm, size: int) -> Guards:
        """Return those for an algorithm and models of that many parameters."""
        return Guards(size, norm, algorithm.smallest_share)

    def look(
        self, reply: Mapping[str, Tensor], kinds: Mapping[str, Kind], n: Tensor | None = None,
        centers: int | None = None,
    ) -> Facts:  # fmt: skip
        """Return what m replies say of themselves, from `n[m]` points each and the number of centers, where known."""
        refused: dict[int, Refusal] = {}

        def refuse(bad: Tensor, text: str, reason: Reason = Reason.OUT_OF_RANGE) -> None:
            for row in torch.nonzero(bad).flatten().tolist():
                refused.setdefault(row, Refusal(reason, text))

        for name, value in reply.items():
            flat, kind = value.reshape(len(value), -1), kinds[name]
            refuse(~torch.isfinite(flat).all(1), f"'{name}' holds values that are not finite", Reason.NOT_FINITE)
            if kind is Kind.MIXTURE:
                total, most = flat.double().sum(1), 1 + (flat.shape[1] - 1) * self.smallest_share + SLACK
                refuse((flat < -SLACK).any(1) | (flat > 1 + SLACK).any(1), f"'{name}' holds shares outside of 0 to 1")
                refuse((total < 1 - SLACK) | (total > most), f"the shares of '{name}' do not sum to 1")
            elif kind is Kind.COUNTS and n is not None:
                total, most = flat.double().sum(1), n.to(flat.device).double()
                # They may be fewer: sums over few points are not sent (`ClientHost.least_points`).
                off = (flat < -SLACK).any(1) | (total > (1 + SLACK) * most)
                refuse(off, f"the counts '{name}' are negative, or sum to more than the number of its points")
            elif kind is Kind.CHOICE and centers is not None:
                refuse(((flat < 0) | (flat >= centers)).any(1), f"'{name}' names a center that does not exist")
        steps = frozenset(name for name in reply if kinds[name] is Kind.STEP)
        return Facts(refused, self._norms(reply, kinds), _clusters(reply, kinds) if self.norm else None, steps)

    def _norms(self, reply: Mapping[str, Tensor], kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
        if not self.norm:
            return {}
        models = {name: value for name, value in reply.items() if kinds[name].has_parameters}
        norms = {name: torch.linalg.vector_norm(v.flatten(1), dim=1, dtype=torch.float64) for name, v in models.items()}
        return {name: norm.cpu().numpy() for name, norm in norms.items()}

    def judge(self, facts: Facts, n: np.ndarray | None = None, known: np.ndarray | None = None) -> dict[int, Refusal]:
        """Return the rows that are not accepted. `n[m]`: their points; `known[m]`: clusters where replies name none."""
        found = dict(facts.refused)
        clusters = known if facts.clusters is None else facts.clusters
        for name, norms in facts.norms.items():
            accepted = np.array([row not in facts.refused for row in range(len(norms))], dtype=bool)
            each, most = norms if n is None else norms / np.maximum(n, 1), self.norm
            if name in facts.steps:
                most = max(self.norm, self.norm**2)
            for members, whose in _groups(accepted, clusters):
                middle, usual = _middle(norms[members]), _middle(each[members])
                far = (norms > most * middle) & (each > most * usual) & members
                for row in np.flatnonzero(far) if middle > 0 else ():
                    text = f"the norm of '{name}' is {norms[row] / middle:.1f} times the median{whose}"
                    found.setdefault(int(row), Refusal(Reason.NORM, text))
        return found


def _clusters(reply: Mapping[str, Tensor], kinds: Mapping[str, Kind]) -> np.ndarray | None:
    """The cluster of each client, where its reply says so."""
    for name, value in reply.items():
        if kinds[name] is Kind.CHOICE:
            return value.cpu().numpy()
    mixture = next((value for name, value in reply.items() if kinds[name] is Kind.MIXTURE), None)
    return None if mixture is None else mixture.argmax(1).cpu().numpy()


def _groups(accepted: np.ndarray, clusters: np.ndarray | None) -> list[tuple[np.ndarray, str]]:
    """Return who is compared with whom: clients of a cluster, and those of all small clusters together."""
    if accepted.sum() < 2:
        return []
    if clusters is None:
        return [(accepted, "")]
    found = [accepted & (clusters == s) for s in np.unique(clusters[accepted])]
    large = [(members, " of its cluster") for members in found if members.sum() >= FEW]
    rest = accepted & ~np.any([members for members, _ in large], axis=0) if large else accepted
    return large + ([(rest, "")] if rest.sum() > 1 else [])


def _middle(values: np.ndarray) -> float:
    """The median; of an even number the lower of the two in the middle."""
    return float(np.sort(values)[(len(values) - 1) // 2])


@dataclass(frozen=True)
class Picked:
    """Some of the rows of an answer. The others stay where they are, and count nothing."""

    rows: Rows
    kept: np.ndarray
    count: int

    def gather(self) -> Tensor:
        """The rows that are kept."""
        rows = self.rows.gather()
        return rows[torch.as_tensor(self.kept, device=rows.device)]

    def weighted(self, weights: Tensor) -> Tensor:
        """Their weighted sums."""
        return self.rows.weighted(self._wide(weights.double()))

    @property
    def shape(self) -> tuple[int, ...]:
        return codes(self.rows).shape

    def coded(self, what: Weighing) -> Coded:
        """The sums of what they code for themselves."""
        own = None if what.own is None else self._wide(what.own)
        keys = None if what.keys is None else self._wide(what.keys.T).T
        places = self._wide(torch.arange(what.weights.shape[1])[None] if what.places is None else what.places[None])[0]
        wide = replace(what, weights=self._wide(what.weights), own=own, keys=keys, places=places)
        return codes(self.rows).coded(wide)

    def _wide(self, weights: Tensor) -> Tensor:
        """Weights of all rows: 0 for those that are not kept."""
        wide = weights.new_zeros((len(weights), self.count))
        wide[:, torch.as_tensor(self.kept, device=wide.device)] = weights
        return wide


def without(ids: Ids, values: Mapping[str, Rows], bad: Mapping[int, Refusal]) -> Answer:
    """The answer of those who are accepted; what was answered itself where that is everybody."""
    if not bad:
        return Answer(ids, values)
    kept = np.array([row for row in range(len(ids)) if row not in bad], dtype=np.int64)
    return Answer(ids[kept], {name: Picked(rows, kept, len(ids)) for name, rows in values.items()} if len(kept) else {})


def blank(reply: Mapping[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
    """The same replies with nothing in these rows: a sum would not get over what is not finite in them."""
    at = torch.tensor(list(rows))
    return {name: value.index_fill(0, at.to(value.device), 0) for name, value in reply.items()}


def merged(first: Facts, refused: Mapping[int, Refusal]) -> Facts:
    """The same facts, with rows that were refused before."""
    return replace(first, refused={**first.refused, **refused})
