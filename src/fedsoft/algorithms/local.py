"""Local training: every client on its own."""

from __future__ import annotations

from typing import Any, Literal

from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Algorithm, Ask, PersonalModels, State, job
from fedsoft.core.replies import ClientState, Reply, prefixed, under
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["Local"]


@settings
class Local(Algorithm):
    """Every client trains a model on its own points alone; nothing is ever sent.

    It is the other end from FedAvg: no client gains from any other.

    Maths:

        w_k = local solution of f_k from w_k        for each client k drawn

    There is no center.

    Arguments:
        K: clients that train in a round, or "all".
        optimizer_state: whether the local optimizer's state is `kept` over rounds or `fresh` in each.

    Cost: one task per client drawn; nothing down, nothing up.

    Use it: as the yardstick of personalisation. A method whose personal models do worse than this gains nothing from
        the other clients.

    Avoid it: when clients have few points, and for users who come later: there is nothing to give to them.

    Example:
        >>> Local().optimizer_state
        'kept'

    Reference: the baseline of every paper on personalisation; for instance Mansour, Mohri, Ro, Suresh. Three approaches
        for personalization with applications to federated learning. arXiv 2020.
    """

    K: Participants = "all"
    optimizer_state: Literal["kept", "fresh"] = "kept"

    def init(self, site: Site, clients: int) -> State:
        return State(site.draw("client")[None][:0])

    def init_client(self, site: Site) -> ClientState:
        """Start all clients at one common draw."""
        w = site.draw("client").repeat(len(site), 1)
        return {"w": w, **prefixed("optimizer", site.optimizer_state(w))}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        ids = participants(ask, self.K)
        answer = ask("train", ids)
        return state, {"selected": len(ids), "answered": len(answer.ids)}

    @job()
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Continue from the client's last model."""
        optimizer = under("optimizer", mine) if self.optimizer_state == "kept" else None
        w, optimizer = site.solve(mine["w"], optimizer)
        return mine | {"w": w, **prefixed("optimizer", optimizer)}, {}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        return PersonalModels(mine["w"])
