"""The best round of a run, kept and given back."""

from __future__ import annotations

from fedsoft.training.callbacks.base import Callback
from fedsoft.training.callbacks.early_stopping import EarlyStopping
from fedsoft.training.records import RoundRecord
from fedsoft.training.run import Run
from fedsoft.training.snapshot import Snapshot


class BestRound(Callback):
    """Give back the round in which clients' personal models were best on held-out points.

    `run.history` has all rounds, `run.at` says which one the run's models are of. The state of the best round so far is
    kept beside the current one: in memory as far as half of what is free, else in a scratch file.

    Arguments:
        metric: the name of a metric, default: that of the model.
        least: by how much a round has to be better.
    """

    def __init__(self, metric: str | None = None, least: float = 0.0) -> None:
        self.rule = EarlyStopping(metric=metric, least=least)
        self.kept: Snapshot | None = None

    @property
    def held_out(self) -> tuple[str | None, ...]:
        return self.rule.held_out

    @property
    def round(self) -> int | None:
        """The best round so far."""
        return None if self.kept is None else self.kept.rounds

    def on_start(self, run: Run, rounds: int) -> None:
        run.engine.reach_clients()
        self.kept = None

    def on_round(self, run: Run, record: RoundRecord) -> None:
        if self.rule.best(run) == record.round:
            self.kept = Snapshot.of(run)

    def on_end(self, run: Run) -> None:
        if self.kept is not None and self.kept.rounds != run.rounds:
            self.kept.restore(run)

    def close(self) -> None:
        self.kept = None if self.kept is None else self.kept.without_clients()
