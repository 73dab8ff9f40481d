"""MOCHA: federated multi-task learning (Smith et al., NeurIPS 2017)."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.batches import Prox
from fedsoft.core.contract import Algorithm, Ask, Needs, PersonalModels, State, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.errors import InputError
from fedsoft.settings import Tunable, settings

__all__ = ["MOCHA"]


@settings
class MOCHA(Algorithm):
    """Every client has a linear model of its own; how the models relate is learned with them.

    A matrix of how much each client's model goes with each other's is learned in turn with the models.

    Maths, with the models w_k as columns of W:

        min sum_k f_k(w_k) + lambda/2 (tr W Omega W^T + eps tr Omega)     over W and Omega = Sigma^-1 with tr Sigma = 1

        Sigma = (W^T W + eps I)^(1/2) / its trace                             every `outer` rounds, by the server
        w_k   = argmin f_k(w) + lambda ( <(W Omega)_k, w> + sigma'/2 Omega_kk |w - w_k|^2 )        by the clients drawn
        sigma' = max_k sum_j |Omega_kj| / Omega_kk

    The second line minimises the objective over Sigma. The third bounds the coupling of clients from above by problems
    of their own, so that all of them may change at once; so the objective never grows.

    Arguments:
        lam: the paper's lambda.
        outer: rounds between updates of Omega.
        eps: keeps Sigma invertible when there are more clients than parameters, or models that are alike. It has the
            unit of |w_k|^2, and a tenth of that is a good first try: the smaller eps is, the less a client can leave
            the span of the models, and the slower the rounds converge.
        K: clients drawn in a round, or "all".

    Cost: one task per client drawn; one model down, one up. The server works on an N x N matrix: N^2 P operations.

    Use it: for personal linear models of few points each. There are no centers.

    Avoid it: for anything but linear models, with many clients (the matrix has N squared entries), and when new
        clients have to be served.

    Example:
        >>> MOCHA(lam=0.1).outer
        5

    Reference: Smith, Chiang, Sanjabi, Talwalkar. Federated multi-task learning. NeurIPS 2017. The paper works on the
        dual problem, with sigma' of Sigma; here it is the primal one, so that any local solver will do. The authors'
        code clips the eigenvalues of W^T W at 1e-7 in place of adding eps.
    """

    lam: Annotated[float, Field(ge=0), Tunable((0.001, 0.01, 0.1, 1.0))] = 0.01
    outer: Annotated[int, Field(ge=1)] = 5
    eps: Annotated[float, Field(gt=0)] = 1.0
    K: Participants = "all"

    @property
    def needs(self) -> Needs:
        return Needs.MODELS

    def init(self, site: Site, clients: int) -> State:
        """Start at W = 0, for which Sigma = I/N: clients are not related yet. There are no centers."""
        w = first_models(site, clients)
        return State(w[:0], per_client={"w": w, "related": w.clone()})

    def init_client(self, site: Site) -> ClientState:
        return {"w": first_models(site, len(site))}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Update Omega when due; then have the clients drawn solve their parts, the others' models held fixed."""
        w, ids = state.per_client["w"], participants(ask, self.K)
        # Omega is stored as the models it was computed from.
        related = w if t % self.outer == 0 else state.per_client["related"]
        omega = self.omega(related)
        sigma = (omega.abs().sum(1) / omega.diagonal()).max()
        strength = self.lam * sigma * omega.diagonal()[:, None]
        target = strength * w - self.lam * omega @ w.double()
        each = {"strength": strength[ids].to(w.dtype), "target": target[ids].to(w.dtype)}
        answer = ask("train", ids, each=each)
        w = answer.update("w", w)
        notes = {"selected": len(ids), "answered": len(answer.ids)}
        return state.update(per_client={"w": w, "related": related}), notes

    def omega(self, w: Tensor) -> Tensor:
        """Return the inverse of Sigma for models `w[N, P]`, `[N, N]` in float64."""
        # From the singular values of W, so that Sigma is exact outside its range: sqrt(eps) I.
        u, s, _ = torch.linalg.svd(w.double(), full_matrices=False)
        root, rest = (s.square() + self.eps).sqrt(), self.eps**0.5
        trace = root.sum() + (len(w) - len(s)) * rest
        return trace * (
            (u * (1 / root - 1 / rest)) @ u.T + torch.eye(len(w), dtype=torch.float64, device=w.device) / rest
        )

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Solve the client's part of the problem, bounded from above."""
        w, _ = site.solve(mine["w"], prox=Prox(shared["strength"], shared["target"]))
        return mine | {"w": w}, {"w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        return PersonalModels(mine["w"])


def first_models(site: Site, count: int) -> Tensor:
    """Return zeros; raise for a model that MOCHA cannot train."""
    if site.model.features is None:
        raise InputError("MOCHA needs a model that is linear in its parameters: 'linear' on a regression of one output")
    return torch.zeros_like(site.draw("client")).repeat(count, 1)
