"""Log the rounds of a run in its folder, and save its state."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.engine.base import Engine
from fedsoft.errors import StoreError
from fedsoft.machine.threads import one_thread
from fedsoft.runs.folder import Checkpoint, RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.storage.tensorfile import in_blocks
from fedsoft.training import RoundRecord, Run
from fedsoft.training.callbacks import EarlyStopping

SAVING_SHARE = 0.1  # of the time may go into saving; small states are then saved after every round


def restored(point: Checkpoint | None, engine: Engine) -> tuple[State, int]:
    """Return a saved state, or the first one, and after how many rounds it was saved."""
    if point is None:
        with torch.no_grad(), one_thread():
            return engine.start(), 0
    check_state(point, engine, len(engine.names))
    if engine.at_hand:  # else clients' states stayed at the nodes of a federation
        engine.restore(in_blocks(point.client_states))
    on_device = {name: value.to(engine.device) for name, value in point.state.tensors().items()}
    return State.from_tensors(on_device), point.rounds


def check_state(point: Checkpoint, engine: Engine, clients: int) -> None:
    """Raise for a state of the server that does not fit the model or the number of clients."""
    centers, u, size = point.state.centers, point.state.mixture, engine.model.size
    if centers.ndim != 2 or centers.shape[1] != size or centers.dtype != engine.dtype:
        raise StoreError(f"the saved centers do not fit this run: should be {size} numbers of {engine.dtype} each")
    if u is not None and (u.shape != (clients, len(centers)) or not u.is_floating_point()):
        raise StoreError(f"the saved mixtures do not fit this run: should be {clients} x {len(centers)} numbers")
    if any(not value.ndim or len(value) != clients for value in point.state.per_client.values()):
        raise StoreError(f"the saved state does not fit this run: should have {clients} rows for its clients")


@dataclass
class Saving:
    """Logs the rounds of a run, and saves its state: after every round while that is cheap, else less often.

    Arguments:
        folder, run: what is saved, and where.
        keep: number of rounds between states that are kept.
        saved: rounds in the saved state.
        rule: keeps the state of the best round, where that is to be given back.
    """

    folder: RunFolder
    run: Run
    keep: int | None
    saved: int
    rule: EarlyStopping | None = None
    cost: float = 0.0  # seconds that saving took
    last: float = field(default_factory=time.perf_counter)

    @staticmethod
    def resumed(
        folder: RunFolder, federation: Federation, engine: Engine, options: RunOptions, rule: EarlyStopping | None
    ) -> Saving:
        """Go on from the last good state."""
        found = folder.states.last_good()
        if found.said:
            options.say(found.said)
            folder.put_aside(found)
        state, done = restored(found.point, engine)
        run = Run(federation, engine, state, folder.log.cut(done))
        rule = rule if rule is not None and rule.restore else None
        # Even a run of no rounds saves its initial weights.
        return Saving(folder, run, options.keep or folder.info.keep, run.rounds if found.is_last else -1, rule)

    def add(self, record: RoundRecord) -> None:
        """Log a round; save its state where that is cheap, or where it has to be kept."""
        before = self._best()
        self.folder.log.append(record)
        self.run.history.append(record)
        cheap = time.perf_counter() - self.last >= self.cost / SAVING_SHARE
        if self.run.engine.saves_every_round or cheap or self._kept():
            self.save()
        if before is not None and before != self._best() and not self._is_due(before):
            self.folder.drop(before)

    def save(self) -> None:
        """Save the state, unless that was done."""
        run = self.run
        if self.saved == run.rounds:
            return
        began = time.perf_counter()
        self.folder.save(Checkpoint(run.rounds, run.state, run.engine.client_states), keep=self._kept())
        self.saved, self.last = run.rounds, time.perf_counter()
        self.cost = self.last - began

    def go_to_best(self) -> None:
        """Take the run back to its best round, where that is asked for; what is saved of the last one stays."""
        best = self._best()
        if best is not None and best != self.run.rounds:
            self.run.state, self.run.at = restored(self.folder.checkpoint(best), self.run.engine)

    def _best(self) -> int | None:
        return None if self.rule is None else self.rule.best(self.run)

    def _kept(self) -> bool:
        return self._is_due(self.run.rounds) or (self.rule is not None and self._best() == self.run.rounds)

    def _is_due(self, rounds: int) -> bool:
        return bool(self.keep and rounds and rounds % self.keep == 0)
