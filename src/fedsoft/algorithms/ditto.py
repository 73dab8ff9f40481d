"""Ditto: a personal model for every client beside FedAvg, pulled towards the center (Li et al., ICML 2021)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsoft.clusters.one_center import OneCenter
from fedsoft.clusters.selection import Participants
from fedsoft.core.batches import Prox
from fedsoft.core.contract import PersonalModels, State, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import Tunable, settings

__all__ = ["Ditto"]


@settings
class Ditto(OneCenter):
    """Clients train the center as in FedAvg, and beside it a model of their own that is pulled towards the center.

    The pull has one strength for all clients and parameters, which is chosen, not learned.

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

    Avoid it: when cluster models are wanted, or when clients have so few points that the strength of the pull
        decides everything: FedPrior learns it.

    Example:
        >>> Ditto(K=10).lam
        1.0

    Reference: Li, Hu, Beirami, Smith. Ditto: Fair and robust federated learning through personalization. ICML 2021.
        As in the authors' code every v_k starts at the initial center, and both models see the same batches; the local
        optimizer starts afresh in each round. The learning rate must stay below 2 / (lambda + the curvature of f_k).
    """

    K: Participants = "all"
    lam: Annotated[float, Field(ge=0), Tunable((0.01, 0.1, 1.0, 10.0))] = 1.0

    @property
    def pull(self) -> float:
        return self.lam

    def init_client(self, site: Site) -> ClientState:
        """Start the personal models v_k at the initial center."""
        return {"w": site.draw("center", 0).repeat(len(site), 1)}

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Solve two tasks: w_k for the center, v_k for the client."""
        c = shared["centers"]
        w, _ = site.solve(c.repeat(len(site), 1))
        pull = Prox.to_centers(c.new_full((len(site), 1), self.lam), c)
        v, _ = site.solve(mine["w"], prox=pull)
        return mine | {"w": v}, {"w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the personal model v_k."""
        return PersonalModels(mine["w"])
