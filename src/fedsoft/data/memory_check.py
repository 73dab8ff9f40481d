"""Whether clients that are to be drawn would fit into memory."""

from __future__ import annotations

from fedsoft.errors import SettingError
from fedsoft.machine.resources import lacking

ABSURD = 10**18  # of anything
CLIENT_BYTES = 1000  # of memory for a client besides its points


def check_counts(
    owner: str, *, clients: int, points: tuple[int, int], held_out: float, sources: int, tests: int, point: int,
    may_be_on_disk: bool = False,
) -> bool:  # fmt: skip
    """Raise InputError for clients that would not fit into memory, before any is drawn; `point`: the bytes of one.

    `tests`: the test points of each source. Return whether inputs should be kept on disk: where they may be, and would
    take more than half of the memory.
    """
    low, high = points
    if low > high:
        raise SettingError(owner, "points", [low, high], "should be [smallest, largest]")
    n, mean, S, t, b = (float(min(value, ABSURD)) for value in (clients, (low + high) // 2, sources, tests, point))
    drawn = n * mean * (1 + min(held_out, ABSURD))
    small = n * (CLIENT_BYTES + 24 * S) + S * t * (2 * b + 16) + 16 * drawn
    on_disk = may_be_on_disk and lacking(2 * (small + 2 * b * drawn)) is not None
    tested = f", and {tests} test points" if tests else ""
    if (reason := lacking(small + (0 if on_disk else 2 * b * drawn))) is not None:
        scope = f"with points = [{low}, {high}] of {point} bytes{tested} from {sources} sources"
        raise SettingError(owner, "clients", clients, reason, scope)
    return on_disk
