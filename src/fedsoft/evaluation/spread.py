"""A number per client, summed up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Directed(Protocol):
    """A metric, as far as its direction matters."""

    @property
    def higher_is_better(self) -> bool: ...


@dataclass(frozen=True)
class Spread:
    """A number per client, summed up.

    Arguments:
        mean, median: over clients.
        worst_decile: the mean over the tenth of clients that fare worst.
        clients: how many have a value.
        std: the standard deviation over clients.
        worst_points: how many points that tenth of clients has together; None where that is not known.
    """

    mean: float
    median: float
    worst_decile: float
    clients: int
    std: float = 0.0
    worst_points: int | None = field(default=None, compare=False)  # the same spread may rest on unknown points

    @property
    def worst_clients(self) -> int:
        """How many clients the worst decile is."""
        return max(1, round(self.clients / 10))

    @staticmethod
    def of(values: Tensor, metric: Directed, sizes: Tensor | None = None) -> Spread | None:
        """Of the clients that have a value (NaN: none); `sizes`: how many points each value rests on."""
        import numpy as np

        found = values.double().cpu().numpy()
        there = ~np.isnan(found)
        kept = found[there]
        if not len(kept):
            return None
        order = np.argsort(kept, kind="stable")
        kept = kept[order]
        tenth = max(1, round(len(kept) / 10))
        worst = slice(0, tenth) if metric.higher_is_better else slice(len(kept) - tenth, None)
        points = None
        if sizes is not None:
            points = int(sizes.cpu().numpy()[there][order][worst].sum())
        return Spread(
            float(kept.mean()), float(np.median(kept)), float(kept[worst].mean()), len(kept), float(kept.std()),
            points,
        )  # fmt: skip


@dataclass(frozen=True)
class Yardstick:
    """How a constant predictor fares on the clients' points.

    Arguments:
        name: what it predicts: `own majority class`, `overall mean`.
        train, held_out: over clients.
    """

    name: str
    train: Spread | None
    held_out: Spread | None
