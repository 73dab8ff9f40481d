"""How long it will take: the rounds that are left of every run, at the measured pace of its method."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fedsoft.runs.spec import RunSpec

SOON = 3.0  # seconds after which a pace is that of this machine

T = TypeVar("T")


def method_of(spec: RunSpec) -> str:
    """The same for runs whose rounds cost the same: all but seeds and the end of a run counts."""
    return replace(spec, seed=0, rounds=0, work=None, bytes=None).hash


def in_turns(specs: Mapping[T, RunSpec]) -> dict[T, RunSpec]:
    """The same runs, one of every method before the second of any: soon the pace of all is known."""
    seen: dict[str, int] = {}
    turn: dict[T, int] = {}
    for key, spec in specs.items():
        turn[key] = seen.get(method_of(spec), 0)
        seen[method_of(spec)] = turn[key] + 1
    return {key: specs[key] for key in sorted(specs, key=lambda key: turn[key])}


class Log:
    """What the log of a run tells; only what is new in it is read again."""

    def __init__(self, path: Path, spec: RunSpec) -> None:
        self.path, self.spec, self.method = path / "rounds.jsonl", spec, method_of(spec)
        self.end = self.rounds = self.work = self.bytes = 0
        self.first = self.seconds = 0.0  # of the first round, and of all

    def look(self) -> None:
        """Read what was written since."""
        try:
            size = self.path.stat().st_size
            if size < self.end:  # taken up from an earlier state
                self.__init__(self.path.parent, self.spec)
            if size == self.end:
                return
            with self.path.open("rb") as file:
                file.seek(self.end)
                *lines, _ = file.read().split(b"\n")
        except OSError:
            return
        for line in lines:
            self.end += len(line) + 1
            try:
                record = json.loads(line)
                seconds, work = float(record["seconds"]), int(record["gradients"])
                sent = int(record["bytes_down"]) + int(record["bytes_up"])
            except (ValueError, TypeError, KeyError):  # damaged: the run itself will complain
                continue
            self.first = self.first if self.rounds else seconds
            self.seconds, self.rounds = self.seconds + seconds, self.rounds + 1
            self.work, self.bytes = self.work + work, self.bytes + sent


@dataclass(frozen=True)
class Rate:
    """What a round of a method takes, as measured."""

    seconds: float
    work: float
    bytes: float

    @staticmethod
    def of(logs: Sequence[Log]) -> Rate | None:
        """Over all rounds that were played; None before the first. First rounds count where there are no others."""
        rounds = sum(log.rounds for log in logs)
        if not rounds:
            return None
        later = sum(max(log.rounds - 1, 0) for log in logs)  # in a first one things are compiled
        seconds = sum(log.seconds - log.first for log in logs) / later if later else _mean(logs, rounds)
        return Rate(seconds, sum(log.work for log in logs) / rounds, sum(log.bytes for log in logs) / rounds)

    def rounds_left(self, log: Log) -> float:
        """How many rounds are left of a run: those it has, or what its budget allows."""
        left = float(max(log.spec.rounds - log.rounds, 0))
        budgets = ((log.spec.work, log.work, self.work), (log.spec.bytes, log.bytes, self.bytes))
        for allowed, spent, each in budgets:
            if allowed is not None and each > 0:
                left = min(left, math.floor(max(allowed - spent, 0) / each))
        return left


def _mean(logs: Sequence[Log], rounds: int) -> float:
    return sum(log.seconds for log in logs) / rounds


class Pace:
    """The seconds that are left of some runs, so many at a time; None while there is no ground to tell.

    There is none before a round of every method that is left was played, and for a few seconds after the first.
    """

    def __init__(self, jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.jobs, self.clock = jobs, clock
        self.before: float | None = None  # the seconds in the logs when it was asked first
        self.began: float | None = None  # when the first round after that was seen
        self.most = 0  # that ran at once

    def left(self, logs: Sequence[Log], open_: Sequence[Log]) -> float | None:
        """`logs`: of all runs, those `open_` are not over."""
        played = sum(log.seconds for log in logs)
        self.before = played if self.before is None else self.before
        if played > self.before and self.began is None:
            self.began, self.before = self.clock(), played
        self.most = max(self.most, min(self.jobs, len(open_)))
        if not open_:
            return 0.0
        rates = {log.method: Rate.of([one for one in logs if one.method == log.method]) for log in open_}
        elapsed = 0.0 if self.began is None else self.clock() - self.began
        if elapsed < SOON or played <= self.before:
            return None
        each = []
        for log in open_:
            rate = rates[log.method]
            if rate is None:
                return None
            each.append(rate.seconds * rate.rounds_left(log))
        # Scoring and saving are not in the log: they are what the time that passed has beyond it.
        beyond = max(1.0, elapsed * self.most / (played - self.before))
        return beyond * max(max(each), sum(each) / min(self.jobs, len(open_)))
