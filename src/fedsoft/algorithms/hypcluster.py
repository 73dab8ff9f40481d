"""HypCluster: hypothesis-based clustering (Mansour et al., 2020)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.averaging import mean_by
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.selection import Participants, participants, select
from fedsoft.core.contract import Algorithm, Ask, Needs, PersonalModels, State, job
from fedsoft.core.replies import MIXTURE, MODEL, NUMBER, Answer, ClientState, Ids, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["HypCluster"]


@settings
class HypCluster(Algorithm):
    """Every client joins the center of the smallest mean training loss; the server moves it by the mean change.

    The server moves a center by the mean change of its members, in proportion to their points, instead of taking
    their mean.

    Maths:

        s_k = argmin_j f_k(c_j)
        w_k = local solution from c_{s_k}
        d_j = sum_k n_k (w_k - c_j) / sum_k n_k           over {k: s_k = j} that answered
        m_j = server_momentum m_j + d_j
        c_j = c_j + server_lr m_j

    A center that nobody joins stays as it was, and so does its m_j. With `first = spread` the first round makes the
    initial centers: clients train from one draw; one of their models, picked at random, is the first center; then the
    model of the client whose smallest loss over the centers so far is largest is added, until there are S. When fewer
    clients answer, the other centers keep their own draws.

    Arguments:
        S: number of centers (the paper's q).
        K: clients drawn in a round, or "all".
        first: initial centers: each an independent `draw`, or `spread` over the clients' models.
        server_lr: the server's step along the mean change.
        server_momentum: how much of the last change is carried over.

    Cost: one task per client drawn, and S evaluations of its points; S models down, one up. With `first = spread` the
        first round takes 1 + S (S + 1) / 2 evaluations.

    Use it: as IFCA, when each client's data comes from one source or nearly so, and clients differ in size.

    Avoid it: when clients mix sources, and from independent draws of networks: a center that is best for everybody
        at the start stays the only one (`first = "spread"` helps).

    Example:
        >>> HypCluster(S=3, first="spread").server_lr
        1.0

    Reference: Mansour, Mohri, Ro, Suresh. Three approaches for personalization with applications to federated learning.
        arXiv:2002.10619, 2020.
    """

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"
    first: Literal["draw", "spread"] = "draw"
    server_lr: Annotated[float, Field(gt=0)] = 1.0
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def needs(self) -> Needs:
        return Needs.MODELS if self.first == "spread" else Needs.SUMS

    @property
    def weighs(self) -> bool:
        return self.first != "spread"

    def init(self, site: Site, clients: int) -> State:
        """Draw every center independently; `spread` says whether they are still to be spread."""
        c = torch.stack([site.draw("center", s) for s in range(self.S)])
        u = c.new_full((clients, self.S), 1 / self.S)
        todo = torch.tensor(self.first == "spread", device=c.device)
        return State(c, u, extra={"momentum": torch.zeros_like(c), "spread": todo})

    def init_client(self, site: Site) -> ClientState:
        """Return the last choice: center 0 until a client has chosen."""
        return {"s": torch.zeros_like(site.data.sizes)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Have clients choose and train; move each center along the mean change of those that chose it."""
        c, m, ids = state.centers, state.extra["momentum"], participants(ask, self.K)
        if state.extra["spread"]:
            c, answer = self._spread(c, ask, ids)
            again = torch.full_like(state.extra["spread"], len(answer.ids) == 0)  # if nobody answered
            state = state.update(extra={"spread": again})
        else:
            answer = ask("train", ids, centers=c)
            mean, weight = mean_by(answer, "w", "u", c, ask.sizes[answer.ids])
            joined, change = weight[:, None] > 0, mean - c
            m = torch.where(joined, self.server_momentum * m + change, m)
            c = torch.where(joined, c + self.server_lr * m, c)
        state = state.update(centers=c, u=answer.note("u", state.mixture), extra={"momentum": m})
        return state, {"selected": len(ids), "answered": len(answer.ids)}

    def _spread(self, c: Tensor, ask: Ask, ids: Ids) -> tuple[Tensor, Answer]:
        """Return centers far apart, and which of them each client chose."""
        models = ask("train", ids, centers=c[:1])
        if not len(models.ids):
            return c, models
        before = c
        chances = torch.zeros(1, len(ask.sizes), dtype=torch.float64)
        chances[0, models.ids] = 1
        picked = torch.nonzero(select(chances, 1, ask.generators("first"), replacement=False)[0]).flatten().tolist()
        while True:
            rows = one_hot(torch.from_numpy(np.searchsorted(models.ids, picked)), len(models.ids))
            c = torch.cat([models["w"].weighted(rows).to(c), c[len(picked) :]])
            judged = ask("judge", models.ids, centers=c[: len(picked)])
            if not len(judged.ids):
                return before, judged  # tried again in the next round
            free = ~np.isin(judged.ids, picked)
            if len(picked) == self.S or not free.any():
                return c, judged
            loss = judged["loss"].gather().cpu().numpy()
            picked.append(int(judged.ids[np.where(free, loss, -np.inf).argmax()]))

    @job(u=MIXTURE, w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Choose by the mean TRAINING loss, then train from there."""
        mine, reply = self.judge(site, mine, shared)
        w, _ = site.solve(shared["centers"][mine["s"]])
        return mine, {"u": reply["u"], "w": w}

    @job(u=MIXTURE, loss=NUMBER)
    def judge(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Reply with the best of the centers so far, and its loss."""
        loss, s = site.data.mean_by_client(site.losses(shared["centers"])).min(1)
        return mine | {"s": s}, {"u": one_hot(s, self.S).to(loss.dtype), "loss": loss}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the center of the last choice."""
        return PersonalModels(state.centers[mine["s"]])
