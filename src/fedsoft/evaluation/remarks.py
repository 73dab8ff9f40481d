"""What scores give reason to say: numbers that look better, or worse, than they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedsoft.evaluation.spread import Spread, Yardstick

FEW = 5  # points of a client: a value over so few is mostly chance
GAP = 0.15  # of a share, such as accuracy, by which held-out points may fall behind training points
TIMES = 2.0  # the same for errors
SURE = 2.0  # standard errors of the gap


class Scored(Protocol):
    """Scores, as far as remarks look at them."""

    @property
    def metric(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def personal_train(self) -> Spread | None: ...

    @property
    def personal_held_out(self) -> Spread | None: ...

    @property
    def yardsticks(self) -> Sequence[Yardstick]: ...


@dataclass(frozen=True)
class Remark:
    """A sentence about scores, without a full stop; nothing reads it."""

    subject: str
    text: str


def remarks_on(scores: Scored) -> list[Remark]:
    """Return what to keep in mind when reading scores."""
    found = (_overfitted(scores), _few_points(scores), _worse_than_constant(scores))
    return [remark for remark in found if remark is not None]


def _overfitted(scores: Scored) -> Remark | None:
    train, held_out = scores.personal_train, scores.personal_held_out
    if train is None or held_out is None or not held_out.clients:
        return None
    error = math.hypot(train.std / math.sqrt(train.clients), held_out.std / math.sqrt(held_out.clients))
    gap = train.mean - held_out.mean if scores.higher_is_better else held_out.mean - train.mean
    large = gap > GAP if scores.higher_is_better else held_out.mean > TIMES * train.mean
    if not large or gap <= SURE * error:
        return None
    beside = f"{_text(scores, train)} on training points, {_text(scores, held_out)} on held-out points"
    return Remark(
        "overfitting",
        f"personal models have learned their training points by heart: {beside} (fewer epochs or rounds, weight decay, "
        "or a stronger pull towards the centers)",
    )


def _few_points(scores: Scored) -> Remark | None:
    held_out = scores.personal_held_out
    if held_out is None or held_out.worst_points is None:
        return None
    each = held_out.worst_points / held_out.worst_clients
    if each >= FEW:
        return None
    clients = f"{held_out.worst_clients} client{'s' * (held_out.worst_clients > 1)}"
    return Remark(
        "worst decile",
        f"the worst decile on held-out points rests on {held_out.worst_points} points of {clients}, "
        f"{each:.2g} of each: mostly chance",
    )


def _worse_than_constant(scores: Scored) -> Remark | None:
    held_out = scores.personal_held_out
    known = [(one.name, one.held_out) for one in scores.yardsticks if one.held_out is not None]
    if held_out is None or not known:
        return None
    pick = max if scores.higher_is_better else min
    name, best = pick(known, key=lambda pair: pair[1].mean)
    worse = held_out.mean < best.mean if scores.higher_is_better else held_out.mean > best.mean
    if not worse:
        return None
    return Remark(
        "constant",
        f"personal models ({_text(scores, held_out)} on held-out points) are worse than a constant guess, the {name} "
        f"({_text(scores, best)})",
    )


def _text(scores: Scored, spread: Spread) -> str:
    return f"{spread.mean:.1%}" if "accuracy" in scores.metric else f"{scores.metric} {spread.mean:.4g}"
