"""One candidate with one seed, while a study is under way."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from fedsoft.studies.recommend.candidates import Candidate
from fedsoft.studies.recommend.measured import TEST, Measured, Task
from fedsoft.studies.recommend.search import Searches, Settings


@dataclass
class Item:
    """One candidate with one seed.

    Arguments:
        search: over its settings, with each local solver.
        asked: yields settings to try, None where its search is over or there is no time for more.
        first: what was measured with the best settings, on the first fold.
        folds: the same on all folds.
        final: on test points.
    """

    candidate: Candidate
    seed: int
    search: Searches
    rounds: int
    asked: Generator[Settings, float] | None = None
    upcoming: Settings | None = None
    cut: bool = False
    settled: bool = False
    problem: str = ""
    first: Measured | None = None
    folds: list[Measured] = field(default_factory=list)
    final: Measured | None = None

    @property
    def failure(self) -> str:
        """Why the settings that were found are of no use: training failed with them on other points."""
        return next((one.problem for one in (*self.folds, self.final) if one is not None and one.problem), "")

    @property
    def who(self) -> tuple[int, str]:
        return self.seed, self.candidate.key

    def advance(self, score: float | None) -> None:
        """Send the score of the last trial; `upcoming` is what to try next, None where all was tried."""
        assert self.asked is not None
        try:
            self.upcoming = next(self.asked) if score is None else self.asked.send(score)
        except StopIteration:
            self.upcoming = None

    @property
    def last_task(self) -> Task:
        """What is trained on all training points and measured on test points."""
        return self.task(TEST, self.search.best, self.rounds)

    def task(self, part: str, settings: Settings, rounds: int) -> Task:
        return Task(candidate=self.candidate.key, seed=self.seed, part=part, settings=settings, rounds=rounds)
