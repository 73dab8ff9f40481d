"""What is checked of jobs and of what they return, before anything of it is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.contract import Algorithm
from fedsoft.core.replies import Kind, Reply
from fedsoft.errors import InputError, unknown


def check_job(algorithm: Algorithm, job: str) -> None:
    """Raise unless the method is marked as a job."""
    if job not in algorithm.jobs:
        raise unknown(f"job of {type(algorithm).__name__}", job, algorithm.jobs)


def check_reply(
    algorithm: Algorithm, job: str, count: int, reply: Reply, changed: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> Mapping[str, Kind]:
    """Return the kinds of a reply's entries; raise for entries that are not declared, or not one for each client.

    Arguments:
        count: of clients.
        reply: what they send.
        changed: what they keep, as far as it changed.
        given: what they kept before.
    """
    kinds = algorithm.jobs[job].replies
    for name in reply.keys() - kinds.keys():
        raise InputError(f"job '{job}' replies '{name}', which its @job does not declare: it has {[*kinds]}")
    for name in changed.keys() - given.keys():
        raise InputError(f"job '{job}' keeps '{name}', which init_client does not return: it returns {[*given]}")
    for name, value in (*reply.items(), *changed.items()):
        if len(value) != count:
            raise InputError(f"job '{job}' gave {len(value)} rows of '{name}' for {count} clients")
    return kinds


def not_finite(values: Mapping[str, Tensor]) -> Iterator[tuple[str, int]]:
    """Yield the rows in which something is not finite, each with the name of the entry."""
    for name, value in values.items():
        if not _surely_finite(value):
            bad = ~torch.isfinite(value).reshape(len(value), -1).all(1)
            yield from ((name, row) for row in torch.nonzero(bad).flatten().tolist())


def finite_rows(values: Mapping[str, Tensor], count: int) -> np.ndarray:
    """Return the rows in which everything is finite."""
    fine = np.ones(count, dtype=bool)
    for value in values.values():
        fine &= torch.isfinite(value).reshape(count, -1).all(1).cpu().numpy()
    return np.flatnonzero(fine)


def _surely_finite(value: Tensor) -> bool:
    """Return whether everything is finite, where a sum tells: one of finite numbers may exceed what they can hold."""
    return not value.is_floating_point() or math.isfinite(float(value.sum()))
