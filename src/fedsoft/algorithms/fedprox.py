"""FedProx: FedAvg with a pull towards the center (Li et al., MLSys 2020)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from fedsoft.batches import Prox
from fedsoft.centers.mixing import Participants, check_participants, mean_by_size, participants
from fedsoft.checks import settings
from fedsoft.contract import Ask, Means, Memory, Reply, Site, State, job

__all__ = ["FedProx"]


@settings
class FedProx:
    """As FedAvg, but a client that strays from the center it received is pulled back.

    Maths:

        w_k = local solution of f_k(w) + mu/2 |w - c|^2 from c      for each client k drawn
        c   = sum_k n_k w_k / sum_k n_k                             over those that answered

    With mu = 0 it is FedAvg.

    Arguments:
        K: clients drawn in a round, or "all".
        mu: strength of the pull towards the center; the paper tries 0.001 to 1.

    Cost: one task per client drawn; one model down, one up.

    Use it: when one model is wanted, and clients that train long on data of their own would drift apart under FedAvg.

    Example:
        >>> FedProx(K=10).mu
        0.01

    Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys
        2020. The paper draws clients by n_k and takes their plain mean; here, as in FedAvg, the draw is uniform and
        the mean is weighted by n_k.
    """

    K: Participants = "all"
    mu: Annotated[float, Field(ge=0)] = 0.01

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("FedProx", self.K, clients)

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
        """From the center, on the client's own points, pulled back to the center."""
        c = shared["centers"]
        pull = Prox.to_centers(c.new_full((len(site), 1), self.mu), c)
        w, _ = site.solve(c.repeat(len(site), 1), prox=pull)
        return mine, {"w": w}

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """Everybody uses the center."""
        return site.predictions(shared["centers"].expand(len(site), -1))
