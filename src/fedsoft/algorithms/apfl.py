"""APFL: personal models as an adaptive mix of a local and the global model (Deng, Kamani & Mahdavi, 2020)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsoft.clusters.one_center import OneCenter
from fedsoft.clusters.selection import Participants
from fedsoft.core.batches import GradientParts
from fedsoft.core.contract import PersonalModels, State, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import Tunable, settings

__all__ = ["APFL"]


@settings
class APFL(OneCenter):
    """Clients train the center as in FedAvg, and beside it a local model whose mix with the center fits their points.

    What a client predicts with is a share of its own model and the rest of the center; the share is learned by
    gradient.

    Maths, for each batch of a client k drawn, from w_k = c, with g the gradient at the mix before the step:

        mix_k    = alpha_k v_k + (1 - alpha_k) w_k,     g = grad f_k(mix_k)
        w_k     -= eta grad f_k(w_k)
        v_k     -= eta alpha_k g
        alpha_k -= eta_alpha <v_k - w_k, g>             clipped to [0, 1]; at the first batch of a round only
        c        = sum_k n_k w_k / sum_k n_k            over those that answered

    The client's personal model is the mix_k with which its last round ended: v_k with its own w_k, not with the new
    center. With alpha = 0 that is FedAvg's w_k, with alpha = 1 it is trained locally.

    The factor alpha_k in v's gradient acts under SGD. Adam makes the size of a step independent of it.

    Arguments:
        K: clients drawn in a round, or "all".
        alpha: initial alpha_k of all clients, the share of the local model.
        adapt: whether clients adapt their alpha_k; otherwise it stays `alpha`.
        alpha_lr: eta_alpha, the step of alpha_k. The paper takes the learning rate of the models.

    Cost: two tasks per client drawn; one model down, one up.

    Use it: when clients differ in how much the others can help them.

    Avoid it: for users who come later, who have no model to mix; where clients' sources conflict, since there is
        one center for all.

    Example:
        >>> APFL(K=10).alpha
        0.5

    Reference: Deng, Kamani, Mahdavi. Adaptive personalized federated learning. arXiv 2003.13461, 2020.
        The paper takes the plain mean of the w_k; here it is weighted by n_k, so that alpha = 0 is FedAvg for clients
        of any size. alpha_k moves once per round as in the authors' code, by the paper's gradient; that code scales the
        gradient by alpha^2 + (1 - alpha)^2, mixes with w_k after its step and adds a decay of 0.02 alpha.
        Every v_k starts at the initial center.
    """

    K: Participants = "all"
    alpha: Annotated[float, Field(ge=0, le=1), Tunable((0.25, 0.5, 0.75))] = 0.5
    adapt: bool = True
    alpha_lr: Annotated[float, Field(gt=0)] = 0.01

    def init_client(self, site: Site) -> ClientState:
        """Return the mix w, the local model v and alpha. Both start at one center: separate draws do not mix."""
        w = site.draw("center", 0).repeat(len(site), 1)
        return {"w": w, "v": w.clone(), "alpha": w.new_full((len(site), 1), self.alpha)}

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train both models side by side on the same batches."""
        c = shared["centers"].repeat(len(site), 1)
        batches, solver = site.batches()
        w, v, alpha = batches.stack(c), batches.stack(mine["v"]), batches.stack(mine["alpha"])
        steppers = [
            solver.stepper({name: batches.stack(rows) for name, rows in site.optimizer_state(c).items()}, batches.plan)
            for _ in range(2)
        ]
        for step, b in batches:
            active = slice(batches.plan.active[b])
            w_k, v_k, alpha_k = w[active], v[active], alpha[active]
            g_w, statistics = batches.gradient(w_k), batches.statistics
            g = batches.gradient(alpha_k * v_k + (1 - alpha_k) * w_k)
            g_alpha = ((v_k - w_k) * g).sum(1, keepdim=True)
            steppers[0].step(step, w_k, GradientParts(g_w))
            steppers[1].step(step, v_k, GradientParts(alpha_k * g))
            batches.settle(v_k)
            batches.settle(w_k, statistics)
            if self.adapt and step == 0:
                alpha_k.sub_(g_alpha, alpha=self.alpha_lr).clamp_(0, 1)
        site.count_work(batches)
        w, v, alpha = batches.unstack(w), batches.unstack(v), batches.unstack(alpha)
        return mine | {"w": alpha * v + (1 - alpha) * w, "v": v, "alpha": alpha}, {"w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the personal mix."""
        return PersonalModels(mine["w"])
