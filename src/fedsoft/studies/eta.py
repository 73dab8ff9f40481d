"""Time left of several runs: the rounds that are left of each, at the measured pace of its method."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fedsoft.runs.spec import RunSpec
from fedsoft.storage.files import open_regular, parse_json

SOON = 3.0  # seconds after which the pace of this machine is known
AT_ONCE = 2**24  # bytes of a log

T = TypeVar("T")


def method_of(spec: RunSpec) -> str:
    """Return what is the same for runs whose rounds cost the same: seeds and the end of a run do not count."""
    return replace(spec, seed=0, rounds=0, work=None, bytes=None).hash


def interleaved(specs: Mapping[T, RunSpec]) -> dict[T, RunSpec]:
    """Order runs so that every method starts once before any starts twice: soon the pace of all is known."""
    seen: dict[str, int] = {}
    earlier: dict[T, int] = {}  # runs of the same method before this one
    for key, spec in specs.items():
        earlier[key] = seen.get(method_of(spec), 0)
        seen[method_of(spec)] = earlier[key] + 1
    return {key: specs[key] for key in sorted(specs, key=lambda key: earlier[key])}


class RoundLog:
    """Totals over the rounds in the log of a run; every line is read once."""

    def __init__(self, path: Path, spec: RunSpec) -> None:
        self.path, self.spec, self.method = path / "rounds.jsonl", spec, method_of(spec)
        self.end = self.rounds = self.work = self.bytes = 0
        self.first = self.seconds = 0.0  # of the first round, and of all

    def read(self) -> None:
        """Add what was written since the last call."""
        try:
            size = self.path.stat().st_size
            if size < self.end:  # resumed from an earlier state
                self.__init__(self.path.parent, self.spec)
            if size == self.end:
                return
            with os.fdopen(open_regular(self.path), "rb") as file:
                file.seek(self.end)
                *lines, _ = file.read(AT_ONCE).split(b"\n")
        except OSError:
            return
        for line in lines:
            self.end += len(line) + 1
            try:
                record = parse_json(line)
                seconds, work = float(record["seconds"]), int(record["gradients"])
                sent = int(record["bytes_down"]) + int(record["bytes_up"])
            except (ValueError, TypeError, KeyError):  # damaged: the run itself raises
                continue
            self.first = self.first if self.rounds else seconds
            self.seconds, self.rounds = self.seconds + seconds, self.rounds + 1
            self.work, self.bytes = self.work + work, self.bytes + sent


@dataclass(frozen=True)
class RoundCost:
    """What a round of a method takes, as measured."""

    seconds: float
    work: float
    bytes: float

    @staticmethod
    def of(logs: Sequence[RoundLog]) -> RoundCost | None:
        """Return the mean over all rounds; None before the first. First rounds count only where there are no others."""
        rounds = sum(log.rounds for log in logs)
        if not rounds:
            return None
        later = sum(max(log.rounds - 1, 0) for log in logs)  # in the first one kernels are compiled
        seconds = sum(log.seconds - (log.first if later else 0.0) for log in logs) / (later or rounds)
        return RoundCost(seconds, sum(log.work for log in logs) / rounds, sum(log.bytes for log in logs) / rounds)

    def rounds_left(self, log: RoundLog) -> float:
        """Return how many rounds are left of a run: those of its spec, or what its budget allows."""
        left = float(max(log.spec.rounds - log.rounds, 0))
        budgets = ((log.spec.work, log.work, self.work), (log.spec.bytes, log.bytes, self.bytes))
        for allowed, spent, each in budgets:
            if allowed is not None and each > 0:
                left = min(left, math.floor(max(allowed - spent, 0) / each))
        return left


class Eta:
    """The seconds that are left of some runs, `jobs` at a time; None while they cannot be estimated.

    A run is estimated by the measured rounds of its method; before the first of these by `expected`, where given.
    Without that there is no estimate before every method has played a round, and for a few seconds after the first.
    """

    def __init__(
        self, jobs: int, expected: Callable[[RunSpec], float] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.jobs, self.expected, self.clock = jobs, expected, clock
        self.before: float | None = None  # the seconds in the logs at the first call
        self.began: float | None = None  # when the first round after that was seen
        self.most = 0  # runs at once

    def left(self, logs: Sequence[RoundLog], unfinished: Sequence[RoundLog], later: float = 0.0) -> float | None:
        """Estimate from the logs of all runs; runs that start after these are expected to take `later` seconds."""
        played = sum(log.seconds for log in logs)
        self.before = played if self.before is None else self.before
        if played > self.before and self.began is None:
            self.began, self.before = self.clock(), played
        self.most = max(self.most, min(self.jobs, len(unfinished)))
        if not unfinished:
            return later / self.jobs
        elapsed = 0.0 if self.began is None else self.clock() - self.began
        measured = elapsed >= SOON and played > self.before
        if not measured and self.expected is None:
            return None
        methods = {log.method for log in unfinished}
        costs = {method: RoundCost.of([log for log in logs if log.method == method]) for method in methods}
        each = [self._seconds(log, costs[log.method]) for log in unfinished]
        known = [seconds for seconds in each if seconds is not None]
        if len(known) < len(each):
            return None
        # Scoring and saving are not in the log: they are what the time that passed has beyond it.
        beyond = max(1.0, elapsed * self.most / (played - self.before)) if measured else 1.0
        at_once = self.jobs if later else min(self.jobs, len(unfinished))
        return beyond * max(max(known), (sum(known) + later) / at_once)

    def _seconds(self, log: RoundLog, cost: RoundCost | None) -> float | None:
        if cost is not None:
            return cost.seconds * cost.rounds_left(log)
        return None if self.expected is None else self.expected(log.spec)
