"""FedAvg: one model for all clients (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from fedsoft.clusters.one_center import OneCenter
from fedsoft.clusters.selection import Participants
from fedsoft.core.contract import Means, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedAvg"]


@settings
class FedAvg(OneCenter):
    """Clients train the one center on their own points; the center is their mean, weighted by n_k.

    There is one model for everybody, and a client's personal model is that one.

    Maths:

        w_k = local solution from c                  for each client k drawn
        c   = sum_k n_k w_k / sum_k n_k              over those that answered

    Arguments:
        K: clients drawn in a round, or "all".

    Cost: one task per client drawn; one model down, one up.

    Use it: as the yardstick. Where sources do not conflict, one model for all is hard to beat.

    Avoid it: when clients contradict each other: the mean of models that disagree serves nobody well.

    Example:
        >>> FedAvg(K=10).K
        10

    Reference: McMahan, Moore, Ramage, Hampson, y Arcas. Communication-efficient learning of deep networks from
        decentralized data. AISTATS 2017.
    """

    K: Participants = "all"

    def means(self, clients: int) -> Means:
        return Means(clients if self.K == "all" else self.K, uniform=True)

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the center on the client's own points."""
        w, _ = site.solve(shared["centers"].repeat(len(site), 1))
        return mine, {"w": w}
