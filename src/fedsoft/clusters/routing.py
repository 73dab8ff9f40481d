"""Clients that train the center of their whole data, or of each point: what algorithms share that do either."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsoft.clusters.averaging import average, mean_over_points
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.least_squares import parted, solved, sums
from fedsoft.clusters.posterior import draw_ties, posterior, summed_outputs
from fedsoft.core.contract import Algorithm, Ask, State, job
from fedsoft.core.metrics import squared_loss
from fedsoft.core.model import Model
from fedsoft.core.replies import COUNTS, MIXTURE, MODEL, NUMBER, Answer, ClientState, Ids, Reply
from fedsoft.core.site import Site

UNKNOWN = 0.0  # the scale s2 of the noise before the first routed round
FIXED = 0.5  # the scale of losses that are log-likelihoods themselves: exp(-l) as it is


class Routing(Algorithm):
    """The jobs of hard rounds and of routed ones. Clients keep `u` and `open`."""

    S: int
    eps: float

    def play_hard(self, state: State, ask: Ask, ids: Ids, notes: dict[str, Any]) -> State:
        """Have these clients train the center that fits them best; average by choice."""
        answer = ask("choose", ids, centers=state.centers)
        notes["answered"] += len(answer.ids)
        if not len(answer.ids):
            return state
        notes["hard_loss"] = mean_over_points(ask, answer, "loss")
        u = answer.update("u", state.u)
        weights = u[answer.ids].T.double() * ask.sizes[answer.ids]
        return state.update(u=u, centers=average(answer["w"], weights, old=state.centers))

    def play_gathered(self, ask: Ask, ids: Ids, c: Tensor, s2: Tensor, *, check: bool) -> tuple[Answer, Tensor, bool]:
        """Return what these clients sent of least squares, the centers from it, and whether a twin had to move."""
        answer = ask("gather", ids, centers=c, s2=s2)
        if not len(answer.ids):
            return answer, c, False
        new = solved(c, answer, c.new_ones((1, len(answer.ids)), dtype=torch.float64))
        if check and (other := parted(c, new, answer)) is not None:
            ask("open", ask.everyone)
            return answer, other, True
        return answer, new, False

    @job()
    def open(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Reset the prior."""
        return mine | {"open": torch.ones_like(mine["open"])}, {}

    @job(u=MIXTURE, w=MODEL, loss=NUMBER)
    def choose(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train the center of the smallest mean loss on all points, as in IFCA."""
        c = shared["centers"]
        loss, s = site.data.mean_by_client(site.losses(c)).min(1)
        w, _ = site.solve(c[s])
        u = one_hot(s, self.S).to(c.dtype)
        reply = {"u": u, "w": w, "loss": loss / summed_outputs(site)}
        return mine | {"u": u, "open": torch.ones_like(mine["open"])}, reply

    @job(u=MIXTURE, loss=NUMBER, sum=MODEL, n=COUNTS)
    def route(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train each center on the points it most probably made."""
        c, data = shared["centers"], site.data
        q, _, mine, reply = self.explained(site, mine, shared)
        part = draw_ties(site, q) if bool(shared["ties"]) else q.argmax(1)
        given = data.mean_by_client(one_hot(part, self.S).to(c.dtype)) * data.sizes[:, None]
        given = torch.where(given >= site.least_points, given, 0.0)
        w = site.solve_parts(c.expand(len(site), -1, -1), part)
        return mine, reply | {"sum": w * given[:, :, None], "n": given}

    @job(u=MIXTURE, loss=NUMBER, gram=MODEL, sum=MODEL, n=COUNTS, misfit=NUMBER)
    def gather(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Send the sums of weighted least squares."""
        q, losses, mine, reply = self.explained(site, mine, shared)
        return mine, reply | sums(site, q, losses)

    def explained(self, site: Site, mine: ClientState, shared: Reply) -> tuple[Tensor, Tensor, ClientState, Reply]:
        """Return posterior and losses of every point, the new client state, and what is sent of them."""
        data, losses = site.data, site.losses(shared["centers"])
        nearest = (data.mean_by_client(losses.amin(1)) / summed_outputs(site)).clamp(min=torch.finfo(losses.dtype).tiny)
        s2 = torch.where(shared["s2"] > 0, shared["s2"], nearest)[data.owners, None]
        prior = torch.where(mine["open"][:, None], 1 / self.S, (1 - self.eps) * mine["u"] + self.eps / self.S)
        q = posterior(losses, prior[data.owners], s2)
        u, loss = data.mean_by_client(q), data.mean_by_client((q * losses).sum(1)) / summed_outputs(site)
        return q, losses, mine | {"u": u, "open": torch.zeros_like(mine["open"])}, {"u": u, "loss": loss}


def first_s2(model: Model) -> float:
    """Return the scale of losses before the first routed round."""
    return UNKNOWN if model.loss is squared_loss else FIXED


def routed_centers(answer: Answer, c: Tensor) -> Tensor:
    """Return each center as the mean of what clients trained on their points of it; one without points as it was."""
    each = c.new_ones((1, len(answer.ids)), dtype=torch.float64)
    given, total = answer["n"].weighted(each)[0][:, None], answer["sum"].weighted(each)[0]
    return torch.where(given > 0, total / given.clamp(min=1), c.double())
