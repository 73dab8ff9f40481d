"""FedEM: federated expectation maximisation for mixtures of sources (Marfoq et al., NeurIPS 2021)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.averaging import moved
from fedsoft.clusters.initial import First
from fedsoft.clusters.point_mixtures import PointMixtures
from fedsoft.clusters.posterior import posterior
from fedsoft.clusters.selection import Participants
from fedsoft.core.contract import State, job
from fedsoft.core.metrics import squared_loss
from fedsoft.core.replies import MIXTURE, MODEL, NUMBER, Answer, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedEM"]


@settings
class FedEM(PointMixtures):
    """Every client keeps a mixture of the centers and trains each on its points, weighted by its posterior.

    The server averages each center over clients, by how much of it each has; clients predict with the mixture of
    all centers.

    Maths, for each client k drawn, its points i and the loss l_s(i) of center s:

        q_i(s) = pi_ks exp(-l_s(i)) / sum_s' pi_ks' exp(-l_s'(i))           for every point on its own
        pi_ks  = mean_i q_i(s)                                              kept by the client between rounds
        w_ks   = local solution of  mean_i q_i(s) l_s(i)  from c_s          for every s
        c_s    = c_s + sum_k n_k / n (w_ks - c_s)                           n: points of ALL clients

    so clients that do not answer count for the old center. With squared loss exp(-l) assumes noise of variance 1/2.
    With `scale = estimated` the loss is instead that of a Gaussian of one variance s2, shared by all centers and
    clients:

        l_s(i) = r_s(i)^2 / (2 s2),     s2 = sum_k sum_i sum_s q_i(s) r_ks(i)^2 / sum_k n_k

    where r_ks are the residuals of the new w_ks, over those that answered; they are biased low where clients have few
    points for the number of parameters. Until the server knows s2, a client uses its own mean of r_s(i)^2 under the
    initial centers: large enough that all centers share every point at first and separate slowly as s2 falls.

    Arguments:
        S: number of centers (the paper's M).
        K: clients drawn in a round, or "all".
        scale: for squared loss, whether the variance of the noise is `estimated`, or `fixed` so that q uses exp(-l) as
            published. Other losses are always used as they are.
        predict_with: the `mixture` sum_s pi_ks p_s(y | x), or the center of the `largest` pi_ks alone.
        first: initial centers: each an independent draw (`xavier`), the corners of the clients' own models after one
            task from a common draw (`simplex`), or the same after some rounds of FedAvg (`warm`).
        warm: FedAvg rounds of `first = warm`.

    Cost: S tasks per client drawn, and S evaluations of its points (2 S where the scale is estimated); S models down,
        S up.

    Use it: when every client's data is a mixture of a few sources and S times the work is affordable.

    Avoid it: when few clients take part in a round and work is scarce: a task costs S times as much. From
        independent draws of a network it may end with all clients at one center.

    Example:
        >>> FedEM(S=2).scale
        'estimated'

    Reference: Marfoq, Neglia, Bellet, Kameni, Vidal. Federated multi-task learning under a mixture of distributions.
        NeurIPS 2021.
    """

    S: Annotated[int, Field(ge=1)] = 3
    K: Participants = "all"
    scale: Literal["estimated", "fixed"] = "estimated"
    predict_with: Literal["mixture", "largest"] = "mixture"
    first: First = "xavier"
    warm: Annotated[int, Field(ge=0)] = 6

    def init(self, site: Site, clients: int) -> State:
        """Return the initial centers and uniform shares. s2 = 0: not known yet; s2 = 1/2 leaves the loss as it is."""
        state = super().init(site, clients)
        return state.update(extra={"s2": state.u.new_tensor(0.0 if self._estimates(site) else 0.5)})

    def sent(self, state: State) -> Reply:
        """Return s2, beside the centers."""
        return {"s2": state.extra["s2"]}

    def joined(self, state: State, answer: Answer, n: Tensor) -> State:
        """Average center by center, and the squared residuals over all outputs."""
        c, s2, own = state.centers, state.extra["s2"], (n / n.sum())[answer.ids]
        c = moved(c, answer["w"], own)
        if "residual" in answer:  # positive, since 0 means not known yet
            s2 = (answer["residual"].weighted(own[None])[0] / own.sum()).to(c.dtype).clamp(min=_tiny(c))
        return state.update(centers=c, extra={"s2": s2})

    @job(w=MODEL, pi=MIXTURE, residual=NUMBER)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Do the E-step by point and the M-step by center."""
        c, owners = shared["centers"], site.data.owners
        losses = site.losses(c)
        outputs = site.data.y[:1].numel()
        first = (site.data.mean_by_client(losses.mean(1)) / outputs).clamp(min=_tiny(c))
        s2 = torch.where(shared["s2"] > 0, shared["s2"], first)[owners, None]
        q = posterior(losses, mine["pi"][owners], s2)
        reply = self.fitted(site, c, q)
        if self._estimates(site):
            y = site.data.y[site.data.points]
            each = [squared_loss(site.predictions(reply["w"][:, s])[None], y[None])[0] for s in range(self.S)]
            squares = (q * torch.stack(each, dim=1)).sum(1) / outputs  # of one output
            reply["residual"] = site.data.mean_by_client(squares)
        return mine | {"pi": reply["pi"]}, reply

    def _estimates(self, site: Site) -> bool:
        """Return whether the loss is squared and its scale is estimated."""
        return self.scale == "estimated" and site.model.loss is squared_loss


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
