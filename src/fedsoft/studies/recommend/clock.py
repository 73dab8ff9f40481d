"""A budget of seconds, spent evenly: what was measured before counts, so that a study that goes on has no more time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fedsoft.errors import InputError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
AFTER = 2.0  # trials of each candidate that have to follow its tuning: trained on all points, and newcomers


def seconds_of(text: str) -> float:
    """Return a time such as 10m in seconds.

    >>> seconds_of("10m"), seconds_of("1.5h"), seconds_of("90s")
    (600.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*([smh])", text.strip())
    if found is None or not float(found[1]):
        raise InputError(f"--budget '{text}' is not allowed: should be a time such as 90s, 10m or 1.5h")
    return float(found[1]) * UNITS[found[2]]


@dataclass
class Clock:
    """What was spent, by whom.

    Arguments:
        budget: seconds; None for as many as it takes.
        spent: seconds of each spender.
        last: what its last trial took.
    """

    budget: float | None = None
    spent: dict[tuple[int, str], float] = field(default_factory=dict)
    last: dict[tuple[int, str], float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.spent.values())

    def count(self, who: tuple[int, str], seconds: float) -> None:
        self.spent[who] = self.spent.get(who, 0.0) + seconds
        self.last[who] = seconds

    def expected(self, who: tuple[int, str]) -> float:
        """Return what a trial is expected to take: as long as the last one, or as those of others on average."""
        known = [seconds for seconds in self.last.values() if seconds]
        return self.last.get(who, sum(known) / len(known) if known else 0.0)

    def allows(self, who: tuple[int, str], times: float = 1.0) -> bool:
        """Whether there is time for `times` further trials, and for what has to follow."""
        begins = 0.0 if who in self.last else self.expected(who)
        return self.fits(times * self.expected(who) + AFTER * begins)

    def fits(self, seconds: float) -> bool:
        """Whether there is so much time beside what has to follow the tuning."""
        return self.budget is None or self.total + seconds + AFTER * sum(self.last.values()) <= self.budget
