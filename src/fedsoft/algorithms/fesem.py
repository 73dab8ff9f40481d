"""FeSEM: multi-center federated learning (Xie et al., 2020)."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
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

__all__ = ["FeSEM"]


@settings
class FeSEM(Algorithm):
    """Clients are clustered by their models: each joins the nearest center, which becomes the mean of its members.

    Distances between models take the place of losses, so that clients are sent one center and evaluate none.

    Maths:

        w_k = local solution from c_{s_k}              for each client k drawn
        s_k = argmin_j |w_k - c_j|
        c_j = mean of w_k over {k: s_k = j}            those that answered, not weighted

    In the first round all clients train from one common draw, and k-means of the models gives the initial s_k and c_j;
    when there are fewer different models than S, the other centers stay at the draw. A center without members stays as
    it was. A client that has not answered yet belongs to no center: it uses the mean of all centers, which favours none
    of them, and joins the nearest when it first answers.

    Arguments:
        S: number of centers (the paper's K).
        K: clients drawn in a round after the first, or "all".

    Cost: one task per client drawn; one model down, one up. No evaluations: the server compares models.

    Use it: when clients fall into groups whose models differ, and evaluating all centers at clients is too expensive.
        Needs models that were trained far enough to be compared.

    Avoid it: for networks trained from short local solves, whose parameters are far apart for no reason, and when
        the server may see sums only.

    Example:
        >>> FeSEM(S=4).K
        'all'

    Reference: Long, Xie, Shen, Zhou, Wang, Jiang. Multi-center federated learning: clients clustering for better
        personalization. World Wide Web 2023 (arXiv:2005.01026, 2020).
    """

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"

    @property
    def needs(self) -> Needs:
        return Needs.MODELS

    def init(self, site: Site, clients: int) -> State:
        """Put all centers at one draw; s_k = -1: no client belongs to any."""
        centers = site.draw("center", 0).repeat(self.S, 1)
        nowhere = torch.full((clients,), -1, dtype=torch.int64, device=centers.device)
        return State(centers, centers.new_full((clients, self.S), 1 / self.S), {"s": nowhere})

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Train clients from their centers; assign and average their models."""
        c, s = state.centers, state.per_client["s"]
        begin = bool((s < 0).all())
        ids = ask.everyone if begin else participants(ask, self.K)
        answer = ask("train", ids, each={"w": _own(c, s[ids])})
        w = answer.rows("w", like=c)
        chosen = self._cluster(w, ask, answer.ids) if begin else _distances(w, c).argmin(1)
        members = one_hot(chosen, self.S)
        c = average(answer["w"], members.T.double(), old=c)
        rows = torch.as_tensor(answer.ids, device=c.device)
        u = state.u.index_copy(0, rows, members.to(c.dtype))
        return State(c, u, {"s": s.index_copy(0, rows, chosen)}), {"selected": len(ids), "answered": len(answer.ids)}

    def _cluster(self, w: Tensor, ask: Ask, ids: np.ndarray) -> Tensor:
        """Return the k-means cluster of each of the models `w[m, P]`."""
        from sklearn.cluster import KMeans

        order = np.argsort(ask.generators("order").random()[ids])  # k-means depends on the order: draw it by client
        models = w.double().cpu().numpy()[order]
        count = min(self.S, len(np.unique(models, axis=0)))
        labels = np.zeros(len(ids), dtype=np.int64)
        if count > 1:
            seed = int(ask.generator("k-means").integers(2**31))
            kmeans = KMeans(count, n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
            labels[order] = kmeans.fit_predict(models)
        return torch.from_numpy(labels).to(w.device)

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the client's center on its own points."""
        w, _ = site.solve(shared["w"])
        return mine, {"w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the client's center."""
        return PersonalModels(_own(state.centers, state.per_client["s"]))


def _own(centers: Tensor, s: Tensor) -> Tensor:
    """Return the center of each client, the mean of all for those that belong to none."""
    return torch.where(s[:, None] < 0, centers.mean(0), centers[s])


def _distances(w: Tensor, centers: Tensor) -> Tensor:
    # By differences: the matrix product loses the distance between centers that are close to each other.
    return torch.cdist(w, centers, compute_mode="donot_use_mm_for_euclid_dist")
