"""From client models to centers: weighted means, and unmixing."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsoft.core.contract import Ask
from fedsoft.core.replies import Answer, Averages, Rows


def average(w: Tensor | Rows, weights: Tensor, old: Tensor) -> Tensor:
    """Return centers as means of the models `w[m, P]` of the clients that answered, with `weights[S, m]`.

    Divides by the weight of the clients that answered. A center without any keeps its `old[S, P]` value. Sums are in
    float64. With `w = answer["w"]` they are computed where the models are: only the means are sent.
    """
    if isinstance(w, Averages):
        return w.average(weights, old)
    total = weights.sum(1, keepdim=True)
    shares = weights / total.clamp(min=torch.finfo(torch.float64).tiny)
    mean = shares @ w.double() if isinstance(w, Tensor) else w.weighted(shares)
    return torch.where(total > 0, mean.to(old.dtype), old)


def mean_by(answer: Answer, name: str, by: str, old: Tensor, n: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return centers `[S, P]` as means of the rows under `name`, and the weight of each center, `[S]`.

    Clients weigh their rows themselves, by their reply `by` times n_k; see `Answer.sums`. A center of weight 0 keeps
    its `old[S, P]` value.
    """
    total, weight = answer.sums(name, by, len(old), n, around=old)
    mean = total / weight.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
    return torch.where(weight[:, None] > 0, mean.to(old.dtype), old), weight


def unmix(w: Rows, u: Tensor, n: Tensor, h: Tensor, lam: float, old: Tensor, ridge: float) -> Tensor:
    """Return the centers whose mixtures are the client models: the solution of U C = M instead of averages.

    With a loss of curvature h, the proximal solution w_k lies between the client's own minimum m_k and the pull:

        w_k = (h_k m_k + lambda sum_s u_ks c_s) / (h_k + lambda sum_s u_ks)

    so m_k follows from w_k and the centers that pulled. Solve weighted least squares over clients, weights n_k, with a
    small ridge towards the old centers: (U' N U + r) C = U' N M + r C_old, where rows of U sum to 1 and r = `ridge`
    times the mean of the diagonal of U' N U. It needs only weighted sums of the w_k.

    Arguments:
        w: models of the clients that answered, `[m, P]`.
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


def mean_over_points(ask: Ask, answer: Answer, name: str) -> float:
    """Return the mean of one number, weighted by n_k, over the clients that answered."""
    n = ask.sizes[answer.ids].double()[None]
    return float(answer[name].weighted(n / n.sum())[0])


def mean_by_size(ask: Ask, answer: Answer, c: Tensor) -> Tensor:
    """Return FedAvg's new center `[1, P]`: the mean of the models that came back, weighted by n_k."""
    return average(answer["w"], ask.sizes[answer.ids].double()[None], old=c)


def moved(old: Tensor, rows: Rows, own: Tensor, each: Tensor | float = 1.0) -> Tensor:
    """Return `old + sum_k own_k (each_k rows_k - old)`, in float64: those that did not answer count for what is old.

    Arguments:
        own: what each client that answered counts, `[m]`; those of all clients sum to 1.
        each: a further factor of its row.
    """
    return ((1 - own.sum()) * old.double() + rows.weighted((own * each)[None])[0]).to(old.dtype)
