"""FedSPD: points to their lowest-loss center, one random center per client and round (Lin et al., UAI 2025)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedsoft.clusters.averaging import average
from fedsoft.clusters.importance_weights import importance_weights, one_hot
from fedsoft.clusters.initial import First, Starts, age_of, first_state, older, start
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Algorithm, Ask, Needs, PersonalModels, State, job
from fedsoft.core.model import Model
from fedsoft.core.replies import CHOICE, COUNTS, MIXTURE, MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedSPD"]


@settings
class FedSPD(Starts, Algorithm):
    """A client trains one center per round, drawn at random, on the points that this center explains best.

    After the last round every client mixes all centers by its shares, and trains the mix on its own points.

    Maths, for each client k drawn, its points i and the loss l_s(i) of center s:

        D_ks = {i: argmin_s' l_s'(i) = s},    u_ks = |D_ks| / n_k
        s_k  = one of the S centers, all with the same chance
        w_k  = local solution from c_{s_k} on the points D_ks of s = s_k
        c_s  = mean of w_k over {k: s_k = s, D_ks not empty}           those that answered, not weighted

    and after the last round every client makes a model of its own:

        w_k  = local solution of f_k from sum_s u_ks c_s

    Until then, or if it did not answer, it predicts with sum_s u_ks c_s. A center that nobody trained stays as it was.

    Arguments:
        S: number of centers.
        K: clients drawn in a round, or "all". All clients are asked for their last model.
        first: initial centers: each an independent draw (`xavier`), the corners of the clients' own models after one
            task from a common draw (`simplex`), or the same after some rounds of FedAvg (`warm`).
        warm: FedAvg rounds of `first = warm`.

    Cost: the part u_ks of a task per client drawn, on average 1 / S of one, and S evaluations of its points; S models
        down, one up. After the last round one more task and S evaluations by all clients; S models down.

    Use it: when clients mix sources and work and bytes are scarce. Centers have to differ from the start, and mixing
        their parameters has to make sense: with independent draws of a network it does not, so use `first = warm`.

    Avoid it: when sources conflict and centers start alike: which one explains a point best is then a matter of
        chance.

    Example:
        >>> FedSPD(S=2, K=10).first
        'xavier'

    Reference: Lin, Yagan, Joe-Wong. FedSPD: A soft-clustering approach for personalized decentralized federated
        learning. UAI 2025. There clients average with their neighbours in a graph; here all are neighbours of all, by
        way of the server. The authors' code starts from points divided at random, with all centers trained by all
        clients in the first round; later it divides the clients into S groups of one size, where each draws its center
        on its own here. It gives a center that explains few points some of another; here a client has nothing to train
        if its center explains none.
    """

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"
    first: First = "xavier"
    warm: Annotated[int, Field(ge=0)] = 6

    partial_jobs: ClassVar[frozenset[str]] = frozenset({"train"})

    def closing_tasks(self, model: Model) -> int:
        return 1

    @property
    def needs(self) -> Needs:
        return Needs.MODELS

    def init(self, site: Site, clients: int) -> State:
        """Return the initial centers and uniform shares."""
        state = first_state(site, self.S, self.first, self.warm)
        return state.update(u=state.centers.new_full((clients, self.S), 1 / self.S))

    def init_client(self, site: Site) -> ClientState:
        """Start from uniform shares, without a model of the client's own."""
        w = site.draw("center", 0).repeat(len(site), 1)
        own = torch.zeros_like(site.data.sizes, dtype=torch.bool)
        return {"u": w.new_full((len(site), self.S), 1 / self.S), "w": w, "own": own}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Have clients train a random center and average by center; in the last round have all mix and train."""
        if age_of(state, t) < 0:
            return start(state, ask, self.K)
        c, ids = state.centers, participants(ask, self.K)
        answer = ask("train", ids, centers=c)
        trained = answer.rows("n", like=c[:, 0]) > 0
        weights = one_hot(answer.rows("s", like=c.long()[:, 0]), self.S) * trained[:, None]
        c = average(answer["w"], weights.T.double(), old=c)
        state = state.update(centers=c, u=answer.update("u", state.u), extra=older(state))
        notes = {"selected": len(ids), "answered": len(answer.ids)}
        if ask.last:
            answer = ask("mix", ask.everyone, centers=c)
            state, notes["tuned"] = state.update(u=answer.update("u", state.u)), len(answer.ids)
        return state, notes

    @job(u=MIXTURE, s=CHOICE, w=MODEL, n=COUNTS)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train a random center on the points of the smallest loss under it."""
        c, data, losses = shared["centers"], site.data, site.losses(shared["centers"])
        u = importance_weights(losses, data, sigma=0.0)
        s = torch.as_tensor((site.generators("center").random() * self.S).astype(np.int64), device=c.device)
        used = losses.argmin(1) == s[data.owners]
        n = torch.bincount(data.owners[used], minlength=len(site))
        n = torch.where(n >= site.least_points, n, 0)
        w = site.solve_some(c[s], used & (n > 0)[data.owners])
        return mine | {"u": u, "own": torch.zeros_like(mine["own"])}, {"u": u, "s": s, "w": w, "n": n.to(c.dtype)}

    @job(u=MIXTURE)
    def mix(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train the mix of the centers on all points and keep the result. Batches are drawn anew."""
        c = shared["centers"]
        u = importance_weights(site.losses(c), site.data, sigma=0.0)
        w, _ = site.solve(u @ c, label="tune")
        return mine | {"u": u, "w": w, "own": torch.ones_like(mine["own"])}, {"u": u}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the client's own model, or the mix of the centers for those that have none."""
        return PersonalModels(torch.where(mine["own"][:, None], mine["w"], mine["u"] @ state.centers))
