"""What a finished run says about each client: computed anew from its saved state and its data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedsoft.reports.material import Finished
from fedsoft.runs.execution import load
from fedsoft.threads import one_thread


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
    """Load a run and look at every client. Complains when its data is gone or has changed."""
    loaded = load(run.folder.path)
    engine, federation = loaded.engine, loaded.federation
    truth, u = federation.truth, loaded.weights
    with torch.no_grad(), one_thread():
        train = engine.personal_scores(loaded.state, federation.train)
        held_out = engine.personal_scores(loaded.state, federation.held_out)
    shares = None if truth is None else truth.fractions(federation.train)
    alignment = run.scores.get("alignment")
    if u is not None:
        u = (u / u.sum(1, keepdim=True)).double().cpu()
        if shares is not None:
            u = None if alignment is None else torch.zeros_like(shares).index_add_(1, torch.tensor(alignment), u)
    return Clients(
        federation.names,
        None if u is None else u.tolist(),
        None if shares is None else shares.tolist(),
        train.tolist(),
        held_out.tolist(),
    )
