"""FedPrior: FedSoft with a prior that is learned, so that nobody chooses how strongly clients are pulled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.closing import way_of
from fedsoft.clusters.evidence import Evidence
from fedsoft.clusters.laplace import Fit, fit, kept_models, noise, own_pull, settled, statistics, unit, variance_of
from fedsoft.clusters.learned_prior import Prior, Sums, blended, improved
from fedsoft.clusters.network_prior import NetworkPrior, is_network
from fedsoft.clusters.one_prior import begun, explained, learned, merged, told
from fedsoft.clusters.selection import Participants, draw_centers, participants
from fedsoft.clusters.variation import differences, groups_of, numbers_of
from fedsoft.core.contract import Ask, PersonalModels, State, Way, job
from fedsoft.core.metrics import squared_loss
from fedsoft.core.model import Model
from fedsoft.core.replies import CHOICE, MIXTURE, NUMBER, STEP, Answer, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedPrior"]

FULL = 32  # parameters up to which `covariance = auto` learns how they vary together


@settings
class FedPrior(NetworkPrior):
    """Clients' models come from a few Gaussians around the centers, whose widths are learned with the centers.

    So how strongly a client is pulled to its center is found for each parameter, where FedSoft and Ditto ask for a
    number.

    Maths. With w_k ~ sum_s pi_s N(c_s, Sigma_s) and n_k f_k the negative log-likelihood of client k's points:

        w_ks = argmin n_k f_k(w) + 1/2 (w - c_s)' Sigma_s^-1 (w - c_s)
        V_ks = (n_k f_k''(w_ks) + Sigma_s^-1)^-1                          its uncertainty
        r_ks ~ pi_s exp(-n_k f_k(w_ks)) N(w_ks; c_s, Sigma_s) |V_ks|^1/2   Laplace evidence, every tau rounds

    In the other rounds a client draws its center s with probability r_ks and solves for w_ks alone: one task, whatever
    S is. Centers, widths and shares follow from sums over clients (`clusters.learned_prior`); for squared loss also the
    variance of the noise, s2 = sum_k n_k f_k(w_k) / (sum_k n_k - parameters that the points decide).

    If S centers explain all clients better than one prior for everybody by less than one for each of their numbers,
    clients predict under that one, which is learned beside them (`clusters.one_prior`).

    Networks are trained to no minimum and have no curvature to trust. Their centers are trained as FedAvg's, by clients
    that drew them, and points that clients hold back decide r and, after the last round, how far a client's own model
    goes from its center (`clusters.network_prior`).

    This is FedSoft's local problem with lambda = Sigma_s^-1 / n_k: a client with many points is pulled less. With one
    center and a fixed width it is Ditto's personal model; a width towards 0 leaves one model for each center, a large
    one trains every client alone.

    Arguments:
        S: number of centers.
        K: clients drawn in a round between estimations, or "all".
        tau: rounds between estimations of r.
        covariance: Sigma_s `full`, `diagonal`, or `isotropic`: one width for all parameters, decided by points that
            clients hold back. `auto` is isotropic for networks, else full up to 32 parameters.
        spread: standard deviation of clients' parameters around their center that is assumed at first. It keeps the
            weight of one client.
        reach: networks: a round takes a center so many times as far as the mean of what clients trained, since a few
            epochs end before the minimum, and clients' own ways partly cancel in the mean; 1 is FedAvg's step.
        learn: learn Sigma_s, pi and s2; without it they stay as they were assumed.
        predict_with: the `mixture` sum_s r_ks p(y | x, w_ks) of the client's S models, or their `mean` sum_s r_ks w_ks.

    Cost: one task per client drawn, and every tau rounds S tasks of all clients; a curvature after each (one evaluation
        for each of up to 256 parameters, or one gradient). Down: S models and widths. Up: one model, its square and its
        uncertainty (matrices with `full`), S of each where r is estimated. For networks (`isotropic`) one model up;
        in the last round up to 12 tasks of K clients, and up to 8 of all.

    Use it: when clients differ as people do: each has one way, near one of a few common ones, and few points.

    Avoid it: when each client's points come from several conflicting sources: a single model per client cannot fit
        them. FedRoute and FedLevels can.

    Example:
        >>> FedPrior(S=4).covariance
        'auto'

    Reference: FedSoft's loop as expectation maximization; for evidence see MacKay, A practical Bayesian framework for
        backpropagation networks, Neural Computation 1992.
    """

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"
    tau: Annotated[int, Field(ge=1)] = 2
    covariance: Literal["auto", "diagonal", "full", "isotropic"] = "auto"
    spread: Annotated[float, Field(gt=0)] = 1.0
    reach: Annotated[float, Field(ge=1, lt=2)] = 1.6
    learn: bool = True
    predict_with: Literal["mixture", "mean"] = "mixture"

    def init(self, site: Site, clients: int) -> State:
        """Return one draw for each center, and the width that is assumed."""
        if self._isotropic(site.model):
            return self.init_network(site, clients)
        c = torch.stack([site.draw("center", s) for s in range(self.S)])
        size = c.shape[1]
        width = c.new_full((self.S, size), self.spread**2)
        if self.covariance == "full" or (self.covariance == "auto" and size <= FULL):
            width = torch.diag_embed(width)
        u = c.new_full((clients, self.S), 1 / self.S)
        known = site.model.loss is not squared_loss or not self.learn
        extra = {"covariance": width, "shares": u.new_full((self.S,), 1 / self.S), "s2": u.new_tensor(0.5 * known)}
        return State(c, u, extra=extra | (begun(c, width) if self._may_merge else {}))

    def init_client(self, site: Site) -> ClientState:
        """Start at the centers, with equal shares."""
        if self._isotropic(site.model):
            return self.init_network_client(site)
        c = torch.stack([site.draw("center", s) for s in range(self.S)])
        one = {"one": c[:1].repeat(len(site), 1)} if self._may_merge else {}
        return {"w": c.repeat(len(site), 1, 1), "r": c.new_full((len(site), self.S), 1 / self.S), **one}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Estimate r or have clients draw their center; improve the prior by what comes back."""
        if "strengths" in state.extra:
            return self.network_round(state, t, ask)
        due = t % self.tau == 0
        ids = ask.everyone if due else participants(ask, self.K)
        width, shares, s2 = (state.extra[name] for name in ("covariance", "shares", "s2"))
        work = "estimate" if due else "train"
        one = {name: state.extra[name] for name in ("one", "one_covariance") if due and self._may_merge}
        answer = ask(work, ids, each=None, centers=state.centers, covariance=width, shares=shares, s2=s2, **one)
        notes: dict[str, Any] = {"selected": len(ids), "answered": len(answer.ids)}
        if not len(answer.ids):
            return state, notes
        u = answer.note("r", state.mixture) if due else state.mixture
        old, part = prior_of(state.centers, state.extra), len(answer.ids) / len(ask.sizes)
        sums = self._sums(answer, due).times(1 / part)
        new = blended(old, improved(old, sums, self.spread**2), part)
        if not self.learn:
            new = Prior(new.centers, old.covariance, old.shares)
        extra = {"covariance": new.covariance, "shares": new.shares, "s2": self._noise(answer, s2)}
        if due:
            notes |= self._insight(ask, answer, old)
            if self._may_merge:
                extra |= learned(state.extra, answer, len(ask.sizes), self.spread)
                extra["merged"] = s2.new_tensor(float(notes["evidence"].merged))
        like = state.centers.dtype
        return state.update(
            centers=new.centers.to(like), u=u, extra={key: value.to(like) for key, value in extra.items()}
        ), notes

    def _sums(self, answer: Answer, due: bool) -> Sums:
        """Return the sums over those that answered: S rows of each client, or those of the center that it drew."""
        names = ("first", "second", "spread")
        everybody = torch.ones(1, len(answer.ids), dtype=torch.float64)
        if due:
            return Sums(answer["r"].weighted(everybody)[0], *(answer[name].weighted(everybody)[0] for name in names))
        found = [answer.sums(name, "s", self.S) for name in names]
        return Sums(found[0][1], *(total for total, _ in found))

    def _insight(self, ask: Ask, answer: Answer, prior: Prior) -> dict[str, Any]:
        """Return what the prior says of those that answered, see `clusters.variation`."""
        everybody, count = torch.ones(1, len(answer.ids), dtype=torch.float64), len(answer.ids)
        log = float(answer["evidence"].weighted(everybody)[0])
        one = explained(answer) if self._may_merge else None
        merges = one is not None and merged(log, one, self.S, prior.centers.shape[1])
        evidence = Evidence(log, int(ask.sizes[answer.ids].sum()), count, numbers_of(prior), one, merges)
        return {"evidence": evidence, "variation": (answer["variation"].weighted(everybody)[0] / count).tolist()}

    @property
    def _may_merge(self) -> bool:
        return self.S > 1 and self.learn

    def _noise(self, answer: Answer, s2: Tensor) -> Tensor:
        """Return the variance of the noise, if it is learned."""
        if "noise" not in answer or not self.learn:
            return s2
        everybody = torch.ones(1, len(answer.ids), dtype=torch.float64)
        return variance_of(answer["noise"].weighted(everybody)[0]).to(s2)

    @job(
        r=MIXTURE, first=STEP, second=NUMBER, spread=NUMBER, noise=NUMBER, evidence=NUMBER, variation=NUMBER,
        one_evidence=NUMBER, one_first=STEP, one_second=NUMBER, one_spread=NUMBER,
    )  # fmt: skip
    def estimate(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Solve under every center, and weigh the centers by their evidence."""
        prior, scale = prior_of(shared["centers"], shared), unit(site, shared["s2"], shared["centers"])
        each, strength = torch.arange(self.S, device=scale.device).repeat(len(site)), scale / site.data.sizes
        pull, whole = own_pull(site, prior, each, strength.repeat_interleave(self.S))
        w = site.solve_each(mine["w"], prox=pull)
        found = fit(site, prior, w, scale[:, None].expand(-1, self.S))
        w = kept_models(prior, found.posterior, w, whole.view(-1, self.S))
        joint = prior.shares.log() + found.evidence
        r = joint.softmax(1)
        costs = differences(prior, found.posterior.covariance, r, groups_of(site.model.layout))
        reply = {"r": r, "evidence": joint.logsumexp(1), "variation": costs * strength[:, None, None]}
        kept = {"w": w}
        if self._may_merge:
            kept["one"], more = told(site, shared, w[torch.arange(len(site), device=w.device), r.argmax(1)], scale)
            reply |= more
        reply = self._sent(site, reply, prior, found, r, scale)
        return mine | kept | {"r": reply["r"]}, reply

    @job(s=CHOICE, first=STEP, second=NUMBER, spread=NUMBER, noise=NUMBER)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Draw a center by r, and solve under it."""
        prior, scale = prior_of(shared["centers"], shared), unit(site, shared["s2"], shared["centers"])
        s = draw_centers(site.generators("center"), mine["r"])
        pull, whole = own_pull(site, prior, s, scale / site.data.sizes)
        rows, own = torch.arange(len(site), device=s.device), prior.chosen(s)
        w = site.solve(mine["w"][rows, s], prox=pull)[0][:, None]
        found = fit(site, own, w, scale[:, None])
        w = kept_models(own, found.posterior, w, whole[:, None])
        reply = self._sent(site, {}, own, found, scale.new_ones(len(site), 1), scale)
        reply |= {name: value[:, 0] for name, value in reply.items() if name != "noise"}
        return mine | {"w": mine["w"].index_put((rows, s), w[:, 0])}, {"s": s, **reply}

    def _sent(self, site: Site, reply: Reply, prior: Prior, found: Fit, r: Tensor, scale: Tensor) -> Reply:
        """Return a reply with what the server sums of clients that belong to centers by `r[m, J]`."""
        known = statistics(prior, found.posterior, r)
        reply = reply | {name: known[name] for name in ("first", "second", "spread")}
        if site.model.loss is squared_loss:
            reply["noise"] = noise(site, prior, found, r, scale[:, None]).sum(1)
        return {name: value.to(site.dtype) for name, value in reply.items()}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the client's models and their shares, or their mean; for networks the one model of its own."""
        if "strengths" in state.extra:
            return self.predict_network(mine, state)
        if "merged" in state.extra and bool(state.extra["merged"]):
            return PersonalModels(mine["one"])
        if self.predict_with == "mean" or self.S == 1:
            return PersonalModels((mine["r"][:, None] @ mine["w"])[:, 0])
        return PersonalModels(mine["w"], mine["r"])

    def adopt(self, site: Site, state: State) -> PersonalModels | None:
        """Find the centers of new clients by evidence, and their models under the learned prior."""
        if "strengths" in state.extra:
            return None
        mine = {"w": state.centers.repeat(len(site), 1, 1)}
        shared = {"centers": state.centers, **state.extra}
        return self.predict(site, settled(self.estimate, site, mine, shared), state)

    def closing_tasks(self, model: Model) -> int:
        return self.MOST_TASKS if self._isotropic(model) else 0

    def way(self, state: State) -> Way | None:
        """Return the way from a center to a network of a client's own, once it is known."""
        found = way_of(state.extra) if "strengths" in state.extra else None
        return found if found is not None and found.strengths else None

    def _isotropic(self, model: Model) -> bool:
        return self.covariance == "isotropic" or (self.covariance == "auto" and is_network(model.layout))


def prior_of(centers: Tensor, extra: Mapping[str, Tensor]) -> Prior:
    """Return the prior of a state, or of what clients received, in float64."""
    return Prior(centers.double(), extra["covariance"].double(), extra["shares"].double())
