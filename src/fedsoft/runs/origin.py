"""A saved run that goes on in a folder of its own: with more rounds, or with other clients."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedsoft.core.federation import Federation
from fedsoft.core.scaling import Scale
from fedsoft.engine.base import Engine
from fedsoft.engine.client_store import Budget, ClientStore
from fedsoft.errors import InputError, StoreError
from fedsoft.machine.resources import memory_size
from fedsoft.machine.threads import one_thread
from fedsoft.runs.folder import Begun, Checkpoint, RunFolder
from fedsoft.runs.info import Parent
from fedsoft.runs.run_options import moved
from fedsoft.runs.saving import check_state
from fedsoft.runs.spec import RunSpec
from fedsoft.storage.tensorfile import in_blocks
from fedsoft.training.membership import check_same_kind, membership
from fedsoft.training.records import RoundRecord
from fedsoft.training.snapshot import Snapshot


@dataclass(frozen=True)
class Origin:
    """A saved run, from which another one goes on. It stays as it is.

    Arguments:
        folder: of the run.
        joins: whether the clients may be others than it began with.
    """

    folder: RunFolder
    joins: bool = False

    @property
    def scale(self) -> Scale | None:
        """The scale of inputs that the run's models know, for other clients."""
        return self.folder.data.scale if self.joins else None

    def spec(self, rounds: int | None, data: Path | None = None, allow: Collection[str] = ()) -> RunSpec:
        """Return the run that goes on; raises where it would play no round.

        With more rounds it is the run that had them from the start, and so is its name. With other clients its hash
        depends on the run that it continues.
        """
        folder, spec = self.folder, self.folder.spec(allow)
        if folder.at_nodes:
            raise InputError(f"the clients of run '{folder.name}' keep their state at nodes: it cannot go on from here")
        if (problem := folder.diverged) is not None:
            raise InputError(f"run '{folder.name}' diverged, and would again: {problem}")
        done, total = len(folder.records()), spec.rounds if rounds is None else rounds
        if total <= done:
            raise InputError(
                f"rounds = {total} is not allowed: run '{folder.name}' has played {done}, should be more (--rounds)"
            )
        outcome = folder.outcome()
        if outcome is not None and outcome.ended_by and not self.joins:
            raise InputError(
                f"{outcome.ended_by} ended run '{folder.name}' after round {done}, and would again with more rounds: "
                "run it with another early_stopping.patience"
            )
        spec = replace(spec, rounds=total)
        if not self.joins:
            return spec
        return replace(spec if data is None else moved(spec, data), parent=f"{folder.info.hash} after round {done}")

    def begin(
        self, federation: Federation, engine: Engine, say: Callable[[str], object]
    ) -> tuple[Begun | None, Parent]:
        """Return what the new run begins with, None for the first round, and who joins and leaves."""
        folder = self.folder
        point, records = self._start(engine, say)
        if point is None:
            return None, Parent(folder.name, folder.info.hash, 0)
        if not self.joins:
            return Begun(records, point), Parent(folder.name, folder.info.hash, point.rounds)
        before = folder.data.federation()
        check_same_kind(before, federation)
        change = membership(before.names, federation.names, point.rounds)
        check_state(point, engine, len(before))
        clients = ClientStore(len(before), Budget(memory_size(None)))
        clients.fill(in_blocks(point.client_states))
        with torch.no_grad(), one_thread():
            snapshot = Snapshot(point.rounds, point.state, clients).moved(before.names, engine, federation)
        assert snapshot.clients is not None
        # How well other clients did is no measure for these.
        records = [replace(record, held_out={}) for record in records]
        begun = Begun(records, Checkpoint(point.rounds, snapshot.state, snapshot.clients))
        return begun, Parent(folder.name, folder.info.hash, point.rounds, change.joined, change.left)

    def _start(self, engine: Engine, say: Callable[[str], object]) -> tuple[Checkpoint | None, list[RoundRecord]]:
        """Return the newest state that a longer run has, too, and the records up to it."""
        folder, found = self.folder, self.folder.states.last_good()
        point = found.point
        if point is None:
            raise StoreError(f"run '{folder.name}' has played no round: go on with 'fedsoft resume {folder.path}'")
        records = folder.log.until(point.rounds)
        if records and records[-1].last and engine.algorithm.closing_tasks(engine.model) and not self.joins:
            name = type(engine.algorithm).__name__
            kept = [rounds for rounds in folder.states.kept if rounds < point.rounds]
            point = folder.checkpoint(kept[-1]) if kept else None
            where = f"round {kept[-1]}, the last state that is kept before it" if kept else "the first round"
            say(f"{name} closes a run with a last round of its own: going on from {where}")
            records = records[: kept[-1]] if kept else []
        return point, [*records[:-1], *(replace(record, last=False) for record in records[-1:])]
