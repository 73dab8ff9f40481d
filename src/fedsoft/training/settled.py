"""Whether a run has come to rest: runs that were stopped while they still improve are not to be compared."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedsoft.training.records import RoundRecord

LEAST = 8  # scored rounds before anything can be said
STILL = 0.05  # share of all that a run has gained which it gained in its last quarter
MATTERS = 0.01  # of the metric itself; smaller gains do not matter


def settled(records: Sequence[RoundRecord], higher_is_better: bool) -> bool | None:
    """Return whether the centers no longer improve at the end of a run; None where too few rounds were scored.

    The mean over the last quarter of the scored rounds is compared with the mean over the quarter before.
    """
    course = [value for value in map(_quality, records) if value is not None]
    return at_rest(course, higher_is_better)


def at_rest(course: Sequence[float], higher_is_better: bool) -> bool | None:
    """Return whether values no longer improve at the end; None where there are too few of them."""
    if len(course) < LEAST:
        return None
    sign, quarter = 1 if higher_is_better else -1, len(course) // 4
    before, last = statistics.fmean(course[-2 * quarter : -quarter]), statistics.fmean(course[-quarter:])
    gain, whole = sign * (last - before), abs(last - course[0])
    return not (gain > STILL * whole and gain > MATTERS * abs(last))


def _quality(record: RoundRecord) -> float | None:
    """Return the metric of the centers after a round, on the sources or on the clients whose largest part each is."""
    own = [use.on_own for use in record.served if use.on_own is not None]
    values = record.best or own
    return statistics.fmean(values) if values else None
