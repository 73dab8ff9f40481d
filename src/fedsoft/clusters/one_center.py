"""What algorithms with one center share: its draw, a round that averages it, and prediction with it."""

from __future__ import annotations

from typing import Any

from fedsoft.clusters.averaging import mean_by_size
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Algorithm, Ask, PersonalModels, State
from fedsoft.core.replies import ClientState
from fedsoft.core.site import Site


class OneCenter(Algorithm):
    """One center, the mean of the models `w` that the clients drawn send from the job `train`, weighted by n_k.

    Subclasses declare the setting K and the job.
    """

    K: Participants

    def init(self, site: Site, clients: int) -> State:
        return State(site.draw("center", 0)[None])

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Have the clients drawn train the center, and average."""
        c, ids = state.centers, participants(ask, self.K)
        answer = ask("train", ids, centers=c)
        return State(mean_by_size(ask, answer, c)), {"selected": len(ids), "answered": len(answer.ids)}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the center for every client."""
        return PersonalModels(state.centers.expand(len(site), -1))
