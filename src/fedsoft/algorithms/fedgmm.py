"""FedGMM: a joint mixture of inputs and labels (Wu et al., ICML 2023)."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.gaussians import Gaussians, InputShares, input_sums, projected, projection
from fedsoft.clusters.posterior import posterior
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Algorithm, Ask, PersonalModels, State, job
from fedsoft.core.replies import COUNTS, MIXTURE, MODEL, NUMBER, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedGMM"]


@settings
class FedGMM(Algorithm):
    """Clients mix Gaussians of inputs with predictors of labels, so that a model is used where its inputs are.

    The Gaussians tell by the input alone which model to use, also for a new client without labels.

    Maths, for each client k drawn, its points i and the loss l_s(i) of center s:

        p_k(x, y) = sum_g sum_s pi_kgs N(x; mu_g, Sigma_g) p_s(y | x)  Gaussians and predictors are shared by all
        q_i(g, s) ~ pi_kgs N(x_i; mu_g, Sigma_g) exp(-l_s(i))          normalised over g and s
        pi_kgs    = mean_i q_i(g, s)                                   kept by the client between rounds
        w_ks      = local solution of  mean_i q_i(s) l_s(i)  from c_s  for every s, q_i(s) = sum_g q_i(g, s)
        c_s       = sum_k n_k pi_ks w_ks / sum_k n_k pi_ks             over those that answered, pi_ks = sum_g pi_kgs
        mu_g, Sigma_g = mean and covariance of all their points, weighted by q_i(g) = sum_s q_i(g, s)

    Prediction weighs the centers by the input: p_k(s | x) ~ sum_g pi_kgs N(x; mu_g, Sigma_g).

    In the first round all clients send mean and covariance of their inputs; the mu_g are drawn from the Gaussian that
    these give together. With G = 1 inputs say nothing, and it is FedEM but for the weights of the average.

    Arguments:
        S: number of centers, the predictors (the paper's M_2).
        G: number of Gaussians (the paper's M_1).
        K: clients drawn in a round, or "all".
        dimension: inputs of more numbers than this are first projected on as many random directions, the same for all.

    Cost: S tasks per client drawn, and S evaluations of its points; S models and the Gaussians down, S models and
        G (1 + d + d^2) sums up for inputs of d numbers. In the first round all clients send such sums once more.

    Use it: when sources differ in their inputs as well, and a client's points of one source are near each other.

    Avoid it: for inputs that are images, tokens or many dimensions, which a few Gaussians do not describe, and
        where moments of inputs must not leave a client.

    Example:
        >>> FedGMM(S=2, G=4).dimension
        16

    Reference: Wu, Zhang, Yu, Liu, Gu, Zhou, Chen, Cheng. Personalized federated learning under mixture of
        distributions. ICML 2023. Covariances are those of all points; in the authors' code they are means of the
        clients' own, which leave out how far clients' means are apart. There images are coded by an autoencoder.
    """

    S: Annotated[int, Field(ge=1)] = 3
    G: Annotated[int, Field(ge=1)] = 3
    K: Participants = "all"
    dimension: Annotated[int, Field(ge=1, le=64)] = 16

    def init(self, site: Site, clients: int) -> State:
        """Return independent draws, uniform shares, and Gaussians that are not known yet."""
        c = torch.stack([site.draw("center", s) for s in range(self.S)])
        d = self._directions(site).shape[1]
        extra = {
            "known": torch.tensor(False),
            "means": torch.zeros(self.G, d, dtype=torch.float64, device=c.device),
            "covariances": torch.eye(d, dtype=torch.float64, device=c.device).repeat(self.G, 1, 1),
        }
        return State(c, c.new_full((clients, self.S), 1 / self.S), extra=extra)

    def init_client(self, site: Site) -> ClientState:
        """Start from the uniform mixture."""
        even = 1 / (self.G * self.S)
        return {"pi": site.draw("center", 0).new_full((len(site), self.G, self.S), even)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Find out where inputs are, once; then have clients do both steps of EM, and average."""
        if not bool(state.extra["known"]):
            state = self._first(state, ask)
        known, ids = _gaussians(state), participants(ask, self.K)
        answer = ask("train", ids, centers=state.centers, means=known.means, covariances=known.covariances)
        notes = {"selected": len(ids), "answered": len(answer.ids)}
        if not len(answer.ids):
            return state, notes
        u = answer.note("u", state.mixture)
        each = torch.ones(1, len(answer.ids), dtype=torch.float64)
        given, total = answer["given"].weighted(each)[0][:, None], answer["sum"].weighted(each)[0]
        c = torch.where(given > 0, total / given.clamp(min=torch.finfo(torch.float64).tiny), state.centers.double())
        new = known.improved(*(answer[name].weighted(each)[0] for name in ("n", "first", "second")))
        return state.update(centers=c.to(state.centers.dtype), u=u, extra=_named(new)), notes

    def _first(self, state: State, ask: Ask) -> State:
        """Spread the Gaussians over the inputs of all clients; leave them if nobody answers."""
        answer = ask("describe", ask.everyone)
        if not len(answer.ids):
            return state
        each = torch.ones(1, len(answer.ids), dtype=torch.float64)
        sums = (answer[name].weighted(each)[0] for name in ("n", "first", "second"))
        whole = Gaussians(state.extra["means"][:1], state.extra["covariances"][:1]).improved(*sums)
        found = whole.spread(ask.generator("gaussians"), self.G)
        return state.update(extra=_named(found) | {"known": torch.tensor(True)})

    @job(n=COUNTS, first=NUMBER, second=NUMBER)
    def describe(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Send the sums of all inputs, of one component."""
        z = self._inputs(site)
        return mine, input_sums(site, z, torch.ones_like(z[:, :1]))

    @job(u=MIXTURE, given=COUNTS, sum=MODEL, n=COUNTS, first=NUMBER, second=NUMBER)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Do the E-step by point, and the M-step by center and by Gaussian."""
        c, data, z = shared["centers"], site.data, self._inputs(site)
        log = Gaussians(shared["means"], shared["covariances"]).log_density(z)
        both = site.losses(c).double()[:, None, :] - log[:, :, None]  # [points, G, S]
        q = posterior(both.flatten(1), mine["pi"].double().flatten(1)[data.owners]).view_as(both)
        pi = data.mean_by_client(q).to(c.dtype)
        by_center, begin = q.sum(1).to(c.dtype), c.expand(len(site), -1, -1)
        u = pi.sum(1)
        w = torch.where(u[:, :, None] > 0, site.solve_each(begin, point_weights=by_center), begin)
        given = u * data.sizes[:, None]
        reply = {"u": u, "given": given, "sum": w * given[:, :, None]}
        return mine | {"pi": pi}, reply | input_sums(site, z, q.sum(2))

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return all centers, weighed by the client's shares and by the input."""
        gate = InputShares(_gaussians(state), self._directions(site), mine["pi"])
        return PersonalModels(state.centers, mine["pi"].sum(1), gate)

    def _directions(self, site: Site) -> Tensor:
        return projection(site.data.x, self.dimension, site.seed)

    def _inputs(self, site: Site) -> Tensor:
        return projected(site.data.x[site.data.points], self._directions(site))


def _gaussians(state: State) -> Gaussians:
    return Gaussians(state.extra["means"], state.extra["covariances"])


def _named(found: Gaussians) -> dict[str, Tensor]:
    return {"means": found.means, "covariances": found.covariances}
