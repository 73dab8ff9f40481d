"""What a learned prior says of clients: how well it explains their points, and where the differences between them lie.

By the law of total variance the models of clients differ by

    Var(w) = sum_s pi_s (c_s - c)(c_s - c)' + sum_s pi_s Sigma_s,        c = sum_s pi_s c_s

between and within sources. Of the second part a client's points leave V_ks in the dark: that is noise. A matrix X of
such differences means to a client what it does to its loss, `1/2 tr(H_k X) / n_k` with the curvature H_k of its summed
loss: the loss per point, to second order, of a client that ignores it. Each client computes these numbers at its own
points, and the server needs only their sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsoft.clusters.learned_prior import Prior
from fedsoft.core.model import Layout

EACH = 64  # parameters up to which every one has a row of its own; larger models have one for each tensor


def numbers_of(prior: Prior) -> int:
    """Return how many numbers a prior consists of."""
    count, size = prior.centers.shape
    width = size if prior.diagonal else size * (size + 1) // 2
    return count * (size + width) + count - 1


def groups_of(layout: Layout) -> Tensor:
    """Return the row `[P]` that each parameter belongs to: its own, or that of its tensor in a larger model."""
    if layout.size <= EACH:
        return torch.arange(layout.size)
    sizes = [place.stop - place.start for _, place, _ in layout.slices()]
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def differences(prior: Prior, spread: Tensor, r: Tensor, groups: Tensor) -> Tensor:
    """Return what differences cost each of m clients in summed loss, `[m, rows + 1, 3]`: between, within, noise.

    Noise is the part of the differences within that the client's points do not tell. Rows are groups of parameters that
    vary on their own; the last one is that of all together.

    Arguments:
        spread: the uncertainties V_ks, `[m, S, P(, P)]`.
        r: how probable the centers are for each client, `[m, S]`.
        groups: see `groups_of`.
    """
    curvature = _inverse(spread, prior.diagonal) - prior.precision
    wide = r.view(*r.shape, *[1] * (spread.ndim - 2))
    apart = prior.centers - prior.shares @ prior.centers
    parts = [
        ((wide * curvature).sum(1), _between(prior, apart)),
        (wide * curvature, prior.covariance),
        (wide * curvature, spread),
    ]
    rows = spread.new_zeros(len(r), int(groups.max()) + 2, len(parts))
    for column, (bend, width) in enumerate(parts):
        own = _diagonal(bend, prior) * _diagonal(width, prior) / 2
        own = own if own.ndim == 2 else own.sum(1)
        rows[:, :-1, column].index_add_(1, groups.to(own.device), own)
        rows[:, -1, column] = own.sum(1) if prior.diagonal else _together(bend, width)
    return rows


def _between(prior: Prior, apart: Tensor) -> Tensor:
    """Return the covariance `[P(, P)]` of the centers."""
    if prior.diagonal:
        return prior.shares @ apart.square()
    return torch.einsum("s,sp,sq->pq", prior.shares, apart, apart)


def _together(bend: Tensor, width: Tensor) -> Tensor:
    """Return `1/2 tr(bend width)` `[m]`, summed over centers."""
    found = (bend * width).sum((-1, -2)) / 2
    return found if found.ndim == 1 else found.sum(1)


def _inverse(matrix: Tensor, diagonal: bool) -> Tensor:
    return 1 / matrix if diagonal else torch.linalg.inv(matrix)


def _diagonal(matrix: Tensor, prior: Prior) -> Tensor:
    return matrix if prior.diagonal else matrix.diagonal(dim1=-2, dim2=-1)
