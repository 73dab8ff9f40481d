"""Centers that too few clients use to be published (`privacy.floor`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from fedsoft.evaluation.values import MetricScores, Scores
from fedsoft.runs.spec import RunSpec
from fedsoft.safety.privacy import below, why_withheld
from fedsoft.training.records import RoundRecord


def withheld_centers(spec: RunSpec, records: Sequence[RoundRecord]) -> dict[int, str]:
    """Return the centers that are not published, and why."""
    floor, used = spec.privacy.floor if spec.privacy else 0.0, records[-1].effective if records else []
    return {s: why_withheld(s, count, floor) for s, count in below(floor, used).items()}


def without_centers(scores: Scores, hidden: Collection[int]) -> Scores:
    """Return the same scores with nothing about these centers."""
    if not hidden:
        return scores
    centers = [[math.nan] * len(row) if s in hidden else row for s, row in enumerate(scores.centers or [])]
    served = [replace(use, on_own=None, on_all=math.nan) if s in hidden else use
              for s, use in enumerate(scores.served or [])]  # fmt: skip
    metrics = {name: _without(found, hidden) for name, found in scores.metrics.items()}
    return replace(scores, centers=centers or scores.centers, served=served or scores.served, metrics=metrics)


def _without(found: MetricScores, hidden: Collection[int]) -> MetricScores:
    centers = [[None] * len(row) if s in hidden else row for s, row in enumerate(found.centers or [])]
    on_all, on_own = ([None if s in hidden else value for s, value in enumerate(values or [])]
                      for values in (found.on_all, found.on_own))  # fmt: skip
    return replace(
        found, centers=centers or found.centers, on_all=on_all or found.on_all, on_own=on_own or found.on_own
    )
