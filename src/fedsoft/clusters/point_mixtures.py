"""What FedEM and its relatives share: EM over single points, of which each comes from one of the centers."""

from __future__ import annotations

import abc
from typing import Any, Literal

import torch
from torch import Tensor

from fedsoft.clusters.ensemble import mixed
from fedsoft.clusters.initial import First, Starts, age_of, first_state, needs_of_start, older, start
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Algorithm, Ask, Needs, PersonalModels, State
from fedsoft.core.replies import Answer, ClientState, Reply
from fedsoft.core.site import Site


class PointMixtures(Starts, Algorithm):
    """Clients keep a mixture pi_k of the centers, and train each center on their points by a posterior q.

    Subclasses declare the settings below, and the job `train`, which replies with models `w` and mixtures `pi`.
    """

    S: int
    K: Participants
    predict_with: Literal["mixture", "largest"]
    first: First
    warm: int

    @property
    def needs(self) -> Needs:
        return needs_of_start(self.first, self.S)

    def init(self, site: Site, clients: int) -> State:
        """Return the initial centers and uniform mixtures."""
        state = first_state(site, self.S, self.first, self.warm)
        return state.update(u=state.centers.new_full((clients, self.S), 1 / self.S))

    def init_client(self, site: Site) -> ClientState:
        """Start from the uniform mixture."""
        return {"pi": site.draw("center", 0).new_full((len(site), self.S), 1 / self.S)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Have clients do both steps of EM, and join what they find; before that, play the rounds of the start."""
        if age_of(state, t) < 0:
            return start(state, ask, self.K)
        ids = participants(ask, self.K)
        answer = ask("train", ids, each=None, centers=state.centers, **self.sent(state))
        state = self.joined(state, answer, ask.sizes.double())
        state = state.update(u=answer.note("pi", state.mixture), extra=older(state))
        return state, {"selected": len(ids), "answered": len(answer.ids)}

    @abc.abstractmethod
    def sent(self, state: State) -> Reply:
        """Return what the clients get beside the centers."""

    @abc.abstractmethod
    def joined(self, state: State, answer: Answer, n: Tensor) -> State:
        """Return the state with the M-step of the server: from what clients answered, and all their points `n[N]`."""

    def fitted(self, site: Site, c: Tensor, q: Tensor) -> Reply:
        """Return the M-step of the clients: pi_ks = mean_i q_i(s), and w_ks from c_s on points weighted by q_i(s)."""
        pi = site.data.mean_by_client(q)
        begin = c.expand(len(site), -1, -1)
        return {"w": torch.where(pi[:, :, None] > 0, site.solve_each(begin, point_weights=q), begin), "pi": pi}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the client's mixture of all centers, or its main center."""
        return mixed(state.centers, mine["pi"], largest=self.predict_with == "largest")
