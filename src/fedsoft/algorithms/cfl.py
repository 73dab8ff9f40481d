"""CFL: clustered federated learning by splitting (Sattler, Müller & Samek, 2020)."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.averaging import average
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Algorithm, Ask, Needs, PersonalModels, State, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["CFL"]


@settings
class CFL(Algorithm):
    """All clients begin in one cluster; a cluster that has converged while its members still pull apart is split.

    A split needs no number of clusters: it happens where the mean update of a cluster vanishes and single updates
    do not.

    Maths, in every round and for every cluster C with center c:

        d_k = w_k - c                                       w_k the local solution from c, for k in C drawn
        c   = c + d        with d = mean of d_k             over those that answered
        split C when       |d| < eps1   and   max_k |d_k| > eps2
        into the halves    by complete linkage on -cos(d_k, d_l)

    Both halves continue from c. Clients that did not answer in the round of a split are split by the last update they
    sent; those that never sent one stay with the half that keeps the cluster's number.

    Arguments:
        eps1: a cluster has converged when the norm of its mean update is below this.
        eps2: its members pull apart when the largest norm of an update is above this.
        after: rounds before the first split.
        smallest: only clusters with more members than this are split.
        K: clients drawn in a round, or "all".

    The two thresholds are absolute norms of parameter updates. They depend on the model, the local solver and the data,
    and the defaults are those of the authors' code for their networks. To choose them, run with `after` beyond the last
    round and read `mean_norms` and `largest_norms` in the log: set eps1 above the level at which the first settles
    (with K clients drawn the mean of a sample never vanishes: about the second divided by sqrt(K)), eps2 below the
    level at which the second settles and above what clients of a single source would show. Too small an eps2 keeps
    splitting, down to `smallest`; mixtures that vary continuously from client to client need a larger one.

    Cost: one task per client drawn; one model down, one up. The server keeps one update of each client.

    Use it: when each client's data comes from one source, or nearly so, and the number of sources is unknown.

    Avoid it: when clients mix sources, since no split of clients separates points, and when there is no time to
        find thresholds: they are absolute norms.

    Example:
        >>> CFL(eps1=0.1, eps2=1.0).after
        20

    Reference: Sattler, Müller, Samek. Clustered federated learning: Model-agnostic distributed multitask optimization
        under privacy constraints. IEEE TNNLS 2020. The mean is a plain one, as in the authors' code; that code records
        the members of a sub-cluster by their position in it, so its second split confuses clients.
    """

    eps1: Annotated[float, Field(ge=0)] = 0.4
    eps2: Annotated[float, Field(ge=0)] = 1.6
    after: Annotated[int, Field(ge=0)] = 20
    smallest: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"

    @property
    def needs(self) -> Needs:
        return Needs.MODELS

    def init(self, site: Site, clients: int) -> State:
        """Put all clients into one cluster."""
        center = site.draw("center", 0)[None]
        s_k = torch.zeros(clients, dtype=torch.int64, device=center.device)
        update_k = center.new_zeros((clients, center.shape[1]))
        per_client = {"s": s_k, "update": update_k, "known": s_k.bool()}
        return State(center, center.new_ones((clients, 1)), per_client)

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Train from the center of each cluster, average by cluster, split where due."""
        c, s_k, ids = state.centers, state.per_client["s"], participants(ask, self.K)
        answer = ask("train", ids, each={"center": c[s_k[ids]]})
        answered = torch.as_tensor(answer.ids, device=c.device)
        update_k = answer.update("update", state.per_client["update"])
        known_k = state.per_client["known"].index_fill(0, answered, True)

        members = one_hot(s_k[answered], len(c)).T.double()  # [clusters, answered]
        mean = average(update_k[answered], members, old=torch.zeros_like(c))
        norms = mean.norm(dim=1).tolist()
        largest = (members * update_k[answered].norm(dim=1)).amax(1).tolist() if len(answered) else [0.0] * len(c)
        c = c + mean
        for j in range(len(mean)) if t >= self.after else ():
            inside = torch.nonzero((s_k == j) & known_k).flatten()  # ids of clients, not positions in the cluster
            due = norms[j] < self.eps1 and largest[j] > self.eps2
            if due and int((s_k == j).sum()) > self.smallest and len(inside) > 1:
                leaves = second_half(update_k[inside])
                s_k = s_k.index_fill(0, inside[leaves], len(c))
                c = torch.cat([c, c[j : j + 1]])

        per_client = {"s": s_k, "update": update_k, "known": known_k}
        notes = {"selected": len(ids), "answered": len(answered), "mean_norms": norms, "largest_norms": largest}
        return State(c, one_hot(s_k, len(c)).to(c.dtype), per_client), notes

    @job(update=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the center of the client's cluster."""
        w, _ = site.solve(shared["center"])
        return mine, {"update": w - shared["center"]}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the center of the client's cluster."""
        return PersonalModels(state.centers[state.per_client["s"]])


def second_half(updates: Tensor) -> Tensor:
    """Cut m >= 2 updates in two by their directions; return a mask of the half that gets a new number, `[m]`.

    That is the half whose mean update comes later in lexicographic order: it must not depend on the order of clients.
    """
    from sklearn.cluster import AgglomerativeClustering

    unit = torch.nn.functional.normalize(updates.double(), dim=1)
    cut = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    half = torch.as_tensor(cut.fit_predict((1 - unit @ unit.T).cpu().numpy()), device=updates.device)
    return half == int(updates[half == 1].mean(0).tolist() > updates[half == 0].mean(0).tolist())
