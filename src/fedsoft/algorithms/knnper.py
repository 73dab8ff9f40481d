"""kNN-Per: the global model and each client's nearest points, interpolated (Marfoq et al., ICML 2022)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.neighbours import Neighbours, Store, as_targets
from fedsoft.clusters.one_center import OneCenter
from fedsoft.clusters.selection import Participants
from fedsoft.core.contract import PersonalModels, State, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.errors import InputError
from fedsoft.settings import settings

__all__ = ["KNNPer"]


@settings
class KNNPer(OneCenter):
    """FedAvg; afterwards a client mixes what the model predicts with what its own nearest points say.

    Each client keeps the latent values and labels of its own points, and looks up the nearest ones when it
    predicts.

    Maths, with z(x) what the last layer of the center c is given, of d numbers, and each client k's own points:

        c          = sum_k n_k w_k / sum_k n_k                       as in FedAvg, over the clients that answered
        near_k(x)  = the `k` points i of client k of the smallest r_i = |z(x_i) - z(x)|
        said_k(x)  = sum_i y_i exp(-r_i^2 / (d scale)) / sum_i exp(-r_i^2 / (d scale))     over near_k(x)
        p_k(x)     = lam_k said_k(x) + (1 - lam_k) p(x; c)

    with labels y_i as rows of 0 and 1. Every client remembers z of its points after the last round. If `lam` is not
    given, a client holds back a part of its points from all training and takes the lam_k of the smallest squared error
    on them, which is in closed form; afterwards they are remembered as well. A client with too few points to hold any
    back uses the center alone, and so does one that did not answer.

    Arguments:
        K: clients drawn in a round, or "all". All clients are asked to remember their points after the last round.
        k: number of neighbours.
        lam: the share of neighbours, lambda, the same for all clients; default: chosen by each.
        held_back: share of a client's points by which lam_k is chosen.
        scale: of the distances between neighbours.
        capacity: points that a client remembers, drawn at random if it has more.

    Cost: one task per client drawn; one model down, one up. After the last round one model down and two evaluations of
        all points by all clients. Clients keep latent values and targets of their points, and so do saved runs.

    Use it: when clients differ in what they see, and have many points near each other. It costs no training.

    Avoid it: when clients must not keep copies of their points, or when models are to be exported.

    Example:
        >>> KNNPer(k=5, lam=0.5).capacity
        200

    Reference: Marfoq, Neglia, Kameni, Vidal. Personalized federated learning through local memorization. ICML 2022.
        There lambda is chosen from a grid, by accuracy on validation points.
    """

    closing_job = "remember"

    K: Participants = "all"
    k: Annotated[int, Field(ge=1)] = 10
    lam: Annotated[float, Field(ge=0, le=1)] | None = None
    held_back: Annotated[float, Field(ge=0, le=0.5)] = 0.2
    scale: Annotated[float, Field(gt=0)] = 1.0
    capacity: Annotated[int, Field(ge=1, le=10_000)] = 200

    def init_client(self, site: Site) -> ClientState:
        """Remember nothing: such clients predict with the center."""
        if site.model.local_statistics:
            raise InputError("statistics = 'local' is not for KNNPer, whose clients compare points by one center")
        w = site.draw("center", 0)[None]
        nothing = site.data.x[:0][None]
        size, outputs = site.model.latents(w, nothing).shape[-1], self._predicted(site, w, nothing).shape[2:]
        m = len(site)
        return {
            "keys": w.new_zeros(m, self.capacity, size), "values": w.new_zeros(m, self.capacity, *outputs),
            "count": torch.zeros_like(site.data.sizes), "lam": w.new_zeros(m),
        }  # fmt: skip

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the center on the points that are not held back."""
        c = shared["centers"].repeat(len(site), 1)
        if self.lam is None and self.held_back:
            return mine, {"w": site.solve_some(c, ~self._held_back(site))}
        return mine, {"w": site.solve(c)[0]}

    @job()
    def remember(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Keep the latent values of the client's points, and choose lam_k by those held back."""
        c, data = shared["centers"].repeat(len(site), 1), site.data
        z, predicted = site.latents(c), site.predictions(c)
        y = as_targets(data.y[data.points], predicted)
        held, order = self._held_back(site), self._order(site)
        if self.lam is None:
            others = self._stored(site, z, y, torch.where(held, self.capacity, order))
            said = others.predict(z, data.owners, self.k, self.scale)
            toward, missing = ((part.flatten(1) if part.ndim > 1 else part[:, None]) * held[:, None]
                               for part in (said - predicted, y - predicted))  # fmt: skip
            top, under = (data.mean_by_client((toward * part).sum(1)) for part in (missing, toward))
            lam = torch.where(under > 0, top / under.clamp(min=torch.finfo(z.dtype).tiny), 0.0).clamp(0, 1)
        else:
            lam = z.new_full((len(site),), self.lam)
        kept = self._stored(site, z, y, order)
        return mine | {"keys": kept.keys, "values": kept.values, "count": kept.count, "lam": lam}, {}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the center, and the client's neighbours beside it."""
        store = Store(mine["keys"], mine["values"], mine["count"])
        gate = Neighbours(site.model, state.centers, store, mine["lam"], self.k, self.scale)
        return PersonalModels(state.centers, torch.ones_like(mine["lam"])[:, None], gate)

    def _predicted(self, site: Site, w: Tensor, x: Tensor) -> Tensor:
        return site.model.predict(site.model.outputs(w, x))

    def _order(self, site: Site) -> Tensor:
        """Draw the order of each client's points `[points]`, the same in every round."""
        data = site.data
        drawn = replace(site, t=0).generators("held back").permutations(data.sizes.cpu().numpy())[0]
        return torch.as_tensor(drawn, device=data.owners.device) - data.offsets[data.owners]

    def _held_back(self, site: Site) -> Tensor:
        """Return which points are held back: the last of their client's order."""
        n = site.data.sizes
        left = n - (n * (self.held_back if self.lam is None else 0.0)).floor().long()
        left = torch.where(left >= site.least_points, left, n)  # a model of fewer points may not be sent
        return self._order(site) >= left[site.data.owners]

    def _stored(self, site: Site, z: Tensor, y: Tensor, order: Tensor) -> Store:
        """Put points at the places that their order says; those beyond the capacity are left out."""
        kept = order < self.capacity
        owners, places = site.data.owners[kept], order[kept]
        keys = z.new_zeros(len(site), self.capacity, z.shape[1]).index_put((owners, places), z[kept])
        values = y.new_zeros(len(site), self.capacity, *y.shape[1:]).index_put((owners, places), y[kept])
        return Store(keys, values, torch.bincount(owners, minlength=len(site)))
