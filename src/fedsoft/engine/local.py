"""The engine for one process: all clients of a federation as rows of stacked tensors here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from typing_extensions import override

from fedsoft.core.client_data import ClientData
from fedsoft.core.contract import State, Training
from fedsoft.core.federation import Federation
from fedsoft.core.replies import Answer, Ids, Reply
from fedsoft.engine.base import Engine
from fedsoft.engine.client_host import ClientHost, Ticket
from fedsoft.engine.client_store import ClientStore
from fedsoft.engine.resources import Resources
from fedsoft.safety.conditions import Conditions
from fedsoft.storage.tensorfile import Blocks


class LocalEngine(Engine):
    """All clients of a federation in this process. For arguments see `Engine`."""

    def __init__(
        self, training: Training, federation: Federation, conditions: Conditions | None = None,
        resources: Resources | None = None,
    ) -> None:  # fmt: skip
        super().__init__(training, federation, conditions, resources)
        earlier = None if federation.before is None else (federation.before, federation.change_at)
        self.host = ClientHost(
            training, federation.train, self.named, conditions=self.conditions, resources=resources,
            before=earlier, secret=self.secret,
        )  # fmt: skip

    @property
    @override
    def client_states(self) -> ClientStore:
        return self.host.client_states

    @override
    def send(self, job: str, ids: Ids, each: Reply, shared: Mapping[str, Tensor]) -> Answer:
        cost, replies, facts, released = self.host.run_job(job, ids, each, shared, Ticket(self.t, self.asks))
        self.cost, self.released = self.cost + cost, self.released.plus(released)
        return self.accepted(ids, facts, {name: replies.column(name) for name in replies})

    @override
    def use_folder(self, folder: Path) -> None:
        self.host.scratch = folder

    @override
    def init_clients(self) -> None:
        self.host.init_clients()

    @override
    def restore(self, saved: Blocks) -> None:
        self.host.restore(saved)

    @override
    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        self.reach_clients()
        return self.host.personal_scores(state, data)

    @override
    def personal_predictions(self, state: State, data: ClientData) -> Tensor:
        self.reach_clients()
        return self.host.personal_predictions(state, data)

    @override
    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        self.reach_clients()
        return self.host.predict_for(k, x, state)
