"""What FL+HC and FLUX share: one model for all clients, then clusters that are made once, each with a center."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsoft.clusters.importance_weights import one_hot
from fedsoft.core.contract import Algorithm, Needs, PersonalModels, State, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site


class ClusteredOnce(Algorithm):
    """Clients in clusters s_k. Those in none, s_k = -1, train and use the common model.

    Subclasses make the clusters in their `round`.
    """

    @property
    def needs(self) -> Needs:
        return Needs.MODELS

    def init(self, site: Site, clients: int) -> State:
        """Start with one model and no client in a cluster."""
        common = site.draw("center", 0)[None]
        s_k = torch.full((clients,), -1, device=common.device)
        return State(common.clone(), common.new_ones((clients, 1)), {"s": s_k}, {"common": common})

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the center of the client's cluster, or from the common model."""
        w, _ = site.solve(shared["start"])
        return mine, {"w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the center of the client's cluster, or the common model."""
        return PersonalModels(own_models(state.centers, state.extra["common"], state.per_client["s"]))


def own_models(centers: Tensor, common: Tensor, s: Tensor) -> Tensor:
    """Return what clients of clusters `s[m]` use: their center, or the common model where s < 0."""
    return torch.where(s[:, None] < 0, common, centers[s.clamp(min=0)])


def members(s: Tensor, count: int) -> Tensor:
    """Return who is in which of the clusters, `[m, count]`; a row of 0 where s < 0."""
    return one_hot(s.clamp(min=0), count) * (s >= 0)[:, None]


def mixtures(s: Tensor, like: Tensor) -> Tensor:
    """Return clusters as mixtures of the centers `like[S, P]`: uniform where s < 0."""
    return torch.where(s[:, None] < 0, 1 / len(like), one_hot(s.clamp(min=0), len(like)).to(like.dtype))
