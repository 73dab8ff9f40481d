"""FL+HC: federated learning with hierarchical clustering of local updates (Briggs et al., IJCNN 2020)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.averaging import average
from fedsoft.clusters.clustered_once import ClusteredOnce, members, mixtures, own_models
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Ask, State
from fedsoft.core.site import Site
from fedsoft.errors import MissingSetting, SettingError
from fedsoft.settings import settings

__all__ = ["FLHC"]


@settings
class FLHC(ClusteredOnce):
    """FedAvg for a while; then all clients are clustered once by their updates, and every cluster continues alone.

    The updates of all clients in one round are joined by hierarchical clustering, up to S clusters or a threshold.

    Maths:

        c         = FedAvg                                        rounds 0 to warm - 1
        delta_k   = w_k - c, w_k the local solution from c        round `warm`, by all clients
        clusters  = agglomerative clustering of the delta_k, cut at a distance or at S clusters
        c_s       = sum_k n_k w_k / sum_k n_k over the clients of cluster s that answered, from round `warm` on

    A client that did not answer in the clustering round keeps the common model c. When it first answers again, it has
    trained from c and joins the cluster whose mean delta is nearest; that answer is used for nothing else. When nobody
    answers in the clustering round, clustering is tried again in the next.

    Arguments:
        warm: FedAvg rounds before the clustering (the paper's n).
        distance: between updates.
        threshold: clusters are merged up to this distance; replaces S if given.
        S: number of clusters.
        linkage: the distance of two clusters: their farthest pair (`complete`), the mean over pairs (`average`), or
            `ward`, which needs the distance l2.
        K: clients drawn in a round, or "all".

    The threshold is an absolute distance between updates for l2 and l1 (for cosine it is from 0 to 2), and depends on
    the model, the local solver and the data; so S = 2 is the default.

    Cost: one task per client drawn, and one by all clients in the clustering round; one model down, one up.

    Use it: when each client's data comes from one source, or nearly so, and all clients can be asked once.

    Avoid it: when clients mix sources or come later, since clusters are made once, and with clients that cannot all
        be asked in the same round.

    Example:
        >>> FLHC(S=4).warm
        10

    Reference: Briggs, Fan, Andras. Federated learning with hierarchical clustering of local updates to improve training
        on non-IID data. IJCNN 2020.
    """

    warm: Annotated[int, Field(ge=0)] = 10
    distance: Literal["l2", "l1", "cosine"] = "l2"
    threshold: Annotated[float, Field(ge=0)] | None = None
    S: Annotated[int, Field(ge=1)] | None = 2
    linkage: Literal["complete", "average", "ward"] = "complete"
    K: Participants = "all"

    def check(self, clients: int) -> None:
        """Raise unless K distinct clients exist and the tree is cut somewhere."""
        super().check(clients)
        if self.linkage == "ward" and self.distance != "l2":
            raise SettingError("FLHC", "distance", self.distance, "linkage 'ward' needs 'l2'")
        if self.S is None and self.threshold is None:
            raise MissingSetting("FLHC", "S", "give the number of clusters S, or a threshold")

    def init(self, site: Site, clients: int) -> State:
        """Start with one model, no client in a cluster, and no mean update."""
        state = super().init(site, clients)
        return state.update(extra={"deltas": torch.zeros_like(state.centers)})

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Play a round of FedAvg, the clustering, or FedAvg inside the clusters."""
        c, s_k, common, deltas = state.centers, state.per_client["s"], state.extra["common"], state.extra["deltas"]
        warm = bool((s_k < 0).all())
        ids = ask.everyone if warm and t >= self.warm else participants(ask, self.K)
        answer = ask("train", ids, each={"start": own_models(c, common, s_k[ids])})
        answered = torch.as_tensor(answer.ids, device=c.device)
        s, n = s_k[answered], ask.sizes[answer.ids].double().to(c.device)
        notes = {"selected": len(ids), "answered": len(answered)}
        if warm and (t < self.warm or not len(answered)):
            c = average(answer["w"], n[None], old=c)
            return state.update(centers=c, extra={"common": c.clone()}), notes

        delta = answer.rows("w", like=c) - own_models(c, common, s)
        if warm:
            s = self.clusters(delta)
            c = common.expand(int(s.max()) + 1, -1)
            deltas = average(delta, one_hot(s, len(c)).T.double(), old=c)
        c = average(answer["w"], members(s, len(c)).T * n, old=c)  # those that join now trained another model
        s_k = s_k.index_copy(0, answered, torch.where(s < 0, self.distances(delta, deltas).argmin(1), s))
        return State(c, mixtures(s_k, c), {"s": s_k}, {"common": common, "deltas": deltas}), notes

    def distances(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the distances between all updates of two sets, `[len(a), len(b)]`."""
        if self.distance == "cosine":
            a, b = (torch.nn.functional.normalize(x, dim=1) for x in (a, b))
            return 1 - a @ b.T
        p = 1.0 if self.distance == "l1" else 2.0
        return torch.cdist(a, b, p=p, compute_mode="donot_use_mm_for_euclid_dist")

    def clusters(self, delta: Tensor) -> Tensor:
        """Return the cluster of each update, numbered by mean update, so that the order of clients does not matter."""
        from sklearn.cluster import AgglomerativeClustering

        if len(delta) == 1:
            return torch.zeros_like(delta[:, 0], dtype=torch.int64)
        ward, delta = self.linkage == "ward", delta.double()
        cut: dict[str, Any] = {"n_clusters": min(self.S or 1, len(delta))}
        if self.threshold is not None:
            cut = {"n_clusters": None, "distance_threshold": self.threshold}
        tree = AgglomerativeClustering(**cut, linkage=self.linkage, metric="euclidean" if ward else "precomputed")
        labels = tree.fit_predict((delta if ward else self.distances(delta, delta)).cpu().numpy())
        means = [delta[labels == j].mean(0).tolist() for j in range(labels.max() + 1)]
        number = np.argsort(sorted(range(len(means)), key=means.__getitem__))
        return torch.as_tensor(number[labels], device=delta.device)
