"""What is asked of a run whose replies are seen as sums only, and what cannot be kept together with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedsoft.errors import InputError
from fedsoft.settings import settings

if TYPE_CHECKING:
    from torch import Tensor

    from fedsoft.core.contract import Algorithm

LEAST = 2  # clients of a sum


@settings
class Secure:
    """Replies are seen as sums only.

    Arguments:
        threshold: t, the share of the clients asked that must answer for a sum to be made; as many of them would have
            to work together with the server to open what one of the others sent.
        share: the largest part of what a client sends that the weights of its sums may show. 1 would be all of it: a
            sum of one client, or as many sums as there are clients.
    """

    threshold: Annotated[float, Field(gt=0.5, le=1)] = 2 / 3
    share: Annotated[float, Field(gt=0, lt=1)] = 0.9

    def least(self, asked: int) -> int:
        """Return how many of the clients asked must answer.

        >>> Secure().least(4), Secure().least(1)
        (3, 2)
        """
        return max(LEAST, math.ceil(self.threshold * asked - 1e-9))

    def check(self, algorithm: Algorithm) -> None:
        """Raise where an algorithm has to see replies of single clients."""
        from fedsoft.core.contract import Needs

        if algorithm.needs is not Needs.SUMS:
            raise InputError(
                f"secure = true is not allowed for this {type(algorithm).__name__}: with these settings it needs "
                f"{algorithm.needs.value}, and only sums over clients are seen (docs/secure.md lists all algorithms)"
            )

    def check_weights(self, weights: Tensor, homes: Sequence[str] | None = None) -> None:
        """Raise where sums with these weights, `[R, m]`, all over the same replies, show too much of one of them.

        `homes`: the node of each client, where clients of one node are added up first; then nodes are what is shown.
        """
        most = float(visible(weights, homes).max()) if weights.shape[1] else 0.0
        if most > self.share:
            whom = "clients" if homes is None else f"clients of {len(set(homes))} nodes"
            raise InputError(
                f"secure = true: sums over {weights.shape[1]} {whom} would show {most:.3f} of what one of them sent, "
                f"more than secure.share = {self.share:g}: ask more clients, or ones of more equal sizes"
            )


def visible(weights: Tensor, homes: Sequence[str] | None = None) -> Tensor:
    """Return how much sums with weights `[R, m]` show of each of m replies, from 0 to 1.

    It is the leverage: the share of the variance of one reply that is explained by the sums, where replies are
    independent and alike. 1 for a reply that can be computed from them. With `homes`, the node of each client, it is
    that of the combination of a node's replies of which most is shown, for each client.

    >>> import torch
    >>> visible(torch.tensor([[1.0, 1, 1, 1]])).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    import torch

    used = weights.double()
    if not used.numel():
        return used.new_zeros(used.shape[1])
    _, s, v = torch.linalg.svd(used, full_matrices=False)
    kept = v[s > 1e-12 * s.max().clamp(min=torch.finfo(torch.float64).tiny)]
    if homes is None or not len(kept):
        return kept.square().sum(0)
    each = {home: [k for k, one in enumerate(homes) if one == home] for home in set(homes)}
    most = {home: torch.linalg.matrix_norm(kept[:, rows], 2).square() for home, rows in each.items()}
    return torch.stack([most[home] for home in homes])
