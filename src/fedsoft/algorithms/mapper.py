"""MAPPER: personal models by interpolation of a local and the global model (Mansour et al., 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.one_center import OneCenter
from fedsoft.clusters.selection import Participants
from fedsoft.core.batches import GradientParts
from fedsoft.core.client_draws import Names
from fedsoft.core.contract import PersonalModels, State, job
from fedsoft.core.local_solve import Work, own_outputs
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["MAPPER"]

Share = Annotated[float, Field(ge=0, le=1)]


@settings
class MAPPER(OneCenter):
    """Clients fit a local model to be mixed with the center, for several shares, and train the center under the best.

    The share is chosen from a grid by each client's own points, where APFL moves it by gradient.

    Maths, for each client k drawn, with c the center that it received:

        v(l)      = local solution of f_k(l v + (1 - l) c) over v, from v_k       for each l in the grid
        lambda_k  = argmin_l f_k(l v(l) + (1 - l) c)                              on its training points
        v_k       = v(lambda_k), kept between rounds
        w_k       = local solution of f_k(lambda_k v_k + (1 - lambda_k) w) over w, from c
        c         = sum_k n_k w_k / sum_k n_k                                     over all that answered

    So a step of v is along l grad f_k, a step of w along (1 - lambda_k) grad f_k, both at the mix. The personal model
    is lambda_k v_k + (1 - lambda_k) w_k, with the client's own w_k. With the grid (0) all this is FedAvg, with (1) it
    is local training.

    The share in a gradient acts under SGD. Adam makes the size of a step independent of it.

    Arguments:
        K: clients drawn in a round, or "all".
        grid: the shares lambda of the local model to choose from.

    Cost: one task for each entry of the grid and one more, and one evaluation for each entry, per client drawn; one
        model down, one up.

    Use it: when clients differ in how much the others can help them, and there is time for the grid.

    Avoid it: when work is scarce, since every value of the grid is a task of its own, and for cluster models: there
        is one center.

    Example:
        >>> MAPPER(K=10).grid
        (0.25, 0.5, 0.75)

    Reference: Mansour, Mohri, Ro, Suresh. Three approaches for personalization with applications to federated learning.
        arXiv 2002.10619, 2020. Here w_k takes a whole pass of steps, as in FedAvg, where other code takes one step, and
        the mean is weighted by n_k. Every v_k starts at the initial center; v and w see the same batches.
    """

    K: Participants = "all"
    grid: Annotated[tuple[Share, ...], Field(min_length=1)] = (0.25, 0.5, 0.75)

    def init_client(self, site: Site) -> ClientState:
        """Return the mix w, the local model v and its share. Both start at one center: separate draws do not mix."""
        w = site.draw("center", 0).repeat(len(site), 1)
        return {"w": w, "v": w.clone(), "lam": w.new_full((len(site), 1), self.grid[0])}

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train the grid, all shares of all clients in one stack; then the center under the best share."""
        m, count = len(site), len(self.grid)
        c = shared["centers"].repeat(m, 1)
        # Repeat every client for each share; its name, and so its batches, stay the same.
        names = Names.of(site.names).repeat(count)
        wide = replace(
            site, data=site.data.take(np.repeat(np.arange(m), count)), names=names, work=Work.none(m * count)
        )
        lam, fixed = c.new_tensor(self.grid).repeat(m)[:, None], c.repeat_interleave(count, 0)
        v = train_share(wide, mine["v"].repeat_interleave(count, 0), lam, fixed)
        best = mean_losses(wide, lam * v + (1 - lam) * fixed).view(m, count).argmin(1)
        site.work.gradients.add_(wide.work.gradients.view(m, count).sum(1))
        site.work.evaluations.add_(wide.work.evaluations.view(m, count).sum(1))

        chosen = torch.arange(m, device=c.device) * count + best
        v, lam = v[chosen], lam[chosen]
        w = train_share(site, c, 1 - lam, v)
        return mine | {"w": lam * v + (1 - lam) * w, "v": v, "lam": lam}, {"w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the personal mix."""
        return PersonalModels(mine["w"])


def train_share(site: Site, w: Tensor, share: Tensor, fixed: Tensor) -> Tensor:
    """Minimise f_k(share w + (1 - share) fixed) over `w[m, P]`, with `share[m, 1]`."""
    batches, solver = site.batches()
    optimizer = {name: batches.stack(rows) for name, rows in site.optimizer_state(w).items()}
    w, share, fixed = batches.stack(w), batches.stack(share), batches.stack(fixed)
    stepper = solver.stepper(optimizer, batches.plan)
    for step, b in batches:
        active = slice(batches.plan.active[b])
        w_k, s = w[active], share[active]
        stepper.step(step, w_k, GradientParts(s * batches.gradient(s * w_k + (1 - s) * fixed[active])))
        batches.settle(w_k)
    site.count_work(batches)
    return batches.unstack(w)


def mean_losses(site: Site, w: Tensor) -> Tensor:
    """Return the mean training loss of each client's own model `w[m, P]`, `[m]`."""
    output, y = own_outputs(site.model, site.data, w), site.data.y[site.data.points]
    site.work.evaluations.add_(site.data.sizes.cpu())
    return site.data.mean_by_client(site.model.loss(output[None], y[None])[0])
