"""Who takes part in a round: clients drawn by weight, or uniformly."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.client_draws import Draws
from fedsoft.core.contract import Ask
from fedsoft.core.replies import Ids

Participants = Annotated[int, Field(ge=1)] | Literal["all"]
"""How many clients are drawn in a round: a number K, or all."""


def select(v: Tensor, K: int, draws: Draws, *, replacement: bool) -> Tensor:
    """Draw K clients for each center with probabilities `v[S, N]`; return how often each was drawn, `[S, N]`.

    Clients race: client k rings at the times of a Poisson process of rate v_sk, by draws of its own. The first K rings
    are K independent draws from v (with replacement). The first K clients to ring at all are K successive draws without
    replacement. So the outcome does not depend on the order of clients. A client of weight 0 never rings, so
    without replacement fewer than K are drawn when fewer have a positive weight.
    """
    rates = v.cpu().numpy()
    centers, clients = rates.shape

    def rings(count: int) -> np.ndarray:  # the next `count` gaps of every race, [count, S, N]
        return np.ascontiguousarray(np.moveaxis(draws.exponential(count, centers), 0, 2))

    with np.errstate(divide="ignore", over="ignore"):
        times = rings(int(2 * K * rates.max()) + 20 if replacement else 1)
        times = (np.cumsum(times, axis=0) if replacement else times) / rates
        # With replacement no client's next ring may come before the K-th of all.
        while replacement and any(
            np.partition(times[:, s], K - 1, None)[K - 1] > times[-1, s].min() for s in range(centers)
        ):
            times = np.concatenate([times, times[-1] + np.cumsum(rings(len(times)), axis=0) / rates])
    drawn = np.zeros((centers, clients))
    for s in range(centers):
        each = times[:, s].ravel()
        first = np.argpartition(each, K)[:K] if K < len(each) else np.arange(len(each))
        first = first[np.isfinite(each[first])]
        np.add.at(drawn[s], first % clients, 1)
    return torch.from_numpy(drawn).to(v.device)


def ids_of(mask: Tensor) -> Ids:
    """Return the clients whose entry in `mask[N]` is not 0."""
    return torch.nonzero(mask).flatten().cpu().numpy()


def participants(ask: Ask, K: Participants) -> Ids:
    """Draw K clients uniformly without replacement for this round, or return all."""
    if K == "all":
        return ask.everyone
    uniform = torch.full((1, len(ask.sizes)), 1 / len(ask.sizes), dtype=torch.float64)
    drawn = select(uniform, K, ask.generators("select"), replacement=False)
    return ids_of(drawn[0])


def draw_centers(draws: Draws, r: Tensor) -> Tensor:
    """Draw a center for each of m clients, with probabilities `r[m, S]`."""
    chance = torch.as_tensor(draws.random(), device=r.device)
    return (r.double().cumsum(1) < chance[:, None]).sum(1).clamp(max=r.shape[1] - 1)
