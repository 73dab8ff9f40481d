"""Centers that nobody uses, or that are copies of each other: found from what the server knows, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

HARDLY = 0.1  # of an even share of the points: a center with less is hardly used
COPY = 1e-3  # of the size of two centers: a pair that is nearer is one center twice


def use_of(centers: Tensor, u: Tensor, n: Tensor) -> dict[str, list[float]]:
    """How centers `[S, P]` are used by clients with mixtures `u[N, S]` and `n[N]` points.

    `use`: the share of all points, sum_k u_ks n_k / sum_k n_k. `effective`: by how many clients, (sum_k a_k)^2 /
    sum_k a_k^2 with a_k = u_ks n_k. `apart`: the distance to the nearest other center, divided by the root mean square
    of all centers' norms; 0 for copies.
    """
    import torch

    c, shares = centers.double(), u.double() * n.double()[:, None]
    total, squares = shares.sum(0), shares.square().sum(0)
    effective = total.square() / squares.clamp(min=torch.finfo(torch.float64).tiny)
    size = c.square().sum(1).mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    away = torch.cdist(c, c, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf).amin(1) / size
    return {"use": (total / total.sum()).tolist(), "effective": effective.tolist(), "apart": away.tolist()}


def unused(use: Sequence[float]) -> list[int]:
    """The centers of less than a tenth of an even share of the points."""
    return [s for s, share in enumerate(use) if share < HARDLY / len(use)]


def reseeded(centers: Tensor, u: Tensor, n: Tensor, w: Tensor) -> Tensor:
    """The same centers, the first that is hardly used replaced by the client model that is farthest from all others.

    Arguments:
        centers, u, n: as in `use_of`.
        w: models `[m, P]` that clients have made in this round.
    """
    import torch

    use = use_of(centers, u, n)["use"]
    poor = unused(use)
    if not poor or not len(w):
        return centers
    used = [s for s in range(len(centers)) if s not in poor]
    away = torch.cdist(w.double(), centers[used].double(), compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    return centers.index_copy(0, torch.tensor(poor[:1], device=w.device), w[away.argmax()][None].to(centers.dtype))
