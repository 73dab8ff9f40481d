"""pFedMe: personal models through Moreau envelopes (Dinh, Tran & Nguyen, NeurIPS 2020)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from fedsoft.clusters.one_center import OneCenter
from fedsoft.clusters.selection import Participants
from fedsoft.core.contract import Ask, PersonalModels, State, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import Tunable, settings

__all__ = ["pFedMe"]


@settings
class pFedMe(OneCenter):
    """Clients fit a personal model near the center, batch by batch, and move the center towards it.

    A personal model is the minimum of the loss with a pull to the client's copy of the center, which follows it in
    small steps.

    Maths, for each batch of a client k drawn, from theta_k = w_k = c:

        theta_k -= personal_lr (grad f_k(theta_k) + lambda (theta_k - w_k))      `steps` times, from the last theta_k
        w_k     -= eta lambda (w_k - theta_k)
        c        = (1 - beta) c + beta sum_k n_k w_k / sum_k n_k                 over those that answered

    theta_k approaches the minimiser of f_k(theta) + lambda/2 |theta - w_k|^2, so that lambda (w_k - theta_k) is the
    gradient of that minimum in w_k (the Moreau envelope). For a large lambda theta_k follows w_k, which takes plain
    gradient steps of length eta.

    Arguments:
        K: clients drawn in a round, or "all" (the paper's S).
        eta: step of w_k.
        personal_lr: step of theta_k; must stay below 2 / (lambda + the curvature of f_k). The official value leaves
            room for a curvature of 7; linear regression on a batch of 10 needs about 0.03.
        lam: the paper's lambda, strength of the pull towards w_k.
        steps: steps of theta_k for each batch (the paper's K).
        beta: share of the clients' mean in the new center.

    Epochs and batch are those of the local solver, whose learning rate is not used; the paper's R is their number of
    batches.

    Cost: `steps` tasks per client drawn; one model down, one up.

    Use it: when clients want personal models and there are many batches, so that the small steps of w_k add up.

    Avoid it: with few batches in a round, since the center then hardly moves; rates that others take may diverge.

    Example:
        >>> pFedMe(K=10).lam
        15.0

    Reference: Dinh, Tran, Nguyen. Personalized federated learning with Moreau envelopes. NeurIPS 2020.
        In the paper all clients train in every round and the server averages K of them; here only those drawn work,
        which gives the same centers. As in the authors' code theta_k starts each round at the center received and is
        carried from batch to batch; that code's weight decay of 0.001 is left out.
    """

    K: Participants = "all"
    eta: Annotated[float, Field(gt=0)] = 0.005
    personal_lr: Annotated[float, Field(gt=0)] = 0.09
    lam: Annotated[float, Field(ge=0), Tunable((1.5, 5.0, 15.0, 50.0))] = 15.0
    steps: Annotated[int, Field(ge=1)] = 5
    beta: Annotated[float, Field(gt=0)] = 1.0

    @property
    def rates(self) -> tuple[str, ...]:
        return ("personal_lr", "eta")

    @property
    def pull(self) -> float:
        return self.lam

    def init_client(self, site: Site) -> ClientState:
        """Start the personal models theta_k at the initial center."""
        return {"w": site.draw("center", 0).repeat(len(site), 1)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Train, then move from the old center towards the mean, or beyond it for beta > 1."""
        mean, notes = super().round(state, t, ask)
        return State(state.centers.lerp(mean.centers, self.beta)), notes

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Descend theta_k for each batch, then take one step of w_k."""
        batches, _ = site.batches()
        w = batches.stack(shared["centers"].repeat(len(site), 1))
        theta = w.clone()
        for _, b in batches:
            active = slice(batches.plan.active[b])
            w_k, theta_k = w[active], theta[active]
            for _ in range(self.steps):
                theta_k -= self.personal_lr * (batches.gradient(theta_k) + self.lam * (theta_k - w_k))
                batches.settle(theta_k)
            w_k -= self.eta * self.lam * (w_k - theta_k)
            batches.settle(w_k)
        site.count_work(batches)
        return mine | {"w": batches.unstack(theta)}, {"w": batches.unstack(w)}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the personal model theta_k."""
        return PersonalModels(mine["w"])
