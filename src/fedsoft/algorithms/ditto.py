"""Ditto: a personal model for every client beside FedAvg, pulled towards the center (Li et al., ICML 2021)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from fedsoft.batches import Prox
from fedsoft.centers.mixing import Participants, check_participants, mean_by_size, participants
from fedsoft.checks import settings
from fedsoft.contract import Ask, Memory, Reply, Site, State, job

__all__ = ["Ditto"]


@settings
class Ditto:
    """Clients train the center as in FedAvg, and beside it a model of their own that is pulled towards the center.

    Maths, for each client k drawn, with c the center that it received:

        w_k = local solution of f_k from c
        v_k = local solution of f_k(v) + lambda/2 |v - c|^2 from v_k, kept between rounds:
              v_k -= eta (grad f_k(v_k) + lambda (v_k - c))
        c   = sum_k n_k w_k / sum_k n_k                                  over those that answered

    The center is that of FedAvg. With lambda = 0 v_k is trained locally; for a large lambda it follows the center.

    Arguments:
        K: clients drawn in a round, or "all".
        lam: the paper's lambda, strength of the pull towards the center; the authors use 0.1, 1 and 2.

    Cost: two tasks per client drawn; one model down, one up.

    Use it: when clients want personal models and some of them may be faulty: what a client does to the center reaches
        the others only through the pull.

    Example:
        >>> Ditto(K=10).lam
        1.0

    Reference: Li, Hu, Beirami, Smith. Ditto: Fair and robust federated learning through personalization. ICML 2021.
        As in the authors' code every v_k starts at the first center, and both models see the same batches; the local
        optimiser starts afresh in each round. The learning rate must stay below 2 / (lambda + the curvature of f_k).
    """

    K: Participants = "all"
    lam: Annotated[float, Field(ge=0)] = 1.0

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("Ditto", self.K, clients)

    def init(self, site: Site, clients: int) -> State:
        """One draw."""
        return {"centers": site.draw("center", 0)[None]}

    def enrol(self, site: Site) -> Memory:
        """The personal models v_k start at the first center."""
        return {"w": site.draw("center", 0).repeat(len(site), 1)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Train, then average."""
        c, ids = state["centers"], participants(ask, self.K)
        answer = ask("train", ids, centers=c)
        c = mean_by_size(ask, answer, c)
        return {"centers": c}, {"selected": len(ids), "answered": len(answer.ids)}

    @job
    def train(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """Two tasks: w_k for the center, v_k for the client."""
        c = shared["centers"]
        w, _ = site.solve(c.repeat(len(site), 1))
        pull = Prox.to_centers(c.new_full((len(site), 1), self.lam), c)
        v, _ = site.solve(mine["w"], prox=pull)
        return mine | {"w": v}, {"w": w}

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The personal model v_k."""
        return site.predictions(mine["w"])
