"""Every reply is looked at before it is used, wherever the clients are: finite, in range, and of a likely size.

What one reply tells about itself is found where it is (`Guards.look`), what only a comparison tells by the server
(`Guards.judge`): for that no more than a norm for each client and model has to be sent. Those who are not believed are
missing from the answer, as if they had not answered; no algorithm needs to know of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedsoft.contract import Algorithm, Answer, Ids, Rows
from fedsoft.errors import InputError
from fedsoft.trust.attack import MIXTURES
from fedsoft.trust.privacy import Privacy

Diverged = Literal["stop", "drop"]
"""When a client's training gives values that are not finite: `stop` the run, or `drop` the client for this ask."""

SLACK = 1e-3  # of a share or a count, for rounding
FEW = 3  # clients of a cluster that have a median of their own
SPOKEN = 5  # clients, or reasons, that get a sentence each
ADVICE = " (lower the learning rate, or scale the data)"
NAMED = 20  # clients that a round's record names as excluded; of the others it tells how many
SILENT = 3  # rounds without any answer before it is worth a word
POINTS = 2**40  # more than anybody has


@dataclass(frozen=True)
class Care:
    """What is done about clients that fail or lie, for every algorithm and engine alike.

    Arguments:
        norm: how many times the median norm a model may have; 0 for any.
        diverged: see `Diverged`.
        privacy: what is hidden of points and clients.
    """

    norm: float = 0.0
    diverged: Diverged = "stop"
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        if not (self.norm == 0 or 1 <= self.norm < float("inf")):
            raise InputError(f"guard = {self.norm!r} is not allowed: should be a number of at least 1, or 0 for none")
        if self.diverged not in get_args(Diverged):
            raise InputError(f"diverged = {self.diverged!r} is not allowed: should be 'stop' or 'drop'")


@dataclass(frozen=True)
class Facts:
    """What the guards know of m replies.

    Arguments:
        refused: rows that are not believed, and why.
        norms: of every model, `[m]` each.
        clusters: the cluster that each client says it is of, `[m]`, where it says so.
    """

    refused: Mapping[int, str] = field(default_factory=dict)
    norms: Mapping[str, np.ndarray] = field(default_factory=dict)
    clusters: np.ndarray | None = None

    @staticmethod
    def join(parts: Sequence[tuple[int, Facts]]) -> Facts:
        """Of replies that follow each other, so many in each part."""
        refused, begin = {}, 0
        for count, facts in parts:
            refused |= {begin + row: why for row, why in facts.refused.items()}
            begin += count
        found = [facts for count, facts in parts if count]
        if not found:
            return Facts(refused)
        norms = {name: np.concatenate([facts.norms[name] for facts in found]) for name in found[0].norms}
        told = [facts.clusters for facts in found if facts.clusters is not None]
        return Facts(refused, norms, np.concatenate(told) if len(told) == len(found) else None)

    @property
    def bytes(self) -> int:
        """How much has to be sent of it."""
        arrays = [*self.norms.values(), *([] if self.clusters is None else [self.clusters])]
        return sum(array.nbytes for array in arrays) + sum(len(why) + 8 for why in self.refused.values())


