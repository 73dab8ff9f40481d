"""What anybody could predict without looking at the inputs: one value for all points of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedsoft.core.client_data import ClientData, Task
from fedsoft.core.client_metrics import Judged
from fedsoft.core.federation import Federation
from fedsoft.evaluation.spread import Directed, Spread, Yardstick

WORDS: dict[Task, str] = {"regression": "mean", "classification": "majority class", "multilabel": "majority"}


def yardsticks(federation: Federation, metric: Directed, values: Callable[[Judged], Tensor]) -> list[Yardstick]:
    """Score the constants of each client's own training targets, and of all; none where the points are elsewhere."""
    if not len(federation.train.y):
        return []
    found = []
    for name, constant in constants(federation):
        spreads = [
            Spread.of(values(judged_as(data, constant)), metric, data.sizes)
            for data in (federation.train, federation.held_out)
        ]
        found.append(Yardstick(name, *spreads))
    return found


def judged_as(data: ClientData, constant: Tensor) -> Judged:
    """Return clients' points beside a constant prediction, a row for each client."""
    return Judged(data.y[data.points], constant[data.owners], data.owners, len(data))


def constants(federation: Federation) -> Iterator[tuple[str, Tensor]]:
    """Yield constant predictions, a row for each client: means of targets, or the share of each class."""
    train, shape = federation.train, federation.shape
    y = train.y[train.points]
    if shape.task == "classification":
        none = torch.zeros(len(train), shape.outputs, dtype=torch.float64)
        judged = Judged(y, none, train.owners, len(train))
        counts = judged.tally(y, shape.outputs)
    else:
        counts = Judged(y, y, train.owners, len(train)).sums(y)
    sizes = train.sizes.double().view(-1, *[1] * (counts.ndim - 1))
    total = counts.sum(0) / sizes.sum()
    yield f"own {WORDS[shape.task]}", torch.where(sizes > 0, counts / sizes, total)
    yield f"overall {WORDS[shape.task]}", total.expand_as(counts)
