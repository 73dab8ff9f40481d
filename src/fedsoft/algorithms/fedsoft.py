"""FedSoft: soft clustered federated learning with proximal local updating (Ruan & Joe-Wong, AAAI 2022)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.batches import Prox
from fedsoft.checks import settings
from fedsoft.contract import Ask, Memory, Reply, Site, State, job, prefixed, under
from fedsoft.mixing import (
    Participants,
    aggregation_weights,
    average,
    check_participants,
    ids_of,
    importance_weights,
    select,
)

__all__ = ["FedSoft"]


@settings
class FedSoft:
    """Every client solves one proximal problem per round; its model updates every center it was drawn for.

    Maths (Algorithm 1):

        u_ks    = max(n_ks / n_k, sigma)                              every tau rounds, by all clients
        v_sk    = u_ks n_k / sum_k' u_k's n_k'                        eq. (5)
        Sel_s   = K clients, each with probability v_sk
        w_k     = argmin f_k(w) + lambda/2 sum_s u_ks |w - c_s|^2     by the clients in any Sel_s
        c_s     = 1/K sum_{k in Sel_s} w_k                            or sum_k v_sk w_k when everybody takes part

    Arguments:
        S: number of centers.
        K: clients drawn for each center in a round; "all" lets everybody take part and averages by v.
        lam: the paper's lambda, strength of the pull towards the centers.
        tau: rounds between estimations of the importance weights.
        sigma: smallest importance weight.
        replacement: draw the K clients with replacement, as the proofs do; without, as the experiments do.
        start: where a local solve starts: the client's `own` last model, or the `mixture` sum_s u_ks c_s of centers.
        moments: whether the local optimiser's memory is `kept` over rounds or `fresh` in each.

    Cost: one task per client drawn, whatever S is, and every tau rounds S evaluations of everybody's points; S models
        down, one up.

    Use it: when every client's data is a mixture of a few sources that share much.

    Example:
        >>> FedSoft(S=2, K=60, lam=1.0).tau
        2

    Reference: Ruan, Joe-Wong. FedSoft: Soft clustered federated learning with proximal local updating. AAAI 2022.
    """

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"
    lam: Annotated[float, Field(ge=0)] = 1.0
    tau: Annotated[int, Field(ge=1)] = 2
    sigma: Annotated[float, Field(ge=0, lt=1)] = 1e-4
    replacement: bool = False
    start: Literal["own", "mixture"] = "own"
    moments: Literal["kept", "fresh"] = "kept"

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        if not self.replacement:
            check_participants("FedSoft", self.K, clients, advice=", or set replacement = true")

    def init(self, site: Site, clients: int) -> State:
        """Every center is a draw of its own."""
        centers = torch.stack([site.draw("center", s) for s in range(self.S)])
        return {"centers": centers, "u": centers.new_full((clients, self.S), 1 / self.S)}

    def enrol(self, site: Site) -> Memory:
        """All clients share one further draw."""
        w = site.draw("client").repeat(len(site), 1)
        u = w.new_full((len(site), self.S), 1 / self.S)
        return {"w": w, "u": u, **prefixed("moments", site.solver.moments(w))}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Algorithm 1, lines 2 to 18."""
        c, u = state["centers"], state["u"]
        if t % self.tau == 0:
            u = ask("estimate", ask.everyone, centers=c).update("u", u)
        v = aggregation_weights(u, ask.sizes)
        sel = v if self.K == "all" else select(v, self.K, ask.generators("select"), replacement=self.replacement)
        union = ids_of(sel.sum(0))
        answer = ask("train", union, centers=c)
        c = average(answer["w"], sel[:, answer.ids], old=c)
        return {"centers": c, "u": u}, {"selected": len(union), "answered": len(answer.ids)}

    @job
    def estimate(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """Lines 5 to 11: which center explains each point best?"""
        u = importance_weights(site.losses(shared["centers"]), site.data, self.sigma)
        return mine | {"u": u}, {"u": u}

    @job
    def train(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """Line 17: one proximal problem, pulled towards all centers at once."""
        c, u = shared["centers"], mine["u"]
        w = mine["w"] if self.start == "own" else u @ c
        moments = under("moments", mine) if self.moments == "kept" else None
        w, moments = site.solve(w, moments, prox=Prox.to_centers(self.lam * u, c))
        return mine | {"w": w, **prefixed("moments", moments)}, {"w": w}

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The personal model w_k."""
        return site.predictions(mine["w"])