@dataclass(frozen=True)
class Guards:
    """What is believed.

    Arguments:
        model: parameters of the model; what is at least so long is a model, a gradient or a stack of them.
        norm: how many times the median norm it may have, among clients of the same cluster where that is known; 0 for
            any. Sums over points grow with their number: the norm for each point must be too large as well.
        sigma: the smallest share that a mixture may have, by which its sum may be above 1.
    """

    model: int
    norm: float = 0.0
    sigma: float = 0.0

    @staticmethod
    def of(care: Care, algorithm: Algorithm, size: int) -> Guards:
        """For an algorithm and models of that many parameters."""
        return Guards(size, care.norm, float(getattr(algorithm, "sigma", 0.0)))

    def look(self, reply: Mapping[str, Tensor], n: Tensor | None = None, centers: int | None = None) -> Facts:
        """What m replies tell about themselves; `n[m]` points each where that is known, and so many centers."""
        refused: dict[int, str] = {}

        def refuse(bad: Tensor, why: str) -> None:
            for row in torch.nonzero(bad).flatten().tolist():
                refused.setdefault(row, why)

        for name, value in reply.items():
            flat = value.reshape(len(value), -1)
            refuse(~torch.isfinite(flat).all(1), f"'{name}' holds values that are not finite")
            if name in MIXTURES and value.ndim == 2:
                total, most = flat.double().sum(1), 1 + (flat.shape[1] - 1) * self.sigma + SLACK
                refuse((flat < -SLACK).any(1) | (flat > 1 + SLACK).any(1), f"'{name}' holds shares outside of 0 to 1")
                refuse((total < 1 - SLACK) | (total > most), f"the shares of '{name}' do not sum to 1")
            elif name == "n" and n is not None and value.ndim == 2:
                total, most = flat.double().sum(1), n.to(flat.device).double()
                off = (flat < -SLACK).any(1) | ((total - most).abs() > SLACK * most)
                refuse(off, f"the counts '{name}' do not sum to the number of its points")
            elif name == "s" and value.ndim == 1 and centers is not None:
                refuse((value < 0) | (value >= centers), f"'{name}' names a center that does not exist")
        return Facts(refused, self._norms(reply), _clusters(reply) if self.norm else None)

    def _norms(self, reply: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        if not self.norm:
            return {}
        long = {name: v for name, v in reply.items() if v.is_floating_point() and v[0:1].numel() >= self.model}
        norms = {name: torch.linalg.vector_norm(v.flatten(1), dim=1, dtype=torch.float64) for name, v in long.items()}
        return {name: norm.cpu().numpy() for name, norm in norms.items()}

    def judge(self, facts: Facts, n: np.ndarray | None = None, known: np.ndarray | None = None) -> dict[int, str]:
        """Rows that are not believed, and why. `n[m]`: their points; `known[m]`: their clusters, unless they say so."""
        found = dict(facts.refused)
        clusters = known if facts.clusters is None else facts.clusters
        for name, norms in facts.norms.items():
            believed = np.array([row not in facts.refused for row in range(len(norms))], dtype=bool)
            each = norms if n is None else norms / np.maximum(n, 1)
            for members, whose in _groups(believed, clusters):
                middle, usual = _middle(norms[members]), _middle(each[members])
                far = (norms > self.norm * middle) & (each > self.norm * usual) & members
                for row in np.flatnonzero(far) if middle > 0 else ():
                    told = f"the norm of '{name}' is {norms[row] / middle:.1f} times the median{whose}"
                    found.setdefault(int(row), told)
        return found


def _clusters(reply: Mapping[str, Tensor]) -> np.ndarray | None:
    """The cluster of each client, where its reply says so."""
    if "s" in reply and reply["s"].ndim == 1:
        return reply["s"].cpu().numpy()
    told = next((reply[name] for name in MIXTURES if name in reply and reply[name].ndim == 2), None)
    return None if told is None else told.argmax(1).cpu().numpy()


def _groups(believed: np.ndarray, clusters: np.ndarray | None) -> list[tuple[np.ndarray, str]]:
    """Who is compared with whom: clusters of a few clients at least; those of smaller ones with everybody."""
    if believed.sum() < 2:
        return []
    if clusters is None:
        return [(believed, "")]
    found = [believed & (clusters == s) for s in np.unique(clusters[believed])]
    large = [(members, " of its cluster") for members in found if members.sum() >= FEW]
    rest = believed & ~np.any([members for members, _ in large], axis=0) if large else believed
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
        wide = weights.new_zeros((len(weights), self.count), dtype=torch.float64)
        wide[:, torch.as_tensor(self.kept, device=wide.device)] = weights.double()
        return self.rows.weighted(wide)


def without(ids: Ids, values: Mapping[str, Rows], bad: Mapping[int, str]) -> Answer:
    """The answer of those who are believed; what was answered itself where that is everybody."""
    if not bad:
        return Answer(ids, values)
    kept = np.array([row for row in range(len(ids)) if row not in bad], dtype=np.int64)
    return Answer(ids[kept], {name: Picked(rows, kept, len(ids)) for name, rows in values.items()} if len(kept) else {})


def blank(reply: Mapping[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
    """The same replies with nothing in these rows: a sum would not get over what is not finite in them."""
    at = torch.tensor(list(rows))
    return {name: value.index_fill(0, at.to(value.device), 0) for name, value in reply.items()}


# --- what is told about it --------------------------------------------------------------------------------------------


def noted(excluded: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What a round's record says of those who were not believed; nothing when there were none."""
    once = list(dict.fromkeys(excluded))
    if not once:
        return {}
    more = {"excluded_more": len(once) - NAMED} if len(once) > NAMED else {}
    return {"excluded": [{"client": client, "reason": why} for client, why in once[:NAMED]], **more}


def exclusions(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who was excluded over a run: a sentence for each client, or for each reason where they are many.

    Rounds are counted from 1, as people see them.
    """
    rounds: dict[str, list[tuple[int, str]]] = {}
    more = sum(record.get("excluded_more", 0) for record in records)
    for record in records:
        for entry in record.get("excluded", []):
            rounds.setdefault(str(entry["client"]), []).append((record["round"] + 1, str(entry["reason"])))
    often = sorted(rounds, key=lambda client: (-len(rounds[client]), client))
    if len(often) <= SPOKEN and not more:
        return [_sentence(client, rounds[client]) for client in often]
    reasons: dict[str, set[str]] = {}
    for client in often:
        for _, why in rounds[client]:
            reasons.setdefault(why, set()).add(client)
    least = "at least " if more else ""  # a record names some of them only
    return [
        f"{least}{len(who)} client{'s were' if len(who) > 1 else ' was'} excluded, such as "
        f"{', '.join(sorted(who)[:3])}: {why}{ADVICE if 'not finite' in why else ''}"
        for why, who in sorted(reasons.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:SPOKEN]
    ]


def _sentence(client: str, seen: Sequence[tuple[int, str]]) -> str:
    count, (t, why) = len({t for t, _ in seen}), seen[-1]
    advice = ADVICE if "not finite" in why else ""
    return f"client '{client}' was excluded in {count} round{'s' * (count > 1)}, last in round {t}: {why}{advice}"


def silence(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A word about a run in which nobody answered, in none of its rounds or not any more."""
    if (never := unheard(records)) is not None:
        return [never]
    answered = [record["answered"] for record in records if "answered" in record]
    last = next((i for i, count in enumerate(reversed(answered)) if count), len(answered))
    return [f"nobody answered in the last {last} rounds: all centers stayed as they were"] if last >= SILENT else []


def unheard(records: Sequence[Mapping[str, Any]]) -> str | None:
    """A sentence about a run that is over and never had an answer that could be used; None where it had one."""
    whole = bool(records) and records[0]["round"] == 0 and bool(records[-1].get("last"))
    if not whole or any(record.get("answered", 1) for record in records):
        return None
    rounds = "its only round" if len(records) == 1 else f"any of its {len(records)} rounds"
    return f"nobody answered in {rounds}: nothing was learned, all models are as they were drawn"


def merged(first: Facts, refused: Mapping[int, str]) -> Facts:
    """The same facts, with rows that were refused before."""
    return replace(first, refused={**first.refused, **refused})
