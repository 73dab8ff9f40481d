"""Coordinate search over settings: each in turn, wider where the best is at an edge, then the first one again.

A search is a generator: it yields settings to try and is sent their scores, larger is better. So whoever runs trials
decides whose turn it is, and stops where time is up: what was best so far is known at every moment.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Settings = dict[str, Any]
Key = tuple[tuple[str, Any], ...]
WIDER = 4  # how often a range is widened at an edge


@dataclass(frozen=True)
class Range:
    """Values of a setting to try.

    Arguments:
        values: to begin with, ascending.
        factor: between the edge and the value beyond it.
        least: that there can be; a best value there is at no edge.
        most: that is tried.
        whole: whether they are whole numbers.
    """

    values: tuple[float, ...]
    factor: float
    least: float = 0.0
    most: float = math.inf
    whole: bool = False

    def beyond(self, edge: float, up: bool) -> float | None:
        """Return the value beyond an edge; None where there is none."""
        value = edge * self.factor if up else edge / self.factor
        value = round(value) if self.whole else float(f"{value:.3g}")
        value = min(max(value, self.least), self.most)
        return value if value != edge and value > 0 else None


@dataclass
class Search:
    """Settings that were tried for one candidate, and the best of them.

    Arguments:
        ranges: of the settings, in the order in which they are tried.
        fixed: settings that all trials have.
        tried: scores by settings; minus infinity for a trial that failed.
    """

    ranges: Mapping[str, Range]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    best: Settings = field(default_factory=dict)
    score: float = -math.inf
    tried: dict[Key, float] = field(default_factory=dict)
    edges: tuple[str, ...] = ()  # settings whose best value is the smallest or largest of those tried
    done: bool = False

    def __post_init__(self) -> None:
        self.best = {**self.fixed, **{key: _middle(one) for key, one in self.ranges.items()}}

    def begin(self) -> Generator[Settings, float]:
        """Yield the settings in the middle of all ranges; is sent their score."""
        yield from self._try(self.best)

    def trials(self) -> Generator[Settings, float]:
        """Yield settings that were not tried yet; is sent their scores."""
        yield from self.begin()
        for key in self.ranges:
            yield from self._along(key, self.ranges[key].values)
        for key in self.ranges if len(self.ranges) > 1 else ():  # the others have moved since: look at the neighbours
            yield from self._along(key, self._neighbours(key))
        self.edges = tuple(key for key in self.ranges if self._is_edge(key))
        self.done = True

    def _try(self, settings: Settings) -> Generator[Settings, float]:
        name = key_of(settings)
        if name in self.tried:
            return
        score = yield settings
        self.tried[name] = score
        if score > self.score:  # of equals the first
            self.best, self.score = settings, score

    def discard(self) -> None:
        """Take out the best settings, which failed elsewhere: the next best of those tried take their place."""
        self.tried[key_of(self.best)] = -math.inf
        best = max(self.tried, key=self.tried.__getitem__)
        self.best, self.score, self.edges = dict(best), self.tried[best], ()

    def _along(self, key: str, values: tuple[float, ...]) -> Generator[Settings, float]:
        """Try values of one setting, and further ones beyond an edge as long as the best is there."""
        start = dict(self.best)
        for value in values:
            yield from self._try(start | {key: value})
        for _ in range(WIDER):
            if (value := self._beyond(key)) is None:
                return
            yield from self._try(self.best | {key: value})

    def _line(self, key: str) -> list[float]:
        """Return the values of a setting that were tried with the best of all others, ascending."""
        others = {name: value for name, value in self.best.items() if name != key}
        found = [dict(name) for name in self.tried]
        return sorted({one[key] for one in found if {n: v for n, v in one.items() if n != key} == others})

    def _beyond(self, key: str) -> float | None:
        """Return the value beyond the edge at which the best is; None where it is at none."""
        line, best = self._line(key), self.best[key]
        if not math.isfinite(self.score) or best not in (line[0], line[-1]):
            return None
        ups = (True, False) if len(line) == 1 else (best == line[-1],)
        return next((value for up in ups if (value := self.ranges[key].beyond(best, up)) is not None), None)

    def _is_edge(self, key: str) -> bool:
        """Return whether more could be tried: beyond an edge, or above the largest value that is allowed here."""
        return self._beyond(key) is not None or self.best[key] == self.ranges[key].most

    def _neighbours(self, key: str) -> tuple[float, ...]:
        """Return the values on either side of the best."""
        best, one = self.best[key], self.ranges[key]
        found = [one.beyond(best, up) for up in (False, True)]
        return tuple(value for value in found if value is not None)


@dataclass
class Searches:
    """Several searches for one candidate, such as one for each local solver; the best of all is what they find.

    Each is given its first trial before any goes on, the one that did best first.
    """

    searches: Sequence[Search]

    def trials(self) -> Generator[Settings, float]:
        """Yield settings that were not tried yet; is sent their scores."""
        for one in self.searches:
            yield from one.begin()
        for one in sorted(self.searches, key=lambda one: -one.score):
            yield from one.trials()

    def discard(self) -> None:
        """Take out the best settings, see `Search.discard`."""
        self._leading.discard()

    @property
    def _leading(self) -> Search:
        return max(self.searches, key=lambda one: one.score)

    @property
    def best(self) -> Settings:
        return self._leading.best

    @property
    def score(self) -> float:
        return self._leading.score

    @property
    def edges(self) -> tuple[str, ...]:
        return self._leading.edges

    @property
    def tried(self) -> dict[Key, float]:
        return {key: score for one in self.searches for key, score in one.tried.items()}

    @property
    def done(self) -> bool:
        return all(one.done for one in self.searches)


def _middle(one: Range) -> float:
    return one.values[(len(one.values) - 1) // 2]


def key_of(settings: Mapping[str, Any]) -> Key:
    """Return settings as something to find them by, whatever their order.

    >>> key_of({"solver.lr": 0.1, "S": 2})
    (('S', 2), ('solver.lr', 0.1))
    """
    return tuple(sorted(settings.items()))
