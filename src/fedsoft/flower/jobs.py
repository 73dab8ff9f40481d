"""The jobs that a run has had, of which the server tells all nodes alike.

A server that sends some nodes other centers than the rest knows what the rest will answer, or has one node alone weigh
a center, and a sum is that of few (Pasquini, Francati, Ateniese, CCS 2022). So each job comes with marks of all before
it. A node checks that its own are among them, and all parties of a sum must agree on them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsoft.errors import InputError

MARK = 32  # characters


def mark_of_job(job: str, round: int, shared: Mapping[str, Tensor]) -> str:
    """Return what names a job and all that is sent with it."""
    found = hashlib.sha256(json.dumps([job, round]).encode())
    for name in sorted(shared):
        value = shared[name].detach().cpu().contiguous()
        found.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        found.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:MARK]


@dataclass(frozen=True)
class Past:
    """So many jobs, and a hash of their marks."""

    count: int = 0
    digest: str = ""

    @staticmethod
    def of(marks: Sequence[str]) -> Past:
        return Past(len(marks), hashlib.sha256(" ".join(marks).encode()).hexdigest())

    def check(self, marks: Sequence[str]) -> None:
        """Raise where these jobs do not begin with those of this past."""
        if self.count and Past.of(marks[: self.count]) != self:
            raise InputError("the server tells of other jobs before this one than this node has had")


NO_JOBS = Past()
