"""Which weights a server may choose for sums over the same replies, and how much of one reply they show."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from fedsoft.errors import InputError

CLOSE = 1e-6  # relative: weights that were computed in float32 are taken for what they mean


def whole_weights(weights: Tensor, points: Tensor) -> Tensor:
    """Return rows of weights `[R, m]` as whole numbers: 0, and else 1 or the number of points of each client.

    Others are refused. Weights of any value could hide a number in their last digits for each client, in which small
    whole numbers of all of them could be read off one sum.

    >>> whole_weights(torch.tensor([[0.5, 0.5, 0], [0.2, 0.3, 0.5]]), torch.tensor([2, 3, 5])).tolist()
    [[1.0, 1.0, 0.0], [2.0, 3.0, 5.0]]
    """
    rows, n = weights.double().cpu(), points.double().cpu()
    found = torch.zeros_like(rows)
    for row, whole in zip(rows, found, strict=True):
        there = row != 0
        for candidate in (torch.ones_like(n), n):
            ratio = row[there] / candidate[there]
            if bool((ratio > 0).all()) and bool(((ratio - ratio[:1]).abs() <= CLOSE * ratio[:1]).all()):
                whole[there] = candidate[there]
                break
        else:
            raise InputError(
                "secure = true: weights of a sum should be the same for all clients in it, or their numbers of points"
            )
    return found


def shares_of(whole: Tensor) -> Tensor:
    """Return the shares of each row of whole numbers: what clients multiply by, the same bits everywhere."""
    return whole / whole.sum(1, keepdim=True).clamp(min=1)


def visible(weights: Tensor, homes: Sequence[str] | None = None) -> Tensor:
    """Return how much sums with weights `[R, m]` show of each of m replies, from 0 to 1.

    It is the leverage: the share of the variance of one reply that is explained by the sums, where replies are
    independent and alike. 1 for a reply that can be computed from them. With `homes`, the node of each client, it is
    that of the combination of a node's replies of which most is shown, for each client. However little two rows differ,
    it is their difference that counts: a sum is exact, so what is small can be read as well.

    >>> visible(torch.tensor([[1.0, 1, 1, 1]])).tolist()
    [0.25, 0.25, 0.25, 0.25]
    >>> visible(torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 1 + 1e-13]], dtype=torch.float64))[3].item()
    1.0
    """
    used = weights.double().cpu()
    basis = _basis(used)
    if not len(basis):
        return used.new_zeros(used.shape[1])
    kept = torch.linalg.qr(basis.T).Q.T
    if homes is None:
        return kept.square().sum(0)
    each = {home: [k for k, one in enumerate(homes) if one == home] for home in set(homes)}
    most = {home: torch.linalg.matrix_norm(kept[:, rows], 2).square() for home, rows in each.items()}
    return torch.stack([most[home] for home in homes])


def _basis(rows: Tensor) -> Tensor:
    """Return rows that span the same, `[r, m]`, far from dependent on each other: found without rounding."""
    left = [[Fraction(x) for x in row] for row in dict.fromkeys(map(tuple, rows.tolist())) if any(row)]
    found: list[list[Fraction]] = []
    while left:
        size, k, j = max((abs(x), k, j) for k, row in enumerate(left) for j, x in enumerate(row))
        if not size:
            break
        pivot = left.pop(k)
        lead = [x / pivot[j] for x in pivot]
        left, found = ([_without(row, lead, j) for row in some] for some in (left, found))
        found.append(lead)
    return torch.tensor([[float(x) for x in row] for row in found], dtype=torch.float64).reshape(-1, rows.shape[1])


def _without(row: list[Fraction], lead: list[Fraction], j: int) -> list[Fraction]:
    """Return a row from which so much of another is taken that its number j is 0."""
    return [x - row[j] * y for x, y in zip(row, lead, strict=True)] if row[j] else row
