"""The learned prior of networks: centers as FedAvg trains them, and models of clients around them.

A network's loss has no curvature that could be trusted over the way from a center to a client's model, so nothing here
rests on one: centers move by tasks that start at them, and held-back points decide what evidence decides elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsoft.clusters.averaging import average, mean_by
from fedsoft.clusters.closing import Beginning, Closing, reached
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.learned_prior import shares_of
from fedsoft.clusters.personal_way import hold_back
from fedsoft.clusters.selection import draw_centers, participants
from fedsoft.core.contract import Ask, PersonalModels, State, job
from fedsoft.core.metrics import binary_cross_entropy, squared_loss
from fedsoft.core.model import Layout
from fedsoft.core.replies import CHOICE, MIXTURE, MODEL, STEP, ClientState, Ids, Reply
from fedsoft.core.site import Site


def is_network(layout: Layout) -> bool:
    """Whether a model has more than one layer: more than one tensor of weights that is no vector."""
    return sum(len(shape) >= 2 for shape in layout.shapes.values()) > 1


class NetworkPrior(Closing):
    """The rounds and jobs of networks; subclasses declare the settings.

    Maths. A client draws its center s with probability r_ks, and

        w_k = local solution of f_k from c_s,   c_s += reach (sum_k n_k w_k / sum_k n_k - c_s)   over those that drew s
        r_ks ~ pi_s exp(-n_k mean held-back loss of the local solution from c_s)      every tau rounds, where S > 1

    After the last round K clients try out how far to go from a center, and then all take that way: `closing`.
    """

    S: int
    tau: int
    reach: float

    def init_network(self, site: Site, clients: int) -> State:
        """Return copies of one draw as centers: they part as clients do. No way is known yet."""
        c = site.draw("center", 0).repeat(self.S, 1)
        u = c.new_full((clients, self.S), 1 / self.S)
        extra = {"shares": u.new_full((self.S,), 1 / self.S), **self.unknown_way(c)}
        return State(c, u, extra=extra)

    def init_network_client(self, site: Site) -> ClientState:
        """Start without a model, and with equal shares."""
        w = site.draw("center", 0).repeat(len(site), 1, 1)
        return {**self.untuned(w), "r": w.new_full((len(site), self.S), 1 / self.S)}

    def network_round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Weigh the centers, or train them; in the last round find the way to personal models, and have all take it."""
        due = self.S > 1 and t % self.tau == 0
        ids, old = ask.everyone if due else participants(ask, self.K), state.centers
        state, answered = self._weighed(state, ask) if due else self._trained(state, ask, ids)
        notes: dict[str, Any] = {"selected": len(ids), "answered": answered}
        if ask.last:
            if self.reach > 1:  # steps that go beyond the mean swing: half way between the last two there is less of it
                state = state.update(centers=(old + state.centers) / 2)
            state, notes["tuned"] = self.closed(state, ask)
        return state, notes

    def _trained(self, state: State, ask: Ask, ids: Ids) -> tuple[State, int]:
        answer = ask("advance", ids, centers=state.centers)
        if not len(answer.ids):
            return state, 0
        c, n = state.centers, ask.sizes[answer.ids]
        if ask.secure:
            c, _ = mean_by(answer, "w", "s", c, n)
        else:
            c = average(answer["w"], one_hot(answer["s"].gather(), self.S).T.double() * n, c)
        return state.update(centers=reached(state.centers, c, self.reach)), len(answer.ids)

    def _weighed(self, state: State, ask: Ask) -> tuple[State, int]:
        c = state.centers
        answer = ask("weigh", ask.everyone, centers=c, shares=state.extra["shares"])
        if not len(answer.ids):
            return state, 0
        n = ask.sizes[answer.ids].double()
        r = answer["r"].weighted(torch.stack([torch.ones_like(n), n]))  # of clients, and of their points
        moved = answer["first"].weighted(n[None])[0] / r[1].clamp(min=torch.finfo(torch.float64).tiny)[:, None]
        shares = shares_of(r[0]) if self.learn else state.extra["shares"]
        c, u = (c.double() + self.reach * moved).to(c.dtype), answer.note("r", state.mixture)
        return state.update(centers=c, u=u, extra={"shares": shares.to(c.dtype)}), len(answer.ids)

    @job(s=CHOICE, w=MODEL)
    def advance(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Draw a center by r, and train from it."""
        s = draw_centers(site.generators("center"), mine["r"])
        w, _ = site.solve(shared["centers"][s])
        return mine, {"s": s, "w": w}

    @job(r=MIXTURE, first=STEP)
    def weigh(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from every center on a part of the points, and weigh the centers by the loss of the others."""
        c = shared["centers"].expand(len(site), -1, -1)
        rest, back = hold_back(site, "held back")
        w = rest.solve_each(c)
        loss = torch.stack([back.own_losses(one) for one in w.unbind(1)], 1).double().nan_to_num()
        fit = _log_likelihood(site, loss / back.data.sizes.clamp(min=1)[:, None])
        r = (shared["shares"].double().log() + fit).softmax(1).to(site.dtype)
        return mine | {"r": r}, {"r": r, "first": r[:, :, None] * (w - c)}

    def beginning(self, site: Site, mine: ClientState, shared: Mapping[str, Tensor]) -> Beginning:
        """Begin at the most probable center."""
        return Beginning.at(site, shared["centers"][mine["r"].argmax(1)])

    def predict_network(self, mine: ClientState, state: State) -> PersonalModels:
        """Return the client's own model, or its most probable center while it has none."""
        return self.predict_tuned(mine, PersonalModels(state.centers[mine["r"].argmax(1)]))


def _log_likelihood(site: Site, loss: Tensor) -> Tensor:
    """Return the log-likelihood of all points of each client, had they the mean losses `[m, S]` of those held back."""
    n, outputs = site.data.sizes[:, None], site.data.y[:1].numel()
    if site.model.loss is squared_loss:  # of a variance of its own
        return -n * outputs / 2 * loss.clamp(min=torch.finfo(torch.float32).tiny).log()
    return -n * loss * (outputs if site.model.loss is binary_cross_entropy else 1)
