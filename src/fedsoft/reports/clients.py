"""What a finished run says about each client."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsoft.errors import StoreError
from fedsoft.reports.run_loader import Finished
from fedsoft.runs.folder import OUTCOME


@dataclass(frozen=True)
class Clients:
    """One entry for each client. `u` and `shares` are None where the method or the data has none.

    Arguments:
        u: the estimated mixture, rows summing to 1; by source where the sources are known, by center otherwise.
        shares: the true share of each source among the client's training points.
        train, held_out: the metric of the personal model on the client's own points, NaN where it has none.
    """

    names: tuple[str, ...]
    u: list[list[float]] | None
    shares: list[list[float]] | None
    train: list[float]
    held_out: list[float]


def clients_of(run: Finished) -> Clients:
    """Return what was saved about every client."""
    import torch

    outcome, point = run.folder.outcome(), run.folder.checkpoint()
    if outcome is None or point is None:
        raise StoreError(f"'{run.folder.path / OUTCOME}' is missing: the clients of the run cannot be shown without it")
    u, alignment = point.state.mixture, run.scores.alignment
    shares = None if outcome.shares is None else torch.tensor(outcome.shares, dtype=torch.float64)
    if u is not None:
        u = (u / u.sum(1, keepdim=True)).double().cpu()
        if shares is not None:
            u = None if alignment is None else torch.zeros_like(shares).index_add_(1, torch.tensor(alignment), u)
    return Clients(
        tuple(run.folder.data.names),
        None if u is None else u.tolist(),
        outcome.shares,
        *([math.nan if value is None else value for value in row] for row in (outcome.train, outcome.held_out)),
    )
