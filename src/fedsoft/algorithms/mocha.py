"""MOCHA: federated multi-task learning (Smith et al., NeurIPS 2017)."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.batches import Prox
from fedsoft.centers.mixing import Participants, check_participants, participants
from fedsoft.checks import settings
from fedsoft.contract import Ask, Memory, Reply, Site, State, job
from fedsoft.errors import InputError

__all__ = ["MOCHA"]


@settings
class MOCHA:
    """Every client has a linear model of its own; how the models relate is learned with them.

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
            the space that the models span, and the slower the rounds converge.
        K: clients drawn in a round, or "all".

    Cost: one task per client drawn; one model down, one up. The server works on an N x N matrix: N^2 P operations.

    Use it: for personal linear models of few points each. There are no centers.

    Example:
        >>> MOCHA(lam=0.1).outer
        5

    Reference: Smith, Chiang, Sanjabi, Talwalkar. Federated multi-task learning. NeurIPS 2017. The paper works on the
        dual problem, with sigma' of Sigma; here it is the primal one, so that any local solver will do. The authors'
        code clips the eigenvalues of W^T W at 1e-7 in place of adding eps.
    """

    lam: Annotated[float, Field(ge=0)] = 0.01
    outer: Annotated[int, Field(ge=1)] = 5
    eps: Annotated[float, Field(gt=0)] = 1.0
    K: Participants = "all"

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("MOCHA", self.K, clients)

    def init(self, site: Site, clients: int) -> State:
        """W = 0, for which Sigma = I/N: clients that have nothing to do with each other yet. No centers."""
        w = first_models(site, clients)
        return {"centers": w[:0], "w_k": w, "related_k": w.clone()}

    def enrol(self, site: Site) -> Memory:
        """The personal model."""
        return {"w": first_models(site, len(site))}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Update Omega where it is due; then everybody drawn solves its part, the others' models held fixed."""
        w, ids = state["w_k"], participants(ask, self.K)
        related = w if t % self.outer == 0 else state["related_k"]  # Omega is kept as the models that it came from
        omega = self.omega(related)
        sigma = (omega.abs().sum(1) / omega.diagonal()).max()
        strength = self.lam * sigma * omega.diagonal()[:, None]
        target = strength * w - self.lam * omega @ w.double()
        each = {"strength": strength[ids].to(w.dtype), "target": target[ids].to(w.dtype)}
        answer = ask("train", ids, each=each)
        w = answer.update("w", w)
        notes = {"selected": len(ids), "answered": len(answer.ids)}
        return {"centers": state["centers"], "w_k": w, "related_k": related}, notes

    def omega(self, w: Tensor) -> Tensor:
        """The inverse of Sigma for models `w[N, P]`, `[N, N]` in float64."""
        # From the singular values of W, so that the part of Sigma that it does not reach is exact: sqrt(eps) I.
        u, s, _ = torch.linalg.svd(w.double(), full_matrices=False)
        root, rest = (s.square() + self.eps).sqrt(), self.eps**0.5
        trace = root.sum() + (len(w) - len(s)) * rest
        return trace * (
            (u * (1 / root - 1 / rest)) @ u.T + torch.eye(len(w), dtype=torch.float64, device=w.device) / rest
        )

    @job
    def train(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """The client's part of the problem, bounded from above."""
        w, _ = site.solve(mine["w"], prox=Prox(shared["strength"], shared["target"]))
        return mine | {"w": w}, {"w": w}

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The personal model w_k."""
        return site.predictions(mine["w"])


def first_models(site: Site, count: int) -> Tensor:
    """Zeros, for a model that MOCHA can train."""
    if site.model.features is None:
        raise InputError("MOCHA needs a model that is linear in its parameters: 'linear' on a regression of one output")
    return torch.zeros_like(site.draw("client")).repeat(count, 1)
