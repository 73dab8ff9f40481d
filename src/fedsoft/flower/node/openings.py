"""Replies that stay at a node, and which sums of them it has helped to open.

No two sums over the same reply tell it by their difference: what was opened, with which weights and over which nodes,
is on disk before it is told, over restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedsoft.core.replies import Kind
from fedsoft.flower.jobs import Past
from fedsoft.flower.secagg.messages import Missing
from fedsoft.flower.secagg.session import ProtocolError
from fedsoft.flower.sum_request import SumRequest
from fedsoft.secure.protection import Secure
from fedsoft.storage.atomic import write_json
from fedsoft.storage.files import read_json

FILE = "sums.json"


@dataclass
class Kept:
    """Replies that stay here.

    Arguments:
        chain: identifies them, see `chain_of`; past: the run's jobs up to this one.
        job, clients, points: who did what, and how many points each has.
        replies, kinds: one row for each client.
        shared: what was sent with the job.
    """

    chain: str
    past: Past
    job: str
    clients: list[str]
    points: list[int]
    replies: Mapping[str, Tensor]
    kinds: Mapping[str, Kind]
    shared: Mapping[str, Tensor]
    used: dict[str, Tensor] = field(default_factory=dict)  # weights by which an entry was opened, [R, m]
    counted: dict[str, Tensor] = field(default_factory=dict)  # whose values were counted beside, [R, m]


def name_of(asked: SumRequest, weights: Tensor) -> str:
    """Return what identifies a sum of replies."""
    about = f"{asked.by} {asked.count} {asked.coded.model_dump()} {asked.around} {weights.tolist()}"
    return hashlib.sha256(about.encode()).hexdigest()


class Openings:
    """The sums of one run that this node has helped to open.

    Arguments:
        folder: of the run's memory.
        secure: what the run asks for.
        least: how many nodes a sum must be of.
        hidden: whether clients hide their rows by noise; most: of how many sums then.
    """

    def __init__(self, folder: Path, secure: Secure, least: int, *, hidden: bool, most: int) -> None:
        self.path, self.secure, self.least, self.hidden, self.most = folder / FILE, secure, least, hidden, most
        self.opened: dict[str, list[str]] = dict(read_json(self.path)) if self.path.exists() else {}  # by reply, entry

    def check(self, kept: Kept, asked: SumRequest, whole: Tensor, missing: Missing) -> None:
        """Raise where this sum, beside those opened before, would tell too much of a client here; else note it.

        The same sum again, over the same nodes, tells nothing new: a run that is resumed asks for it. Coded in another
        way it would: a reach that is small counts the clients that are above it.
        """
        there = missing.present & set(asked.homes)
        if len(there) < self.least:
            raise ProtocolError(f"a sum of {len(there)} nodes: policy.nodes asks for {self.least}")
        now = whole * torch.tensor([home in there for home in asked.homes])
        mark, told = f"{kept.chain} {asked.entry}", name_of(asked, now)
        before = self.opened.get(mark, [])
        if told in before:
            return
        coded = f"coded {asked.coded.model_dump()} {asked.around}"
        if before and coded not in before:
            raise ProtocolError(f"another sum of '{asked.entry}' of this reply was opened before, coded in another way")
        used = kept.used.get(asked.entry)
        if before and (asked.by or used is None or self.hidden):  # the same noise would cancel
            raise ProtocolError(f"another sum of '{asked.entry}' of this reply was opened before")
        if self.hidden and sum(one[0].startswith("coded") for one in self.opened.values()) >= self.most:
            raise ProtocolError(f"{self.most} sums with noise were opened, one for each round of the run")
        counted = (now != 0).any(0)[None].double()  # values are counted whatever they weigh
        weighed, both = self._weighed(kept, asked, now), (now, counted)
        if used is not None:
            both = torch.cat([used, now]), torch.cat([kept.counted[asked.entry], counted])
        for weights in both:
            self.secure.check_weights(weights, asked.homes)
        if not asked.by:  # beside weights of the clients' own, nothing else is opened of an entry
            kept.used[asked.entry], kept.counted[asked.entry] = both
        self.opened |= weighed | {mark: [*(before or [coded]), told]}
        write_json(self.path, self.opened)

    def _weighed(self, kept: Kept, asked: SumRequest, now: Tensor) -> dict[str, list[str]]:
        """Return what to note of the clients' own weights, whose sum is opened too; raise for another sum of them."""
        if not asked.by:
            return {}
        mark = f"{kept.chain} {asked.by}"
        told = f"weighs {hashlib.sha256(str(now.tolist()).encode()).hexdigest()}"
        if self.opened.get(mark, [told]) != [told]:
            raise ProtocolError(f"another sum of '{asked.by}' of this reply was opened before")
        return {mark: [told]}
