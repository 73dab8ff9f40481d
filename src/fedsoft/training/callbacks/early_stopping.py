"""Early stopping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedsoft.settings import settings
from fedsoft.training.callbacks.base import Callback

if TYPE_CHECKING:
    from fedsoft.training.records import RoundRecord
    from fedsoft.training.run import Run


@settings
class EarlyStopping(Callback):
    """End a run when its clients' personal models no longer get better on held-out points.

    The mean over clients is measured after every round and is in its record; that is all it is decided by. So a run
    that was stopped and resumed ends in the same round. Sources, mixtures and test sets are never looked at.

    Arguments:
        metric: the name of a metric, default: that of the model (accuracy, or the squared error).
        patience: number of rounds without a better one after which a run ends.
        least: by how much a round has to be better.
        restore: give back the best round instead of the last one; see `BestRound`.
    """

    metric: str | None = None
    patience: Annotated[int, Field(ge=1)] = 5
    least: Annotated[float, Field(ge=0)] = 0.0
    restore: bool = False

    @property
    def held_out(self) -> tuple[str | None, ...]:
        return (self.metric,)

    def on_start(self, run: Run, rounds: int) -> bool:
        return self.is_over(run)

    def on_round(self, run: Run, record: RoundRecord) -> bool:
        return self.is_over(run)

    def best(self, run: Run) -> int | None:
        """Return the best round so far; None where none was measured."""
        from fedsoft.training.held_out import best_round, higher_is_better

        metric = self.metric or run.model.metric.name
        return best_round(run.history, metric, higher_is_better(metric, run.engine, run.federation), self.least)

    def is_over(self, run: Run) -> bool:
        """Return whether there was none better for `patience` rounds."""
        best = self.best(run)
        return best is not None and run.rounds - best >= self.patience
