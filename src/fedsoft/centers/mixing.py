"""From losses to importance weights, from weights to selected clients, from client models to centers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clientdata import ClientData
from fedsoft.contract import Answer, Ask, Averages, Ids, Rows
from fedsoft.errors import InputError

Participants = Annotated[int, Field(ge=1)] | Literal["all"]
"""How many clients are drawn in a round: a number K, or everybody."""


def as_it_is(shares: Tensor, sweep: int = 0) -> Tensor:
    """Shares that hide nothing."""
    return shares


def importance_weights(
    losses: Tensor, data: ClientData, sigma: float, hidden: Callable[[Tensor, int], Tensor] = as_it_is
) -> Tensor:
    """u_ks = max(n_ks / n_k, sigma), n_ks the points of client k whose smallest loss is that of center s.

    Every POINT votes on its own, from `losses[points, S]`. Rows may sum to slightly more than 1, as in the paper.
    `hidden` may put noise on n_ks / n_k.
    """
    votes = one_hot(losses.argmin(1), losses.shape[1]).to(losses.dtype)
    return hidden(data.mean_by_client(votes), 0).clamp(min=sigma)


def aggregation_weights(u: Tensor, n: Tensor) -> Tensor:
    """v_sk = u_ks n_k / sum_k' u_k's n_k', eq. (5), over all clients; `[S, N]`. Uniform for a center nobody uses."""
    share = (u.double() * n.double()[:, None]).T
    total = share.sum(1, keepdim=True)
    return torch.where(total > 0, share / total, 1 / len(n))


def select(v: Tensor, K: int, generators: Sequence[np.random.Generator], *, replacement: bool) -> Tensor:
    """Draw K clients for each center with probabilities `v[S, N]`; how often each was drawn, `[S, N]`.

    Clients race: client k rings at the times of a Poisson process of rate v_sk, drawn from its own generator. The first
    K rings are K independent draws from v (with replacement). The first K clients to ring at all are K successive draws
    without replacement. So the outcome does not depend on the order of clients. A client of weight 0 never rings, and
    without replacement fewer than K are drawn when fewer have weight.
    """
    rates = v.cpu().numpy()
    centers, clients = rates.shape

    def rings(count: int) -> np.ndarray:  # the next `count` gaps of every race, [count, S, N]
        return np.stack([g.standard_exponential((count, centers)) for g in generators], axis=2)

    with np.errstate(divide="ignore", over="ignore"):
        times = np.cumsum(rings(int(2 * K * rates.max()) + 20 if replacement else 1), axis=0) / rates
        # With replacement nobody's next ring may come before the K-th of all.
        while replacement and any(
            np.partition(times[:, s], K - 1, None)[K - 1] > times[-1, s].min() for s in range(centers)
        ):
            times = np.concatenate([times, times[-1] + np.cumsum(rings(len(times)), axis=0) / rates])
    drawn = np.zeros((centers, clients))
    for s in range(centers):
        first = np.argsort(times[:, s], axis=None, kind="stable")[:K]
        first = first[np.isfinite(times[:, s].ravel()[first])]
        np.add.at(drawn[s], first % clients, 1)
    return torch.from_numpy(drawn).to(v.device)


def ids_of(mask: Tensor) -> Ids:
    """The clients whose entry in `mask[N]` is not 0."""
    return torch.nonzero(mask).flatten().cpu().numpy()


def participants(ask: Ask, K: Participants) -> Ids:
    """K clients drawn uniformly without replacement for this round, or everybody."""
    if K == "all":
        return ask.everyone
    uniform = torch.full((1, len(ask.sizes)), 1 / len(ask.sizes), dtype=torch.float64)
    drawn = select(uniform, K, ask.generators("select"), replacement=False)
    return ids_of(drawn[0])


def check_participants(owner: str, K: Participants, clients: int, advice: str = "") -> None:
    """K distinct clients must exist."""
    if K != "all" and K > clients:
        raise InputError(f"{owner}.K = {K} is not allowed: should be at most {clients}, the number of clients{advice}")


def one_hot(choice: Tensor, count: int) -> Tensor:
    """A row with a single 1 for each choice: `[m]` to `[m, count]`."""
    return torch.nn.functional.one_hot(choice.long(), count)


def average(w: Tensor | Rows, weights: Tensor, old: Tensor) -> Tensor:
    """Centers as weighted means of client models: `w[m, P]` of those who answered, their `weights[S, m]`.

    Divides by the weight of those who answered. A center without any keeps its `old[S, P]` value. Sums are taken in
    float64. With `w = answer["w"]` they are taken where the models are: no more than the means is brought together.
    """
    if isinstance(w, Averages):
        return w.average(weights, old)
    total = weights.sum(1, keepdim=True)
    shares = weights / total.clamp(min=torch.finfo(torch.float64).tiny)
    mean = shares @ w.double() if isinstance(w, Tensor) else w.weighted(shares)
    return torch.where(total > 0, mean.to(old.dtype), old)


def unmix(w: Rows, u: Tensor, n: Tensor, h: Tensor, lam: float, old: Tensor, ridge: float) -> Tensor:
    """The centers whose mixtures are the client models: instead of averages, the solution of U C = M.

    With a loss of curvature h, the proximal solution w_k lies between the client's own minimum m_k and the pull:

        w_k = (h_k m_k + lambda sum_s u_ks c_s) / (h_k + lambda sum_s u_ks)

    so that m_k is known from w_k and the centers that pulled. Weighted least squares over clients, weights n_k, with a
    little ridge towards the old centers: (U' N U + r) C = U' N M + r C_old, U having rows that sum to 1 and
    r = `ridge` times the mean of the diagonal of U' N U. It takes no more than weighted sums of the w_k.

    Arguments:
        w: models of those who answered, `[m, P]`.
        u, n, h: their importance weights `[m, S]`, numbers of points `[m]` and curvatures `[m]`.
        lam, old: strength of the pull, and the centers `[S, P]` that pulled.
    """
    u, n, h, c = u.double(), n.double(), h.double(), old.double()
    if not len(u):
        return old
    share, pull = u / u.sum(1, keepdim=True), lam / h.clamp(min=1e-3 * lam + torch.finfo(h.dtype).tiny)
    weighted = (share * n[:, None]).T  # [S, m]
    matrix = weighted @ share
    ridge = ridge * float(matrix.diagonal().mean())
    right = w.weighted(weighted * (1 + pull * u.sum(1))) - (weighted * pull) @ u @ c
    solved = torch.linalg.solve(matrix + ridge * torch.eye(len(c), dtype=c.dtype, device=c.device), right + ridge * c)
    return solved.to(old.dtype)


def mean_by_size(ask: Ask, answer: Answer, c: Tensor) -> Tensor:
    """FedAvg's rule: the one center `c[1, P]` becomes the mean of the models that came back, weighted by n_k."""
    return average(answer["w"], ask.sizes[answer.ids].double()[None], old=c)
