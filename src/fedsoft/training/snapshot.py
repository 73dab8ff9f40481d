"""The state of a run in memory, to go back to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.engine.base import Engine
from fedsoft.engine.client_store import Budget, ClientStore
from fedsoft.machine.resources import memory_size
from fedsoft.storage.tensorfile import in_blocks
from fedsoft.training.run import Run


@dataclass(frozen=True)
class Snapshot:
    """A copy of what server and clients know after `rounds` rounds."""

    rounds: int
    state: State
    clients: ClientStore | None

    @staticmethod
    def of(run: Run) -> Snapshot:
        tensors = {name: value.clone() for name, value in run.state.tensors().items()}
        return Snapshot(run.at_round, State.from_tensors(tensors), copied(run.engine))

    def without_clients(self) -> Snapshot:
        """Return the same without what clients know, which may be large."""
        return replace(self, clients=None)

    def into(self, engine: Engine) -> State:
        """Give the clients of an engine their states; return that of the server, on the engine's device."""
        assert self.clients is not None
        engine.restore(in_blocks(self.clients))
        return State.from_tensors({name: value.to(engine.device) for name, value in self.state.tensors().items()})

    def restore(self, run: Run) -> None:
        """Take a run back; its history stays."""
        run.state, run.at = self.into(run.engine), self.rounds

    def moved(self, names: tuple[str, ...], engine: Engine, federation: Federation) -> Snapshot:
        """Return the same for the clients of another federation, found by their names.

        Those that stay keep what they know. New ones start as `init_client` and `init` say, with even shares of the
        centers until the next estimation; those that are gone are dropped.

        Arguments:
            names: of the clients as they are here.
            engine: of the other federation; its clients are given their initial states.
            federation: the other one.
        """
        fresh, rows = engine.start(), {name: k for k, name in enumerate(names)}
        stay = np.array([k for k, name in enumerate(federation.names) if name in rows], dtype=np.int64)
        old = np.array([rows[federation.names[k]] for k in stay], dtype=np.int64)
        return Snapshot(self.rounds, _moved(self.state, fresh, stay, old), self._clients(engine, stay, old))

    def _clients(self, engine: Engine, stay: np.ndarray, old: np.ndarray) -> ClientStore:
        assert self.clients is not None
        clients = copied(engine)
        for name in clients:
            step = max(1, clients.forms[name].rows and _rows_at_once(clients, name))
            for begin in range(0, len(stay), step):
                part = slice(begin, begin + step)
                clients.put(stay[part], self.clients.take(old[part], [name]))
        return clients


def copied(engine: Engine) -> ClientStore:
    """Return a copy of what clients know, in memory as far as half of what is free."""
    store = ClientStore(len(engine.names), Budget(memory_size(None)))
    store.fill(in_blocks(engine.client_states))
    return store


def _rows_at_once(store: ClientStore, name: str) -> int:
    return next((end - begin for begin, end in store.forms[name].spans()), 1)


def _moved(old: State, fresh: State, stay: np.ndarray, rows: np.ndarray) -> State:
    """Return the server's state for other clients: of entries that `init` does not know, nothing is kept."""
    u = old.mixture
    if u is not None:  # algorithms may have made more centers than they began with
        even = u.new_full((len(fresh.u), u.shape[1]), 1 / u.shape[1])
        begun = fresh.u.to(u) if fresh.mixture is not None and fresh.u.shape[1] == u.shape[1] else even
        u = begun.index_copy(0, _ids(stay), u[_ids(rows)])
    per_client = {
        name: value.to(old.per_client[name]).index_copy(0, _ids(stay), old.per_client[name][_ids(rows)])
        for name, value in fresh.per_client.items()
    }
    return State(old.centers, u, per_client, old.extra)


def _ids(rows: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(rows)
