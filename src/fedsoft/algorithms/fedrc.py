"""FedRC: clusters of concepts, whatever labels they hold (Guo, Tang & Lin, ICML 2024)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.averaging import moved
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.initial import First
from fedsoft.clusters.point_mixtures import PointMixtures
from fedsoft.clusters.posterior import posterior
from fedsoft.clusters.selection import Participants
from fedsoft.core.contract import State, job
from fedsoft.core.local_solve import own_outputs
from fedsoft.core.metrics import cross_entropy
from fedsoft.core.replies import COUNTS, MIXTURE, MODEL, Answer, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedRC"]

RARE = 1e-8  # the smallest share of a label within a center


@settings
class FedRC(PointMixtures):
    """FedEM whose posterior is divided by how common a point's label is within the center.

    So a center is not preferred for the labels that it has seen most, but for how labels follow from inputs.

    Maths, for each client k drawn, its points i and the loss l_s(i) of center s:

        q_i(s)  ~ pi_ks exp(-l_s(i)) / P_s(y_i)                     for every point on its own, normalised over s
        pi_ks   = mean_i q_i(s)                                     kept by the client between rounds
        L_ks(y) = mean_i q_i(s) [y_i = y]
        w_ks    = local solution of  mean_i q_i(s) l_s(i)  from c_s for every s
        c_s     = c_s + sum_k n_k / n (w_ks - c_s)                  n: points of ALL clients
        L_s     = L_s + sum_k n_k / n (L_ks - L_s)
        P_s(y)  = L_s(y) / sum_y' L_s(y')                           the share of label y within center s

    A center that holds mostly one label predicts it for anything, so under FedEM all points of that label gather there.
    Divided by P_s(y) such a guess is worth nothing: only centers that disagree about p(y | x) take points from each
    other, and clients whose inputs or labels alone differ share a center.

    In the first round all P_s are uniform, and it is FedEM. So it is throughout where targets are no classes: then
    P_s = 1, and FedRC is FedEM with `scale = fixed`.

    Arguments:
        S: number of centers (the paper's K).
        K: clients drawn in a round, or "all".
        predict_with: the `mixture` sum_s pi_ks p_s(y | x), or the center of the `largest` pi_ks alone.
        first: initial centers: each an independent draw (`xavier`), the corners of the clients' own models after one
            task from a common draw (`simplex`), or the same after some rounds of FedAvg (`warm`).
        warm: FedAvg rounds of `first = warm`.

    Cost: S tasks per client drawn, and S evaluations of its points; S models down, S up, and S numbers for every class
        both ways. These tell the server how many points of each class a client has.

    Use it: when sources label the same inputs differently, and clients have few of the classes each.

    Avoid it: for regression, and when label counts must not leave a client; when clients have all classes alike it
        is FedEM with more bytes.

    Example:
        >>> FedRC(S=2, first="warm").predict_with
        'mixture'

    Reference: Guo, Tang, Lin. FedRC: Tackling diverse distribution shifts challenge in federated learning by robust
        clustering. ICML 2024. Shares of labels below 1e-8 count as 1e-8, as in the authors' code. There L_s is a sum
        over what every client sent last; here it moves as the centers do, which is the same when all take part.
    """

    S: Annotated[int, Field(ge=1)] = 3
    K: Participants = "all"
    predict_with: Literal["mixture", "largest"] = "mixture"
    first: First = "xavier"
    warm: Annotated[int, Field(ge=0)] = 6

    def init(self, site: Site, clients: int) -> State:
        """Return the initial centers, uniform shares and labels that are uniform within each center."""
        state = super().init(site, clients)
        c = state.centers
        count = own_outputs(site.model, site.data, c[:1]).shape[-1] if _has_classes(site) else 1
        return state.update(extra={"labels": c.new_full((self.S, count), 1 / (self.S * count))})

    def sent(self, state: State) -> Reply:
        """Return P_s(y), beside the centers."""
        labels = state.extra["labels"]
        return {"labels": (labels / labels.sum(1, keepdim=True).clamp(min=RARE)).clamp(min=RARE)}

    def joined(self, state: State, answer: Answer, n: Tensor) -> State:
        """Average center by center, and the shares of labels L_s."""
        labels, own = state.extra["labels"], (n / n.sum())[answer.ids]
        if "labels" in answer:
            labels = moved(labels, answer["labels"], own, each=1 / n[answer.ids])
        return state.update(centers=moved(state.centers, answer["w"], own), extra={"labels": labels})

    @job(w=MODEL, pi=MIXTURE, labels=COUNTS)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Do the E-step by point and the M-step by center."""
        prior = mine["pi"][site.data.owners]
        if _has_classes(site):
            prior = prior / shared["labels"].T[site.data.y[site.data.points]]
        q = posterior(site.losses(shared["centers"]), prior)
        reply = self.fitted(site, shared["centers"], q)
        if _has_classes(site):
            reply["labels"] = _labels(site, q, shared["labels"].shape[1])
        return mine | {"pi": reply["pi"]}, reply


def _has_classes(site: Site) -> bool:
    return site.model.loss is cross_entropy


def _labels(site: Site, q: Tensor, classes: int) -> Tensor:
    """Return the sums of q over the points of every class, `[m, S, classes]`; none over fewer than may be sent."""
    each = one_hot(site.data.y[site.data.points], classes).to(q.dtype)
    n = site.data.sizes[:, None].to(q.dtype)
    sums = site.data.mean_by_client(q[:, :, None] * each[:, None, :]) * n[:, :, None]
    enough = (site.data.mean_by_client(each) * n).round() >= site.least_points
    return torch.where(enough[:, None], sums, 0.0)
