"""Fine-tuning: FedAvg, and at the end everybody trains on from the center."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsoft.centers.mixing import Participants, check_participants, mean_by_size, participants
from fedsoft.checks import settings
from fedsoft.contract import Ask, Memory, Reply, Site, State, job

__all__ = ["FineTune"]


@settings
class FineTune:
    """FedAvg; in the last round every client then trains the finished center further on its own points.

    Maths:

        c   = sum_k n_k w_k / sum_k n_k         over the clients drawn that answered, in every round, as in FedAvg
        w_k = local solution of f_k from c      by everybody, after the last round, with a fresh optimiser

    A client that has not tuned, because the run is not over or because it did not answer, predicts with the center of
    the day, as under FedAvg. Its memory holds the center that it was sent last.

    Arguments:
        K: clients drawn in a round, or "all". All clients are asked to tune.

    Cost: one task per client drawn, one model down, one up; in the last round one further task and one further model
        down for everybody.

    Use it: as the first thing to try when personal models are wanted: it costs one round more than FedAvg.

    Example:
        >>> FineTune(K=10).K
        10

    Reference: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage. Federated evaluation of on-device personalization.
        arXiv 2019.
    """

    K: Participants = "all"

    closing_tasks: ClassVar[int] = 1  # of everybody, in the last round: reserved when work is limited

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("FineTune", self.K, clients)

    def init(self, site: Site, clients: int) -> State:
        """One draw."""
        return {"centers": site.draw("center", 0)[None]}

    def enrol(self, site: Site) -> Memory:
        """Everybody knows the first center; nobody has tuned it."""
        w = site.draw("center", 0).repeat(len(site), 1)
        return {"w": w, "tuned": torch.zeros_like(site.data.sizes, dtype=torch.bool)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Train, then average; in the last round everybody trains on from the mean."""
        c, ids = state["centers"], participants(ask, self.K)
        answer = ask("train", ids, centers=c)
        c = mean_by_size(ask, answer, c)
        notes = {"selected": len(ids), "answered": len(answer.ids)}
        if ask.last:
            notes["tuned"] = len(ask("tune", ask.everyone, centers=c).ids)
        return {"centers": c}, notes

    @job
    def train(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """From the center, on the client's own points."""
        c = shared["centers"].repeat(len(site), 1)
        w, _ = site.solve(c)
        return mine | {"w": c}, {"w": w}

    @job
    def tune(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """The same once more, but the client keeps the result. Batches are drawn anew: it is a pass of its own."""
        w, _ = site.solve(shared["centers"].repeat(len(site), 1), label="tune")
        return mine | {"w": w, "tuned": torch.ones_like(mine["tuned"])}, {}

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The tuned model, or the center for those who have none."""
        return site.predictions(torch.where(mine["tuned"][:, None], mine["w"], shared["centers"]))
