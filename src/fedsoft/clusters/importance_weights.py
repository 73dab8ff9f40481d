"""Importance weights: from the losses of points to u_ks, and from u to v_sk."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsoft.core.client_data import ClientData


def as_it_is(shares: Tensor) -> Tensor:
    """Return shares without noise."""
    return shares


def importance_weights(
    losses: Tensor, data: ClientData, sigma: float, hidden: Callable[[Tensor], Tensor] = as_it_is
) -> Tensor:
    """Return u_ks = max(n_ks / n_k, sigma), n_ks the points of client k whose smallest loss is that of center s.

    Every POINT votes on its own, from `losses[points, S]`. Rows may sum to slightly more than 1, as in the paper.
    `hidden` may add noise to n_ks / n_k.
    """
    votes = one_hot(losses.argmin(1), losses.shape[1]).to(losses.dtype)
    return hidden(data.mean_by_client(votes)).clamp(min=sigma)


def aggregation_weights(u: Tensor, n: Tensor) -> Tensor:
    """Return v_sk = u_ks n_k / sum_k' u_k's n_k', eq. (5), `[S, N]`; uniform for a center that nobody uses."""
    share = u.double().T.contiguous() * n.double()
    total = share.sum(1, keepdim=True)
    return torch.where(total > 0, share / total, 1 / len(n))


def one_hot(choice: Tensor, count: int) -> Tensor:
    """Return a row with a single 1 for each choice: `[m]` to `[m, count]`."""
    return torch.nn.functional.one_hot(choice.long(), count)
