"""FLUX: clients clustered by what their points look like to the model (Fenoglio et al., NeurIPS 2025)."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.averaging import average
from fedsoft.clusters.clustered_once import ClusteredOnce, members, mixtures, own_models
from fedsoft.clusters.density import linked
from fedsoft.clusters.gaussians import projected, projection
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Ask, State, job
from fedsoft.core.metrics import cross_entropy
from fedsoft.core.replies import MIXTURE, NUMBER, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import Tunable, settings

__all__ = ["FLUX"]


@settings
class FLUX(ClusteredOnce):
    """FedAvg for a while; then clients are clustered once by moments of their points' latent values, however many
    clusters there are, and every cluster continues alone.

    A new client joins by the same moments without labels, since they describe inputs as the model sees them.

    Maths, with z_i what the last layer of the common model c is given for point i, along `dimension` directions:

        c        = FedAvg                                                   rounds 0 to warm - 1
        free_k   = (mean_i z_i, std_i z_i)                                  sent by all clients in round `warm`
        d_k      = (free_k, and for each of C labels free_k of its points alone, times 1 / sqrt(C))
        near_k   = min_k' |d_k - d_k'|,    eps = `scale` times near_k at the knee of all near_k in order
        clusters = clients that are linked by steps of at most eps; those without a neighbour are alone
        c_s      = sum_k n_k w_k / sum_k n_k over the clients of cluster s that answered, from round `warm` on

    |d_k - d_k'| is the 2-Wasserstein distance of Gaussians with these moments. A label of which a client has no points
    counts as all of its points. The knee is where near_k in order is farthest below the line from first to last.

    A client that did not answer in round `warm` is matched, when it is next drawn, to the cluster whose mean of free_k
    is nearest to its own, which takes no labels; until then it uses the common model. For targets that are no classes
    d_k = free_k: only what inputs look like is compared.

    Arguments:
        warm: FedAvg rounds before the clustering.
        scale: of eps, as published 1, which leaves clients at the edge of a cluster alone; 2 links them where clusters
            are far apart.
        dimension: random directions on which wider latent values are projected, the same for all clients.
        K: clients drawn in a round, or "all".

    Cost: one task per client drawn; one model down, one up. In round `warm` one evaluation of all points by all
        clients, one more model down and 2 d (1 + C) numbers up, d being the dimension.

    Use it: when each client's data comes from one source, or nearly so, nobody knows how many there are, and later
        clients have no labels. Sources that clients mix in between leave no gap for a cluster to end at.

    Avoid it: when sources differ in their labels only and new clients have none, and where moments of latent values
        must not leave a client.

    Example:
        >>> FLUX(warm=3).scale
        1.0

    Reference: Fenoglio, Li, Barbiero, Lane, Langheinrich, Gjoreski. FLUX: Efficient descriptor-driven clustered
        federated learning under arbitrary distribution shifts. NeurIPS 2025. The authors' code reduces latent values
        to as many numbers as there are classes, scales them to a common range, marks labels without points by -1, and
        begins to cluster when the accuracy of the common model no longer rises.
    """

    warm: Annotated[int, Field(ge=0)] = 5
    scale: Annotated[float, Field(gt=0), Tunable((1.0, 1.5, 2.0, 3.0))] = 1.0
    dimension: Annotated[int, Field(ge=1, le=64)] = 16
    K: Participants = "all"

    def init(self, site: Site, clients: int) -> State:
        """Start with one model, no client in a cluster, and no moments."""
        state = super().init(site, clients)
        return state.update(extra={"free": state.centers.new_zeros(1, 0, dtype=torch.float64)})

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Cluster when it is time, match late clients, then play a round of FedAvg in every cluster."""
        if t >= self.warm and bool((state.per_client["s"] < 0).all()):
            state = self._cluster(state, ask)
        ids = participants(ask, self.K)
        state = self._match(state, ask, ids)
        c, s_k, common = state.centers, state.per_client["s"], state.extra["common"]
        answer = ask("train", ids, each={"start": own_models(c, common, s_k[ids])})
        notes = {"selected": len(ids), "answered": len(answer.ids)}
        n = ask.sizes[answer.ids].double().to(c.device)
        if bool((s_k < 0).all()):
            c = average(answer["w"], n[None], old=c)
            return state.update(centers=c, extra={"common": c.clone()}), notes
        s = s_k[torch.as_tensor(answer.ids, device=c.device)]
        own = members(s, len(c))  # the others trained the common model
        return state.update(centers=average(answer["w"], own.T * n, old=c)), notes

    def _cluster(self, state: State, ask: Ask) -> State:
        """Ask all clients what their points look like, and start a center for every cluster."""
        common = state.extra["common"]
        answer = ask("describe", ask.everyone, centers=common)
        if not len(answer.ids):
            return state
        free, labelled = (answer[name].gather().double() for name in ("free", "labelled"))
        s = linked(torch.cat([free, labelled], 1), self.scale)
        count = int(s.max()) + 1
        means = average(free, one_hot(s, count).T.double(), old=free[:1].expand(count, -1))
        s_k = state.per_client["s"].index_copy(0, torch.as_tensor(answer.ids, device=s.device), s)
        c = common.repeat(count, 1)
        return State(c, mixtures(s_k, c), {"s": s_k}, {"common": common, "free": means})

    def _match(self, state: State, ask: Ask, ids: np.ndarray) -> State:
        """Give clients that are in no cluster yet the nearest one."""
        s_k = state.per_client["s"]
        late = ids[(s_k[ids] < 0).cpu().numpy()]
        if not len(late) or bool((s_k < 0).all()):
            return state
        answer = ask("match", late, centers=state.extra["common"], free=state.extra["free"])
        u = answer.update("u", state.u)
        own = torch.as_tensor(answer.ids, device=u.device)
        return state.update(u=u, per_client={"s": s_k.index_copy(0, own, u[own].argmax(1))})

    @job(free=NUMBER, labelled=NUMBER)
    def describe(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Send moments of latent values: of all points, and of those of each label."""
        z = self._latents(site, shared["centers"])
        free = _moments(site, z, torch.ones_like(z[:, :1]))[:, 0]
        if site.model.loss is not cross_entropy:
            return mine, {"free": free, "labelled": free[:, :0]}
        classes = site.model.outputs(shared["centers"], site.data.x[:0][None]).shape[-1]
        label = one_hot(site.data.y[site.data.points], classes).to(z.dtype)
        each = _moments(site, z, label)
        few = torch.zeros(len(site), classes, dtype=z.dtype, device=z.device).index_add_(0, site.data.owners, label)
        each = torch.where((few < max(1, site.least_points))[:, :, None], free[:, None], each)
        return mine, {"free": free, "labelled": each.flatten(1) / classes**0.5}

    @job(u=MIXTURE)
    def match(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Find the cluster whose latent values are most like the client's own, without labels."""
        z = self._latents(site, shared["centers"])
        free = _moments(site, z, torch.ones_like(z[:, :1]))[:, 0]
        distance = torch.cdist(free, shared["free"], compute_mode="donot_use_mm_for_euclid_dist")
        return mine, {"u": one_hot(distance.argmin(1), distance.shape[1]).to(site.dtype)}

    def _latents(self, site: Site, common: Tensor) -> Tensor:
        """Return latent values `[points, d]` in float64, of one model for all clients."""
        z = site.latents(common.expand(len(site), -1))
        return projected(z, projection(z, self.dimension, site.seed))


def _moments(site: Site, z: Tensor, weight: Tensor) -> Tensor:
    """Return mean and standard deviation of z over each client's points, by each column of weights, `[m, C, 2 d]`."""
    total = site.data.mean_by_client(weight)[:, :, None].clamp(min=torch.finfo(z.dtype).tiny)
    mean = site.data.mean_by_client(weight[:, :, None] * z[:, None, :]) / total
    away = (z[:, None, :] - mean[site.data.owners]).square()
    return torch.cat([mean, (site.data.mean_by_client(weight[:, :, None] * away) / total).sqrt()], 2)
