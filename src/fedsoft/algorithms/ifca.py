"""IFCA: iterative federated clustering (Ghosh et al., NeurIPS 2020)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from fedsoft.clusters.averaging import mean_by
from fedsoft.clusters.collapse import reseeded
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Algorithm, Ask, Needs, PersonalModels, State, job
from fedsoft.core.replies import CHOICE, MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.errors import SettingError
from fedsoft.settings import settings

__all__ = ["IFCA"]


@settings
class IFCA(Algorithm):
    """Every client joins the center of the smallest mean training loss and trains that one only.

    Membership is found anew in every round, by evaluating all centers on the client's own points.

    Maths:

        s_k = argmin_j f_k(c_j)
        c_j = mean of the local solutions w_k from c_j over {k: s_k = j}        `average = model`
        c_j = c_j - lr * mean of grad f_k(c_j) over {k: s_k = j}                `average = gradient`

    A center that nobody joins stays as it was.

    Arguments:
        S: number of centers (the paper's k).
        K: clients drawn in a round, or "all".
        average: whether clients send a locally trained model or one gradient over all their points.
        lr: the paper's gamma, the server's step for `average = gradient`.
        reseed: with `average = model`, a center that is hardly used (less than a tenth of an even share of the points)
            is replaced by the client model that is farthest from the others.

    Cost: one task per client drawn (one gradient for `average = gradient`), and S evaluations of its points; S models
        down, one up.

    Use it: when each client's data comes from one source, or nearly so.

    Avoid it: when clients mix sources: the minority's points stay in the center (2.7 at a noise floor of 1 on the
        paper's 10:90 federation), and it depends on its first centers.

    Example:
        >>> IFCA(S=3).average
        'model'

    Reference: Ghosh, Chung, Yin, Ramchandran. An efficient framework for clustered federated learning. NeurIPS 2020.
        The paper divides the sum of gradients by all clients that take part; here it is by those of the cluster, so
        that the size of a step does not depend on how many clusters there are.
    """

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"
    average: Literal["model", "gradient"] = "model"
    lr: Annotated[float, Field(gt=0)] = 0.1
    reseed: bool = False

    @property
    def rates(self) -> tuple[str, ...]:
        return ("lr",) if self.average == "gradient" else ()

    @property
    def needs(self) -> Needs:
        return Needs.MODELS if self.reseed else Needs.SUMS

    @property
    def weighs(self) -> bool:
        return not self.reseed

    def init(self, site: Site, clients: int) -> State:
        """Draw every center independently: equal ones would leave the first choice to rounding."""
        if self.average == "gradient" and site.model.statistics:
            raise SettingError(
                "IFCA", "average", self.average,
                "should be 'model', since running statistics (BatchNorm) have no gradient", "for this model",
            )  # fmt: skip
        centers = torch.stack([site.draw("center", s) for s in range(self.S)])
        return State(centers, centers.new_full((clients, self.S), 1 / self.S))

    def init_client(self, site: Site) -> ClientState:
        """Return the last choice: center 0 until a client has chosen."""
        return {"s": torch.zeros_like(site.data.sizes)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Have clients choose and train; average by choice."""
        c, ids = state.centers, participants(ask, self.K)
        answer = ask("train", ids, centers=c)
        u = answer.note("s", state.mixture)
        if self.average == "model":
            c, _ = mean_by(answer, "w", "s", c)
            if self.reseed and u is not None:
                c = reseeded(c, u, ask.sizes, answer.rows("w", like=c))
        else:
            c = c - self.lr * mean_by(answer, "gradient", "s", torch.zeros_like(c))[0]
        return State(c, u), {"selected": len(ids), "answered": len(answer.ids)}

    @job(s=CHOICE, w=MODEL, gradient=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Choose by the mean TRAINING loss, then train from there."""
        c = shared["centers"]
        s = site.data.mean_by_client(site.losses(c)).argmin(1)
        if self.average == "gradient":
            return mine | {"s": s}, {"s": s, "gradient": site.gradient(c[s])}
        w, _ = site.solve(c[s])
        return mine | {"s": s}, {"s": s, "w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the center of the last choice; center 0 for a client that was never drawn."""
        return PersonalModels(state.centers[mine["s"]])
