"""FedAMP: federated attentive message passing (Huang et al., AAAI 2021)."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.batches import Prox
from fedsoft.core.contract import Algorithm, Ask, Needs, PersonalModels, State, job
from fedsoft.core.replies import MODEL, ClientState, Ids, Reply
from fedsoft.core.site import Site
from fedsoft.settings import Tunable, settings

__all__ = ["FedAMP"]


@settings
class FedAMP(Algorithm):
    """Every client is pulled towards a mean of all models in which those most like its own count most.

    The server computes that mean for each client, by how far models are apart, so there is a message of its own for
    everybody.

    Maths:

        xi_kj = alpha A'(|w_k - w_j|^2)  for j != k         A'(d) = exp(-d / sigma) / sigma
        xi_kk = 1 - sum_{j != k} xi_kj
        u_k   = sum_j xi_kj w_j                             by the server, from the last models of all clients
        w_k   = argmin f_k(w) + lambda / (2 alpha) |w - u_k|^2

    With many similar models, or a small sigma, the xi_kj may add up to more than 1; they are then scaled down to 1, so
    that xi_kk >= 0 and u_k is always a mean.

    Arguments:
        alpha: step of the server towards similar models, as in xi.
        sigma: squared distance over which attention falls by a factor e. Absolute: with sigma far below the squared
            distances of models every client trains alone, far above them all others count equally.
        lam: the paper's lambda; the pull towards u_k is lambda / alpha.
        K: clients drawn in a round, or "all".

    The defaults are those of the public library PFLlib; sigma has to be set to the scale of |w_k - w_j|^2 in the data.

    Cost: one task per client drawn; one model down, one up. The server keeps all clients' models and compares each with
        all others: K N P operations.

    Use it: for personal models when some clients are alike but there are no clear clusters. There are no centers.

    Avoid it: when new clients have to be served, since nothing is left to hand to them, with very many clients, or
        when the server may see sums only.

    Example:
        >>> FedAMP(sigma=100.0).lam
        1.0

    Reference: Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized cross-silo federated learning on non-IID data.
        AAAI 2021.
    """

    alpha: Annotated[float, Field(gt=0)] = 1.0
    sigma: Annotated[float, Field(gt=0)] = 1.0
    lam: Annotated[float, Field(ge=0), Tunable((0.01, 0.1, 1.0, 10.0))] = 1.0
    K: Participants = "all"

    @property
    def needs(self) -> Needs:
        return Needs.MODELS

    def init(self, site: Site, clients: int) -> State:
        """Start all clients at one common draw; there are no centers."""
        w = site.draw("client").repeat(clients, 1)
        return State(w[:0], per_client={"w": w})

    def init_client(self, site: Site) -> ClientState:
        """Start all clients at one common draw."""
        return {"w": site.draw("client").repeat(len(site), 1)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Mix all models for each client drawn; these clients then train."""
        w, ids = state.per_client["w"], participants(ask, self.K)
        answer = ask("train", ids, each={"u": self.attention(w, ids) @ w})
        w = answer.update("w", w)
        return state.update(per_client={"w": w}), {"selected": len(ids), "answered": len(answer.ids)}

    def attention(self, w: Tensor, ids: Ids) -> Tensor:
        """Return xi_kj of the clients `ids` for all models `w[N, P]`, `[len(ids), N]`."""
        own = torch.arange(len(w), device=w.device) == torch.as_tensor(ids, device=w.device)[:, None]
        # By differences: the faster matrix product loses the small distances, which count most.
        d = torch.cdist(w[ids], w, compute_mode="donot_use_mm_for_euclid_dist").square()
        xi = (self.alpha / self.sigma * torch.exp(-d / self.sigma)).masked_fill(own, 0)
        xi = xi / xi.sum(1, keepdim=True).clamp(min=1)
        return torch.where(own, 1 - xi.sum(1, keepdim=True), xi)

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Solve one proximal problem from the client's own model."""
        pull = self.lam / self.alpha
        prox = Prox(shared["u"].new_full((len(site), 1), pull), pull * shared["u"])
        w, _ = site.solve(mine["w"], prox=prox)
        return mine | {"w": w}, {"w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        return PersonalModels(mine["w"])
