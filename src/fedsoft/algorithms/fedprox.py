"""FedProx: FedAvg with a pull towards the center (Li et al., MLSys 2020)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsoft.clusters.one_center import OneCenter
from fedsoft.clusters.selection import Participants
from fedsoft.core.batches import Prox
from fedsoft.core.contract import Means, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import Tunable, settings

__all__ = ["FedProx"]


@settings
class FedProx(OneCenter):
    """FedAvg with a proximal term that pulls clients back to the center they received.

    All else is FedAvg: the term only limits how far a client gets from the center within a round.

    Maths:

        w_k = local solution of f_k(w) + mu/2 |w - c|^2 from c      for each client k drawn
        c   = sum_k n_k w_k / sum_k n_k                             over those that answered

    With mu = 0 it is FedAvg.

    Arguments:
        K: clients drawn in a round, or "all".
        mu: strength of the pull towards the center; the paper tries 0.001 to 1.

    Cost: one task per client drawn; one model down, one up.

    Use it: when one model is wanted, and clients that train long on data of their own would drift apart under FedAvg.

    Avoid it: as a method of personalisation: there is still one model for all. With few local steps it hardly
        differs from FedAvg.

    Example:
        >>> FedProx(K=10).mu
        0.01

    Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys
        2020. The paper draws clients by n_k and takes their plain mean; here, as in FedAvg, the draw is uniform and
        the mean is weighted by n_k.
    """

    K: Participants = "all"
    mu: Annotated[float, Field(ge=0), Tunable((0.001, 0.01, 0.1, 1.0))] = 0.01

    def means(self, clients: int) -> Means:
        return Means(clients if self.K == "all" else self.K, uniform=True)

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the center on the client's own points, pulled back to the center."""
        c = shared["centers"]
        pull = Prox.to_centers(c.new_full((len(site), 1), self.mu), c)
        w, _ = site.solve(c.repeat(len(site), 1), prox=pull)
        return mine, {"w": w}
