"""FedGroup: federated learning with clients grouped by decomposed cosine similarity (Duan et al., 2021)."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from fedsoft.clusters.averaging import average
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Algorithm, Ask, Needs, PersonalModels, State, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedGroup"]


@settings
class FedGroup(Algorithm):
    """A sample of clients is grouped once by the directions of their first updates; then FedAvg inside each group.

    Who was not in the sample joins the group whose direction its own first update is nearest to.

    Maths:

        delta_k  = w_k - c, w_k the local solution from the initial model c       round 0, by a sample of clients
        V        = the first m right singular vectors of the matrix of deltas
        groups   = k-means of the features cos(delta_k, V_1), ..., cos(delta_k, V_m)
        c_s      = c + delta_s, delta_s the mean of delta_k over the group
        c_s      = sum_k n_k w_k / sum_k n_k over the clients of group s that answered, from round 1 on

    A client that is drawn for the first time trains from c once, joins the group with the largest cos(delta_k, delta_s)
    and then takes part like the others. Until then it uses c. When nobody answers in round 0, the next round starts
    over. An empty group keeps c.

    Arguments:
        S: number of groups.
        directions: number of singular vectors (the paper's m).
        pretrain: clients per group in the sample of round 0, at most all clients.
        K: clients drawn in a round, or "all".

    Cost: one task per client drawn, and once one more for each client; one model down, one up.

    Use it: when each client's data comes from one source, or nearly so, and the number of sources is known.

    Avoid it: when clients mix sources, when groups change in time, and when first updates all point the same way,
        as those of networks often do.

    Example:
        >>> FedGroup(S=3).directions
        3

    Reference: Duan, Liu, Ji, Liu, Liang, Chen, Tan. FedGroup: Efficient federated learning via decomposed
        similarity-based clustering. IEEE ISPA 2021. 20 clients per group are the default of the authors' code.
    """

    S: Annotated[int, Field(ge=1)] = 2
    directions: Annotated[int, Field(ge=1)] = 3
    pretrain: Annotated[int, Field(ge=1)] = 20
    K: Participants = "all"

    @property
    def needs(self) -> Needs:
        return Needs.MODELS

    def init(self, site: Site, clients: int) -> State:
        """Give all groups one model, and assign no client: s_k = -1."""
        common = site.draw("center", 0)[None]
        centers = common.repeat(self.S, 1)
        s_k = torch.full((clients,), -1, device=common.device)
        extra = {"common": common, "deltas": torch.zeros_like(centers)}
        return State(centers, one_hot_or_even(s_k, centers), {"s": s_k}, extra)

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Form the groups; in later rounds let new members join, then do FedAvg inside each group."""
        c, s_k, common, deltas = state.centers, state.per_client["s"], state.extra["common"], state.extra["deltas"]
        if bool((s_k < 0).all()):
            return self.form(state, ask)
        ids = participants(ask, self.K)
        met = ask("introduce", ids[(s_k[ids] < 0).cpu().numpy()], common=common)
        cosine = normalize(met.rows("delta", like=c), dim=1) @ normalize(deltas, dim=1).T
        nearest = cosine.masked_fill(deltas.norm(dim=1) == 0, -2).argmax(1)  # not an empty group
        s_k = s_k.index_copy(0, torch.as_tensor(met.ids, device=c.device), nearest)
        placed = ids[(s_k[ids] >= 0).cpu().numpy()]
        answer = ask("train", placed, each={"center": c[s_k[placed]]})
        weights = one_hot(s_k[answer.ids], self.S).T * ask.sizes[answer.ids].double().to(c.device)
        c = average(answer["w"], weights, old=c)
        notes = {"selected": len(ids), "answered": len(answer.ids), "joined": len(met.ids)}
        return state.update(centers=c, u=one_hot_or_even(s_k, c), per_client={"s": s_k}), notes

    def form(self, state: State, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Play round 0: train a sample from the common model and group it by the directions of its updates."""
        common, s_k = state.extra["common"], state.per_client["s"]
        ids = participants(ask, min(self.S * self.pretrain, len(s_k)))
        met = ask("introduce", ids, common=common)
        delta = met.rows("delta", like=common)
        s = self.grouped(delta, ask.generator("groups")) if len(delta) else s_k[:0]
        deltas = average(delta, one_hot(s, self.S).T.double(), old=state.extra["deltas"])
        s_k = s_k.index_copy(0, torch.as_tensor(met.ids, device=s_k.device), s)
        u = one_hot_or_even(s_k, deltas)
        state = state.update(centers=common + deltas, u=u, per_client={"s": s_k}, extra={"deltas": deltas})
        return state, {"selected": len(ids), "answered": len(met.ids), "joined": len(met.ids)}

    def grouped(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the group of each update, numbered by mean update, so that the order of clients does not matter."""
        from sklearn.cluster import KMeans

        order = torch.argsort(delta.norm(dim=1))  # k-means draws its initial rows by position
        delta = delta[order].double()
        v = torch.linalg.svd(delta, full_matrices=False).Vh[: self.directions]
        features = (normalize(delta, dim=1) @ v.T).cpu().numpy().round(9)  # equal directions are equal numbers
        count = min(self.S, len(np.unique(features, axis=0)))
        kmeans = KMeans(count, n_init=10, random_state=int(rng.integers(2**31)))  # pyright: ignore[reportArgumentType]
        labels = kmeans.fit_predict(features)
        means = [delta[labels == j].mean(0).tolist() for j in range(count)]
        number = np.argsort(sorted(range(count), key=means.__getitem__))
        return torch.as_tensor(number[labels], device=delta.device)[torch.argsort(order)]

    @job(delta=MODEL)
    def introduce(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Send one update from the common model; its direction determines the group."""
        common = shared["common"].repeat(len(site), 1)
        w, _ = site.solve(common, label="introduction")
        return mine, {"delta": w - common}

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the center of the client's group."""
        w, _ = site.solve(shared["center"])
        return mine, {"w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the center of the client's group, or the initial model."""
        s = state.per_client["s"]
        return PersonalModels(torch.where(s[:, None] < 0, state.extra["common"], state.centers[s.clamp(min=0)]))


def one_hot_or_even(s: Tensor, centers: Tensor) -> Tensor:
    """Return u of clients in groups `s[N]`: a single 1, or uniform shares where s < 0."""
    single = one_hot(s.clamp(min=0), len(centers)).to(centers.dtype)
    return torch.where(s[:, None] < 0, 1 / len(centers), single)
