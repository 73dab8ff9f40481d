"""From values to places on a panel, and the ticks between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SMALLEST = 1e-300
"""The least value that a logarithmic scale shows: below it quotients of floats underflow."""


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` onto `start` to `end`, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; NaN where a logarithmic scale has none."""
        if self.log:
            if value < SMALLEST:
                return math.nan
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Round values inside, about `about` of them."""
        return log_ticks(self.low, self.high) if self.log else even_ticks(self.low, self.high, about)


def fitted(
    values: Sequence[float], start: float, end: float, *, log: bool = False, low: float | None = None,
    high: float | None = None, zero: bool = False,
) -> Scale:  # fmt: skip
    """A scale that shows all values with a little room, between the limits that are given."""
    known = [v for v in values if math.isfinite(v) and (v >= SMALLEST or not log)]
    if zero:
        known.append(0.0)
    least, most = min(known, default=1.0 if log else 0.0), max(known, default=1.0)
    if log:
        room = (most / least) ** 0.06 if most > least else 2.0
        return Scale(low or least / room, high or most * room, start, end, log=True)
    room = 0.04 * (most - least) or abs(most) * 0.1 or 1.0
    below, above = (0.0 if zero and least == 0 else least - room), most + room
    return Scale(below if low is None else low, above if high is None else high, start, end)


def even_ticks(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten.

    >>> even_ticks(0, 50, 5)
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    """
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + i) * step, 12) for i in range(count)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and their multiples by 2 and 5 where there are few.

    >>> log_ticks(1, 300)
    [1.0, 10.0, 100.0]
    >>> log_ticks(8, 90)
    [10.0, 20.0, 50.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)

    def inside(multiples: Sequence[int]) -> list[float]:
        found = [m * 10.0**p for p in powers for m in multiples]
        return [v for v in found if low * 0.999 <= v <= high * 1.001]

    tens = inside((1,))
    if len(tens) > 7:
        return tens[:: math.ceil(len(tens) / 6)]
    if len(tens) >= 3:
        return tens
    finer = inside((1, 2, 5))
    return finer if len(finer) >= 2 else even_ticks(low, high, 4)


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """All with the same number of digits, thousands as k and millions as M.

    >>> tick_labels([0.0, 20000.0, 40000.0])
    ['0', '20 k', '40 k']
    >>> tick_labels([0.0, 0.25, 0.5])
    ['0', '0.25', '0.50']
    >>> tick_labels([1.0, 10.0, 100.0])
    ['1', '10', '100']
    """
    most = max((abs(t) for t in ticks), default=0.0)
    unit, suffix = (
        (1e9, " G") if most >= 1e10 else (1e6, " M") if most >= 1e7 else (1e3, " k") if most >= 1e4 else (1, "")
    )
    scaled = [t / unit for t in ticks]
    if most / unit < 1e-4 and most > 0:
        return [f"{t:.0e}" if t else "0" for t in scaled]
    steps = [abs(t) for t in scaled if t]
    wide = bool(steps) and max(steps) / min(steps) >= 100  # powers of ten: each its own digits
    places = max((_places(t) for t in scaled), default=0)
    return ["0" if t == 0 else f"{t:,.{_places(t) if wide else places}f}{suffix}" for t in scaled]


def _places(value: float) -> int:
    """Digits behind the point that a round value needs."""
    return next((n for n in range(7) if abs(round(value, n) - value) <= 1e-9 * max(1.0, abs(value))), 6)
