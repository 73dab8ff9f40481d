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


def part_of(threshold: float, count: int) -> int:
    """Return how many of `count` are a share above 1/2: more than half, so that two groups have some in common.

    >>> part_of(2 / 3, 9), part_of(0.5000000001, 4)
    (6, 3)
    """
    return max(LEAST, math.ceil(threshold * count - 1e-9), count // 2 + 1)


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
        return part_of(self.threshold, asked)

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
        from fedsoft.secure.leverage import visible

        most = float(visible(weights, homes).max()) if weights.shape[1] else 0.0
        if most > self.share:
            whom = "clients" if homes is None else f"clients of {len(set(homes))} nodes"
            raise InputError(
                f"secure = true: sums over {weights.shape[1]} {whom} would show {most:.3f} of what one of them sent, "
                f"more than secure.share = {self.share:g}: ask more clients, or ones of more equal sizes"
            )
