"""FedRep: a body that all clients share, and a head of each client's own (Collins et al., ICML 2021)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.one_center import OneCenter
from fedsoft.clusters.selection import Participants
from fedsoft.core.contract import PersonalModels, State, job
from fedsoft.core.heads import Patterns, head_of
from fedsoft.core.local_solve import task_passes
from fedsoft.core.model import Model
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedRep"]


@settings
class FedRep(OneCenter):
    """Clients train the body of the center together; each puts a head of its own on it, which never leaves the client.

    What is common is how an input is described, and what is personal is what follows from the description.

    Maths, for a model w = (b, h) of body and head, and each client k drawn, with b the body that it received:

        h_k = local solution of f_k(b, h) over h alone, from h_k           `epochs` - `body_epochs` passes, at least one
        b_k = local solution of f_k(b, h_k) over b alone, from b           `body_epochs` passes
        b   = sum_k n_k b_k / sum_k n_k                                    over those that answered

    and after the last round every client fits its head to the final body as in the first line. Its personal model is
    (b, h_k). The center's own head stays as it was drawn: judge this algorithm by personal models.

    Arguments:
        K: clients drawn in a round, or "all". All clients are asked to fit their heads after the last round.
        head: patterns of names of parameters, such as `["fc.*"]`, that are the head; default: those of the last module
            that has any. A model of a single module, such as `linear`, is all head: then clients train alone.
        body_epochs: passes for the body; the solver's other epochs are for the head.

    Cost: one task per client drawn; one model down, one up, in which the places of the head hold the center's. After
        the last round one more task by all clients and one model down.

    Use it: when clients agree about what matters in an input and differ in what follows from it, as with other labels.

    Avoid it: when clients have few points, since a head is trained on those alone; when clients differ in their
        inputs; when a client that comes later has no labels to train a head on.

    Example:
        >>> FedRep(K=10, head=["fc2.*"]).body_epochs
        1

    Reference: Collins, Hassani, Mokhtari, Shakkottai. Exploiting shared representations for personalized federated
        learning. ICML 2021. There, and in the authors' code for images, all bodies count alike; here a body counts by
        its client's points, as everywhere in this library. Their code gives heads at least ten passes at the end. An
        optimizer starts afresh for the head and for the body.
    """

    closing_job = "tune"

    K: Participants = "all"
    head: Patterns = None
    body_epochs: Annotated[int, Field(ge=1)] = 1

    def closing_tasks(self, model: Model) -> int:
        return 1

    def init_client(self, site: Site) -> ClientState:
        """Start from the head of the initial center."""
        w = site.draw("center", 0)
        return {"head": w[self._head(site)].repeat(len(site), 1)}

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Fit the head to the body, then the body to the head; send the body."""
        head, w = self._head(site), self._fit(site, mine, shared["centers"], "head")
        w = site.solve_part(w, ~head, self.body_epochs)
        return {"head": w[:, head]}, {"w": torch.where(head, shared["centers"], w)}

    @job()
    def tune(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Fit the head to the final body."""
        return {"head": self._fit(site, mine, shared["centers"], "tune")[:, self._head(site)]}, {}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the center's body with the client's own head."""
        return PersonalModels(self._joined(site, mine, state.centers))

    def _fit(self, site: Site, mine: ClientState, center: Tensor, label: str) -> Tensor:
        """Return the models after the passes for the head."""
        passes = max(1, task_passes(site.solver) - self.body_epochs)
        return site.solve_part(self._joined(site, mine, center), self._head(site), passes, label)

    def _joined(self, site: Site, mine: ClientState, center: Tensor) -> Tensor:
        w = center.repeat(len(site), 1)
        w[:, self._head(site)] = mine["head"]
        return w

    def _head(self, site: Site) -> Tensor:
        return head_of(site.model, "FedRep.head", self.head).to(site.data.x.device)
