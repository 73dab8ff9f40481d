"""What algorithms with one center share: its draw, a round that averages it, and prediction with it."""

from __future__ import annotations

from typing import Any, ClassVar

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
    closing_job: ClassVar[str | None] = None
    """What all clients do in the last round, with the new center."""

    def init(self, site: Site, clients: int) -> State:
        return State(site.draw("center", 0)[None])

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Have the clients drawn train the center, and average; in the last round have all do the closing job."""
        c, ids = state.centers, participants(ask, self.K)
        answer = ask("train", ids, centers=c)
        c, notes = mean_by_size(ask, answer, c), {"selected": len(ids), "answered": len(answer.ids)}
        if self.closing_job is not None and ask.last:
            notes["tuned"] = len(ask(self.closing_job, ask.everyone, centers=c).ids)
        return State(c), notes

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the center for every client."""
        return PersonalModels(state.centers.expand(len(site), -1))
