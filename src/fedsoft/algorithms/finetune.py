"""Fine-tuning: FedAvg, after which every client trains on from the center."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field

from fedsoft.clusters.one_center import OneCenter
from fedsoft.clusters.selection import Participants
from fedsoft.core.contract import PersonalModels, State, job
from fedsoft.core.local_solve import slowed
from fedsoft.core.model import Model
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import Tunable, settings

__all__ = ["FineTune"]


@settings
class FineTune(OneCenter):
    """FedAvg; in the last round every client then trains the finished center further on its own points.

    Everybody gets the same start, and goes as far from it as its own points lead in one local solve.

    Maths:

        c   = sum_k n_k w_k / sum_k n_k         over the clients drawn that answered, in every round, as in FedAvg
        w_k = local solution of f_k from c      by all clients, after the last round, in `tasks` tasks with one fresh
                                                optimizer

    A client that has not tuned, because the run is not over or because it did not answer, predicts with the current
    center, as under FedAvg. Its client state holds the last center it was sent.

    Arguments:
        K: clients drawn in a round, or "all". All clients are asked to tune.
        tasks: how far they go from the center: each is a task of the local solver from where the last one ended.
        own_rate: the learning rate of these tasks, as a share of the solver's; a network that knows most already wants
            smaller steps. Solvers without a rate ignore it.

    Cost: one task per client drawn, one model down, one up; in the last round `tasks` further ones and one further
        model down for each client.

    Use it: as the first thing to try when personal models are wanted: it costs one more round than FedAvg.

    Avoid it: when clients have a handful of points, which fine-tuning fits by heart, or when cluster models are
        wanted.

    Example:
        >>> FineTune(K=10).K
        10

    Reference: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage. Federated evaluation of on-device personalization.
        arXiv 2019.
    """

    closing_job = "tune"

    K: Participants = "all"
    tasks: Annotated[int, Field(ge=1), Tunable((1, 2, 4))] = 1
    own_rate: Annotated[float, Field(gt=0), Tunable((0.1, 0.3, 1.0))] = 1.0

    def closing_tasks(self, model: Model) -> int:
        return self.tasks

    def init_client(self, site: Site) -> ClientState:
        """Start from the initial center, not tuned."""
        w = site.draw("center", 0).repeat(len(site), 1)
        return {"w": w, "tuned": torch.zeros_like(site.data.sizes, dtype=torch.bool)}

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the center on the client's own points."""
        c = shared["centers"].repeat(len(site), 1)
        w, _ = site.solve(c)
        return mine | {"w": c}, {"w": w}

    @job()
    def tune(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the center and keep the result. Batches are drawn anew: it is a pass of its own."""
        if self.own_rate != 1:
            site = replace(site, solver=slowed(site.solver, self.own_rate))
        w, optimizer = site.solve(shared["centers"].repeat(len(site), 1), label="tune")
        for task in range(1, self.tasks):
            w, optimizer = site.solve(w, optimizer, label=f"tune {task}")
        return mine | {"w": w, "tuned": torch.ones_like(mine["tuned"])}, {}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the tuned model, or the center for clients that have none."""
        return PersonalModels(torch.where(mine["tuned"][:, None], mine["w"], state.centers))
