"""APFL: personal models as an adaptive mix of a local and the global model (Deng, Kamani & Mahdavi, 2020)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from fedsoft.batches import Slope
from fedsoft.centers.mixing import Participants, check_participants, mean_by_size, participants
from fedsoft.checks import settings
from fedsoft.contract import Ask, Memory, Reply, Site, State, job

__all__ = ["APFL"]


@settings
class APFL:
    """Clients train the center as in FedAvg, and beside it a local model whose mix with the center fits their points.

    Maths, for each batch of a client k drawn, from w_k = c, with g the gradient at the mix of before the step:

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
        alpha: the first alpha_k of all clients, the share of the local model.
        adapt: whether clients adapt their alpha_k; else it stays `alpha`.
        alpha_lr: eta_alpha, the step of alpha_k. The paper takes the learning rate of the models.

    Cost: two tasks per client drawn; one model down, one up.

    Use it: when clients differ in how much the others can help them.

    Example:
        >>> APFL(K=10).alpha
        0.5

    Reference: Deng, Kamani, Mahdavi. Adaptive personalized federated learning. arXiv 2003.13461, 2020.
        The paper takes the plain mean of the w_k; here it is weighted by n_k, so that alpha = 0 is FedAvg for clients
        of any size. alpha_k moves once per round as in the authors' code, by the paper's gradient; that code scales the
        gradient by alpha^2 + (1 - alpha)^2, takes w_k of after the step into the mix and adds a decay of 0.02 alpha.
        Every v_k starts at the first center.
    """

    K: Participants = "all"
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    adapt: bool = True
    alpha_lr: Annotated[float, Field(gt=0)] = 0.01

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("APFL", self.K, clients)

    def init(self, site: Site, clients: int) -> State:
        """One draw."""
        return {"centers": site.draw("center", 0)[None]}

    def enrol(self, site: Site) -> Memory:
        """The personal mix w, the local v and alpha. Both start at the first center: separate draws do not mix."""
        w = site.draw("center", 0).repeat(len(site), 1)
        return {"w": w, "v": w.clone(), "alpha": w.new_full((len(site), 1), self.alpha)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Train, then average."""
        c, ids = state["centers"], participants(ask, self.K)
        answer = ask("train", ids, centers=c)
        c = mean_by_size(ask, answer, c)
        return {"centers": c}, {"selected": len(ids), "answered": len(answer.ids)}

    @job
    def train(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """Both models, side by side through the same batches."""
        c = shared["centers"].repeat(len(site), 1)
        walk, solver = site.walk()
        w, v, alpha = walk.stack(c), walk.stack(mine["v"]), walk.stack(mine["alpha"])
        rules = [
            solver.rule({name: walk.stack(rows) for name, rows in site.solver.moments(c).items()}, walk.plan)
            for _ in range(2)
        ]
        for turn, b in walk:
            active = slice(walk.plan.active[b])
            w_k, v_k, alpha_k = w[active], v[active], alpha[active]
            g_w, g = walk.gradient(w_k), walk.gradient(alpha_k * v_k + (1 - alpha_k) * w_k)
            slope = ((v_k - w_k) * g).sum(1, keepdim=True)
            rules[0].step(turn, w_k, Slope(g_w))
            rules[1].step(turn, v_k, Slope(alpha_k * g))
            if self.adapt and turn == 0:
                alpha_k.sub_(slope, alpha=self.alpha_lr).clamp_(0, 1)
        site.spend(walk)
        w, v, alpha = walk.unstack(w), walk.unstack(v), walk.unstack(alpha)
        return mine | {"w": alpha * v + (1 - alpha) * w, "v": v, "alpha": alpha}, {"w": w}

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The personal mix."""
        return site.predictions(mine["w"])
