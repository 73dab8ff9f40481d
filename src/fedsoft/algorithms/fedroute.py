"""FedRoute: every point trains the one center that most probably made it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.checks import settings
from fedsoft.contract import Ask, Memory, Reply, Site, State, job
from fedsoft.mixing import Participants, average, check_participants, one_hot, participants, posterior
from fedsoft.model import squared_loss
from fedsoft.starting import First, Starts, age_of, first_state, older, start

__all__ = ["FedRoute"]


@settings
class FedRoute(Starts):
    """Every client routes each of its points to the center that most probably made it, and trains centers on those."""

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"
    first: First = "warm"
    warm: Annotated[int, Field(ge=0)] = 6
    hard: Annotated[int, Field(ge=0)] = 6
    trial: Annotated[int, Field(ge=1)] = 4
    doubt: Annotated[float, Field(ge=0, le=1)] = 0.25
    eps: Annotated[float, Field(ge=0, lt=1)] = 0.05
    scale: Literal["estimated", "fixed"] = "estimated"
    predict_with: Literal["mixture", "largest"] = "mixture"

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("FedRoute", self.K, clients)

    def init(self, site: Site, clients: int) -> State:
        """First centers, even shares; `kept` are the centers to return to when routing turns out to be in vain."""
        state = first_state(site, self.S, self.first, self.warm)
        c = state["centers"]
        u = c.new_full((clients, self.S), 1 / self.S)
        s2 = u.new_tensor(0.0 if self._estimates(site) else 0.5)
        return state | {"u": u, "s2": s2, "kept": c.clone(), "joined": torch.tensor(False, device=c.device)}

    def enrol(self, site: Site) -> Memory:
        """The client's mixture, and whether it has routed its points before."""
        u = site.draw("center", 0).new_full((len(site), self.S), 1 / self.S)
        return {"u": u, "routed": torch.zeros(len(site), dtype=torch.bool, device=u.device)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """FedAvg and the split; hard rounds; then routed ones, unless it turns out that points belong to nobody."""
        age = age_of(state, t)
        if age < 0:
            return start(state, ask, self.K)
        routed = age >= self.hard and not bool(state["joined"])
        ids = participants(ask, self.K)
        answer = ask("route" if routed else "choose", ids, centers=state["centers"], s2=state["s2"])
        notes = {"selected": len(ids), "answered": len(answer.ids), "phase": "routed" if routed else "hard"}
        return self.routed(state, age, ask, answer, notes) if routed else self.chosen(state, ask, answer, notes)

    def chosen(self, state, ask, answer, notes):
        c = state["centers"]
        u = answer.update("u", state["u"])
        n = ask.sizes[answer.ids].double()
        c = average(answer["w"], u[answer.ids].T.double() * n, old=c)
        return state | older(state) | {"centers": c, "kept": c, "u": u}, notes

    def routed(self, state, age, ask, answer, notes):
        c, s2 = state["centers"], state["s2"]
        if not len(answer.ids):
            return state | older(state), notes
        n = ask.sizes[answer.ids].double()[None]
        everyone = torch.ones_like(n)
        given = answer["n"].weighted(everyone)[0]
        total = answer["sum"].weighted(everyone)[0]
        c = torch.where(given[:, None] > 0, (total / given.clamp(min=1)[:, None]).to(c.dtype), c)
        residual, entropy = (float(answer[name].weighted(n / n.sum())[0]) for name in ("residual", "entropy"))
        if self.scale == "estimated" and float(s2) != 0.5:
            s2 = s2.new_tensor(max(residual, torch.finfo(s2.dtype).tiny))
        notes |= {"doubt": entropy, "s2": float(s2)}
        new = {"centers": c, "u": answer.update("u", state["u"]), "s2": s2}
        if age - self.hard == self.trial - 1 and entropy > self.doubt:
            new |= {"centers": state["kept"], "joined": torch.ones_like(state["joined"])}
        return state | older(state) | new, notes

    @job
    def choose(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """A hard round, as IFCA: all points for the center of the smallest mean loss."""
        c = shared["centers"]
        s = site.data.mean_by_client(site.losses(c)).argmin(1)
        w, _ = site.solve(c[s])
        u = one_hot(s, self.S).to(c.dtype)
        return mine | {"u": u, "routed": torch.zeros_like(mine["routed"])}, {"u": u, "w": w}

    @job
    def route(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """Every point for its most probable center."""
        c, data = shared["centers"], site.data
        losses, outputs = site.losses(c), self._outputs(site)
        nearest = (data.mean_by_client(losses.amin(1)) / outputs).clamp(min=torch.finfo(c.dtype).tiny)
        s2 = torch.where(shared["s2"] > 0, shared["s2"], nearest)
        prior = torch.where(mine["routed"][:, None], (1 - self.eps) * mine["u"] + self.eps / self.S, 1 / self.S)
        q = posterior(losses, prior[data.owners], s2[data.owners, None])
        u = data.mean_by_client(q)
        part = q.argmax(1)
        given = torch.zeros_like(u).index_put_((data.owners, part), u.new_ones(()), accumulate=True)
        w = site.solve_parts(c.expand(len(site), -1, -1), part)
        doubt = data.mean_by_client(torch.special.entr(q).sum(1)) / math.log(max(2, self.S))
        residual = data.mean_by_client((q * losses).sum(1)) / outputs
        reply = {"sum": w * given[:, :, None], "n": given, "u": u, "entropy": doubt, "residual": residual}
        return mine | {"u": u, "routed": torch.ones_like(mine["routed"])}, reply

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The client's mixture of all centers, or its main one."""
        c, u = shared["centers"], mine["u"]
        if self.predict_with == "largest":
            return site.predictions(c[u.argmax(1)])
        each = torch.stack([site.predictions(center.expand(len(site), -1)) for center in c])  # [S, points, ...]
        share = u[site.data.owners].T
        return (share.view(*share.shape, *[1] * (each.ndim - 2)) * each).sum(0)

    def _outputs(self, site: Site) -> int:
        return site.data.y[:1].numel() if site.model.loss is squared_loss else 1

    def _estimates(self, site: Site) -> bool:
        """Whether the loss is a square whose scale is to be found."""
        return self.scale == "estimated" and site.model.loss is squared_loss
