"""Local training: every client on its own."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from fedsoft.centers.mixing import Participants, check_participants, participants
from fedsoft.checks import settings
from fedsoft.contract import Ask, Memory, Reply, Site, State, job, prefixed, under

__all__ = ["Local"]


@settings
class Local:
    """Every client trains a model on its own points alone; nothing is ever sent.

    Maths:

        w_k = local solution of f_k from w_k        for each client k drawn

    There is no center.

    Arguments:
        K: clients that train in a round, or "all".
        moments: whether the local optimiser's memory is `kept` over rounds or `fresh` in each.

    Cost: one task per client drawn; nothing down, nothing up.

    Use it: as the yardstick of personalisation. A method whose personal models do worse than this gains nothing from
        the other clients.

    Example:
        >>> Local().moments
        'kept'

    Reference: the baseline of every paper on personalisation; for instance Mansour, Mohri, Ro, Suresh. Three approaches
        for personalization with applications to federated learning. arXiv 2020.
    """

    K: Participants = "all"
    moments: Literal["kept", "fresh"] = "kept"

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("Local", self.K, clients)

    def init(self, site: Site, clients: int) -> State:
        """No center."""
        return {"centers": site.draw("client")[None][:0]}

    def enrol(self, site: Site) -> Memory:
        """All clients share one first draw."""
        w = site.draw("client").repeat(len(site), 1)
        return {"w": w, **prefixed("moments", site.solver.moments(w))}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Train."""
        ids = participants(ask, self.K)
        answer = ask("train", ids)
        return state, {"selected": len(ids), "answered": len(answer.ids)}

    @job
    def train(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """Further from where the client left off."""
        moments = under("moments", mine) if self.moments == "kept" else None
        w, moments = site.solve(mine["w"], moments)
        return mine | {"w": w, **prefixed("moments", moments)}, {}

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The client's own model w_k."""
        return site.predictions(mine["w"])
