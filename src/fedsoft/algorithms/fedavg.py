"""FedAvg: one model for everybody (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedsoft.centers.mixing import Participants, check_participants, mean_by_size, participants
from fedsoft.checks import settings
from fedsoft.contract import Ask, Means, Memory, Reply, Site, State, job

__all__ = ["FedAvg"]


@settings
class FedAvg:
    """Clients train the one center on their own points; the center is their mean, weighted by n_k.

    Maths:

        w_k = local solution from c                  for each client k drawn
        c   = sum_k n_k w_k / sum_k n_k              over those that answered

    Arguments:
        K: clients drawn in a round, or "all".

    Cost: one task per client drawn; one model down, one up.

    Use it: as the yardstick. Where sources do not conflict, one model for everybody is hard to beat.

    Example:
        >>> FedAvg(K=10).K
        10

    Reference: McMahan, Moore, Ramage, Hampson, y Arcas. Communication-efficient learning of deep networks from
        decentralized data. AISTATS 2017.
    """

    K: Participants = "all"

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("FedAvg", self.K, clients)

    def means(self, clients: int) -> Means:
        """The center is a mean over a fixed number of clients."""
        return Means(clients if self.K == "all" else self.K, uniform=True)

    def init(self, site: Site, clients: int) -> State:
        """One draw."""
        return {"centers": site.draw("center", 0)[None]}

    def enrol(self, site: Site) -> Memory:
        """Clients keep nothing."""
        return {}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Train, then average."""
        c, ids = state["centers"], participants(ask, self.K)
        answer = ask("train", ids, centers=c)
        c = mean_by_size(ask, answer, c)
        return {"centers": c}, {"selected": len(ids), "answered": len(answer.ids)}

    @job
    def train(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """From the center, on the client's own points."""
        w, _ = site.solve(shared["centers"].repeat(len(site), 1))
        return mine, {"w": w}

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """Everybody uses the center."""
        return site.predictions(shared["centers"].expand(len(site), -1))
