"""Mixtures of linear regressions: centers by least squares over the points of all clients, weighted by q.

Clients send sums, not points. With phi(x) the features of a point, P of them, and q_i(s) its shares:

    G_s = sum_i q_i(s) phi_i phi_i',    m_s = sum_i q_i(s) phi_i y_i,    c_s = (sum_k G_ks)^-1 sum_k m_ks
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsoft.core.contract import Site
from fedsoft.core.model import as_numbers
from fedsoft.core.replies import Answer, Reply

SETTLE = 5  # rounds between two checks for twins
TWIN = 0.2  # of the norm of centers: a closer pair may be one source twice
MISFIT = 2.0  # times the best center's mean square: a center with more may hold two sources


def sums(site: Site, q: Tensor, losses: Tensor) -> Reply:
    """Return what clients send of shares `q[points, S]` and squared `losses[points, S]`; count what that costs."""
    data, features = site.data, site.model.features
    assert features is not None
    phi = features(as_numbers(data.x[data.points], site.dtype)[None])[0]
    n = data.sizes.to(site.dtype)
    site.work.gradients.add_((data.sizes * gradients_of(phi.shape[1], q.shape[1])).cpu())

    def total(values: Tensor) -> Tensor:
        return data.mean_by_client(values) * n.view(-1, *[1] * (values.ndim - 1))

    weighted = q[:, :, None] * phi[:, None, :]  # [points, S, P]
    gram = torch.stack([total(weighted[:, s, :, None] * phi[:, None, :]) for s in range(q.shape[1])], dim=1)
    moment = total(weighted * data.y[data.points].view(-1, 1, 1))
    reply = {"gram": gram, "sum": moment, "n": total(q), "misfit": total(q * losses)}
    if site.least_points == 1:
        return reply
    # A sum dominated by one point reveals that point, however many others are in it.
    hide = total(q).square() / total(q.square()).clamp(min=torch.finfo(q.dtype).tiny) < site.least_points
    return {
        name: value.masked_fill(hide.view(*hide.shape, *[1] * (value.ndim - 2)), 0.0) for name, value in reply.items()
    }


def gradients_of(features: int, centers: int) -> int:
    """Return how many gradients of a point its sums cost.

    For each center P^2 multiplications make the Gram matrix, P the weighted features and P the moment; a gradient of a
    linear model takes 2 P, P forward and P back. So S (P + 2) / 2, and not P: it grows as S P^2 does.

    >>> gradients_of(10, 2), gradients_of(10, 8), gradients_of(100, 8)
    (12, 48, 408)
    """
    return -(-centers * (features + 2) // 2)


def solved(c: Tensor, answer: Answer, weights: Tensor) -> Tensor:
    """Return centers `[S, P]` in float64 from the sums of clients weighted by `weights[1, m]`.

    Of several minima take the nearest to `c`, so a center without points stays.
    """
    gram, moment = answer["gram"].weighted(weights)[0], answer["sum"].weighted(weights)[0]
    missing = moment[:, :, None] - gram @ c.double()[:, :, None]
    return c.double() + (torch.linalg.pinv(gram, hermitian=True) @ missing)[:, :, 0]


def parted(c: Tensor, new: Tensor, answer: Answer) -> Tensor | None:
    """Return centers with a twin moved to where one is missing; None if none has to move.

    Where two centers share a source, another one holds two and fits its points badly. One of the twins then restarts
    there, from the least squares of the client whose points fit worst.

    Arguments:
        c: the centers that determined the shares of points.
        new: the centers solved from these shares.
        answer: the sums that clients sent.
    """
    each = new.new_ones((1, len(answer.ids)))
    given, misfit = answer["n"].weighted(each)[0], answer["misfit"].weighted(each)[0]
    distance = torch.cdist(new, new, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    closest = int(distance.argmin())
    twins = sorted((closest // len(new), closest % len(new)), key=lambda s: float(given[s]))
    mean = misfit / given.clamp(min=1)
    worst = int(mean.argmax())
    if float(distance.min()) > TWIN * float(new.square().sum(1).mean().sqrt()) or worst in twins:
        return None
    if float(mean[worst]) < MISFIT * float(mean[given > 0].min()):
        return None
    client = int(answer.rows("misfit", like=mean[None])[:, worst].argmax())
    alone = torch.zeros_like(each).index_fill(1, torch.tensor([client], device=each.device), 1.0)
    return new.index_copy(0, torch.tensor(twins[:1], device=new.device), solved(c, answer, alone)[worst : worst + 1])
