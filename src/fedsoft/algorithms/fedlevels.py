"""FedLevels: one taste per client or several sources of points, told apart by evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.initial import age_of, corners, older
from fedsoft.clusters.laplace import (
    fit,
    kept_models,
    mixture_evidence,
    noise,
    own_pull,
    settled,
    shares_of_points,
    statistics,
    unit,
)
from fedsoft.clusters.learned_prior import HALF_CLIENT, Prior, Sums, blended, improved
from fedsoft.clusters.network_levels import NetworkLevels
from fedsoft.clusters.network_prior import is_network
from fedsoft.clusters.one_prior import NARROW, begun, explained, learned, merged, told
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Ask, Needs, PersonalModels, State, Way, job
from fedsoft.core.metrics import squared_loss
from fedsoft.core.model import Model
from fedsoft.core.replies import MIXTURE, MODEL, NUMBER, Answer, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedLevels"]

FULL = 32  # parameters up to which `covariance = auto` learns how they vary together
FLOOR = 0.05  # least share of all clients for either level: the one that is behind keeps being trained


@settings
class FedLevels(NetworkLevels):
    """A client has one taste, or its points come from several sources: both are learned, and evidence tells which.

    It holds FedPrior and a mixture of sources in one model, and charges each kind of client for the freedom that it
    takes.

    Maths. A client is of one of two kinds, and everything about the kinds is learned:

        taste:    w_k ~ sum_s pi_s N(c_s, Sigma_s), all points of client k from w_k
        sources:  u_k uniform over mixtures, point i from source z_i ~ u_k, that is from w_ks ~ N(b_s, Omega_s)

    Every tau rounds clients solve for all of these models and weigh them by their evidence (Laplace):

        r_ks   ~ pi_s E_ks,                             E_ks = p(all points of k | c_s, Sigma_s)
        q_i(s) ~ exp(digamma(N_ks + 1) - loss_i(w_ks)),   N_ks = sum_i q_i(s)
        B_k    = sum_s log p(points weighted by q(s) | b_s, Omega_s) + entropy of q + log p(N_k | uniform u_k)
        p_k    = rho exp(B_k) / (rho exp(B_k) + (1 - rho) sum_s pi_s E_ks),      rho = mean_k p_k

    In the other rounds a client draws its kind with probability p_k, then its center with r_ks, or the source of each
    point with q_i(s), and trains on every point once: one task, whatever S is. Centers and widths of both kinds follow
    from sums over clients as in FedPrior, weighted by p_k (`clusters.learned_prior`). Sources start at the corners of
    clients' own models, and nearly without width: at first a source is the same for everybody. For squared loss each
    kind has its own variance of the noise, estimated as in FedPrior.

    Each client is charged for its own freedom by its evidence, a federation for that of having both kinds: if clients
    of the less probable kind add less than S P / 2 log(sum_k n_k) to the evidence (as BIC charges), all predict by the
    other kind.

    As in FedPrior clients predict under one prior for everybody, if S centers do not explain them better than that by
    more than what they consist of.

    Networks are trained to no minimum and have no curvature to trust. After a start by FedAvg some clients train one
    model for all, others a center each, and some route each point to its own; points that clients hold back then decide
    which of the three all clients train, and in the last round how far personal models go from there
    (`clusters.network_levels`).

    With rho = 0 this is FedPrior; with rho = 1 and Omega -> 0 FedEM, whose shares are integrated over; where one center
    of no width is left, one model for all.

    Arguments:
        S: number of tastes, and of sources.
        K: clients drawn in a round between estimations, or "all".
        tau: rounds between estimations.
        covariance: of tastes and sources, `full` or `diagonal`; or `isotropic`: decided by points that clients hold
            back. `auto` is isotropic for networks, else full up to 32 parameters.
        spread: standard deviation of clients' parameters around their taste that is assumed at first, and a tenth of it
            around sources. It keeps the weight of one client.
        reach: networks, where one model is trained for all: a round takes it so many times as far as the mean of what
            clients trained; 1 is FedAvg's step.

    Cost: one task per client drawn and S evaluations of its points, every tau rounds 2 S tasks of all clients; a
        curvature after each (one evaluation for each of up to 256 parameters, or one gradient). Down: 2 S models and
        widths. Up: S models, their squares and uncertainties (matrices with `full`), 2 S of each where p is estimated,
        and one model at the start. For networks (`isotropic`) one task per client drawn; up S models where points are
        routed, else one; once three tasks of all clients, and in the last round up to 12 of K clients and 8 of all.

    Use it: when it is not known whether clients differ as people do or mix a few sources.

    Avoid it: with `secure = true`, when bytes up are scarce, or when it is known which of the two pictures holds:
        FedPrior or FedRoute then costs less.

    Example:
        >>> FedLevels(S=3).tau
        2

    Reference: none; an algorithm of this library. It joins FedSoft's loop as expectation maximization and FedEM (Marfoq
        et al., NeurIPS 2021) by evidence (MacKay, Neural Computation 1992).
    """

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"
    tau: Annotated[int, Field(ge=1)] = 2
    covariance: Literal["auto", "diagonal", "full", "isotropic"] = "auto"
    spread: Annotated[float, Field(gt=0)] = 1.0
    reach: Annotated[float, Field(ge=1, lt=2)] = 1.6

    @property
    def needs(self) -> Needs:
        return Needs.MODELS

    def init(self, site: Site, clients: int) -> State:
        """Return one draw for each taste, with the same for the sources, and the widths that are assumed."""
        if self._isotropic(site.model):
            return self.init_network(site, clients)
        c = torch.stack([site.draw("center", s) for s in range(self.S)])
        width = torch.cat([c.new_full(c.shape, self._variance(level)) for level in (0, 1)])
        if self.covariance == "full" or (self.covariance == "auto" and c.shape[1] <= FULL):
            width = torch.diag_embed(width)
        known = site.model.loss is not squared_loss
        extra = {
            "models": c.repeat(2, 1), "covariance": width, "shares": c.new_full((2 * self.S,), 1 / self.S),
            "s2": c.new_full((2,), 0.5 * known), "rho": c.new_tensor(0.5), "open": c.new_ones(2),
            "age": torch.tensor(-1, device=c.device),
        }  # fmt: skip
        if self.S > 1:
            extra |= begun(c, width)
        return State(c, c.new_full((clients, self.S), 1 / self.S), extra=extra)

    def init_client(self, site: Site) -> ClientState:
        """Know nothing yet of the client's kind."""
        if self._isotropic(site.model):
            return self.init_network_client(site)
        c = torch.stack([site.draw("center", s) for s in range(self.S)]).repeat(2, 1)
        even = c.new_full((len(site), self.S), 1 / self.S)
        fresh = torch.ones(len(site), dtype=torch.bool, device=c.device)
        p = c.new_full((len(site),), 0.5)
        one = {"one": c[:1].repeat(len(site), 1)} if self.S > 1 else {}
        return {"w": c.repeat(len(site), 1, 1), "r": even, "u": even.clone(), "p": p, "fresh": fresh, **one}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Find where sources start; then estimate kinds or have clients draw them, and improve both priors."""
        if "picture" in state.extra:
            return self.network_round(state, t, ask)
        age = age_of(state, t)
        due = age % self.tau == 0
        ids = ask.everyone if due or age < 0 else participants(ask, self.K)
        work = "alone" if age < 0 else "estimate" if due else "train"
        names = ["models", "covariance", "shares", "s2", "rho", "open"]
        names += ["one", "one_covariance"] if work == "estimate" and self.S > 1 else []
        answer = ask(work, ids, each=None, **{name: state.extra[name] for name in names})
        notes = {"selected": len(ids), "answered": len(answer.ids)}
        if not len(answer.ids):
            return state, notes
        extra = older(state) | (self._corners(state, answer) if age < 0 else self._improved(state, answer, ask, due))
        like = state.centers.dtype
        state = state.update(extra={key: value if key == "age" else value.to(like) for key, value in extra.items()})
        share = float(_counted(state.extra["rho"], state.extra["open"]))
        mixed = share > 0.5
        lead = (state.extra["models"][self.S :] if mixed else state.extra["models"][: self.S]).clone()
        u = answer.update("u" if mixed else "r", state.u) if work == "estimate" else state.u
        return state.update(centers=lead, u=u), notes | {"sources": round(share, 3)}

    def _corners(self, state: State, answer: Answer) -> dict[str, Tensor]:
        """Return sources at the corners of clients' own models."""
        w = answer.rows("w", like=state.centers).double()
        w = w - w.mean(0)
        found = answer["w"].weighted(corners(w @ w.T, self.S))
        return {"models": torch.cat([state.extra["models"][: self.S].double(), found])}

    def _improved(self, state: State, answer: Answer, ask: Ask, due: bool) -> dict[str, Tensor]:
        """Return what the sums over clients say of tastes, sources, their noise and which of them clients have."""
        everybody = torch.ones(1, len(answer.ids), dtype=torch.float64)
        level, names = answer["level"].weighted(everybody)[0], ("weight", "first", "second", "spread")
        if due:
            sums = [answer[name].weighted(everybody)[0] for name in names]
        else:
            drawn = answer["level"].gather().T.double()
            sums = [answer[name].weighted(drawn).flatten(0, 1) for name in names]
        old, parts = prior_of(state.extra), []
        for one, rows in enumerate((slice(0, self.S), slice(self.S, None))):
            before = Prior(old.centers[rows], old.covariance[rows], old.shares[rows])
            # As if all clients were of this kind, and as far as they took part.
            scale = len(ask.sizes) / float(level[one].clamp(min=torch.finfo(torch.float32).tiny))
            after = improved(before, Sums(*(each[rows] for each in sums)).times(scale), self._variance(one))
            share = (len(answer.ids) if due else float(level[one])) / len(ask.sizes)
            parts.append(blended(before, after, share))
        s2, rho, opened = (state.extra[name] for name in ("s2", "rho", "open"))
        if "noise" in answer:
            errors, points, decided = answer["noise"].weighted(everybody)[0].T
            tiny = torch.finfo(torch.float32).tiny
            found = errors / torch.maximum(points - decided, points / 10).clamp(min=tiny)
            s2 = torch.where(points > 0, found.clamp(min=tiny), s2.double())
        if due:
            rho = (answer["p"].weighted(everybody)[0] + HALF_CLIENT) / (len(answer.ids) + 2 * HALF_CLIENT)
            gain, charge = answer["gain"].weighted(everybody)[0], state.centers.numel() / 2 * math.log(ask.sizes.sum())
            opened = (gain > charge) | (gain == gain.max())
        one = {}
        if due and self.S > 1:
            size, evidence = state.centers.shape[1], float(answer["evidence"].weighted(everybody)[0])
            one = learned(state.extra, answer, len(ask.sizes), self.spread)
            one["merged"] = torch.tensor(float(merged(evidence, explained(answer), self.S, size)))
        return one | {
            "models": torch.cat([part.centers for part in parts]),
            "covariance": torch.cat([part.covariance for part in parts]),
            "shares": torch.cat([part.shares for part in parts]), "s2": s2, "rho": rho, "open": opened,
        }  # fmt: skip

    @job(w=MODEL)
    def alone(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Solve for one taste near the first center, so that where points tell nothing all are alike."""
        prior, scale = prior_of(shared), self._units(site, shared)[:, 0]
        first = torch.zeros(len(site), dtype=torch.int64, device=scale.device)
        w, _ = site.solve(mine["w"][:, 0], prox=own_pull(site, prior, first, scale / site.data.sizes)[0])
        return mine, {"w": w}

    @job(
        r=MIXTURE, u=MIXTURE, p=NUMBER, gain=NUMBER, level=NUMBER, weight=NUMBER, first=MODEL, second=NUMBER,
        spread=NUMBER, noise=NUMBER, evidence=NUMBER, one_evidence=NUMBER, one_first=MODEL, one_second=NUMBER,
        one_spread=NUMBER,
    )  # fmt: skip
    def estimate(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Solve under every taste and for every source, and weigh them by their evidence."""
        S, prior, rho = self.S, prior_of(shared), shared["rho"].double()
        scale = self._units(site, shared).repeat_interleave(S, 1)
        start, q = self._routed(site, mine, shared)
        counted = torch.cat([torch.ones_like(q), q], 1)
        each = torch.arange(2 * S, device=q.device).repeat(len(site))
        pull, whole = own_pull(site, prior, each, (scale / site.data.sizes[:, None]).flatten())
        w = site.solve_each(start, counted.to(site.dtype), prox=pull)
        found = fit(site, prior, w, scale, counted)
        w = kept_models(prior, found.posterior, w, whole.view(-1, 2 * S))
        each = prior.shares[:S].log() + found.evidence[:, :S]
        sources, u = mixture_evidence(site, q, found.evidence[:, S:])
        alone = torch.stack([each.logsumexp(1), sources], 1)
        both = alone + torch.stack([1 - rho, rho]).log()
        r, p, gain = each.softmax(1), (both[:, 1] - both[:, 0]).sigmoid(), both.logsumexp(1)[:, None] - alone.flip(1)
        level = _levels(p, rho, shared["open"])
        weight = torch.cat([level[:, :1] * r, level[:, 1:].expand(-1, S)], 1)
        reply = {"r": r, "u": u, "p": p, "gain": gain, "level": level} | statistics(prior, found.posterior, weight)
        if site.model.loss is squared_loss:
            none = torch.zeros_like(r)
            halves = (torch.cat([weight[:, :S], none], 1), torch.cat([none, weight[:, S:]], 1))
            reply["noise"] = torch.stack([noise(site, prior, found, half, scale) for half in halves], 1)
        known: ClientState = {}
        if S > 1:
            likely = w[torch.arange(len(site), device=w.device), r.argmax(1)]
            known["one"], more = told(site, shared, likely, scale[:, 0])
            reply |= more | {"evidence": both.logsumexp(1)}
        reply = {name: value.to(site.dtype) for name, value in reply.items()}
        known |= {name: reply[name] for name in ("r", "u", "p")}
        return mine | known | {"w": w, "fresh": torch.zeros_like(mine["fresh"])}, reply

    @job(level=NUMBER, weight=NUMBER, first=MODEL, second=NUMBER, spread=NUMBER, noise=NUMBER)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Draw a kind, and a center or the source of each point; train every model on the points that are its own."""
        S, both = self.S, prior_of(shared)
        start, q = self._routed(site, mine, shared)
        kind, used, part = self._drawn(site, mine, shared, q)
        wide, rows = site.parts(part, S), torch.arange(len(site), device=q.device).repeat_interleave(S)
        sizes, j = wide.data.sizes, (torch.arange(S, device=q.device) + S * kind[:, None]).flatten()
        prior, scale, weight = both.chosen(j), self._units(site, shared)[rows, kind[rows], None], used.view(-1, 1)
        begin = torch.where(sizes[:, None] > 0, start[rows, j], prior.centers[:, 0].to(site.dtype))
        pull, whole = own_pull(wide, both, j, scale[:, 0] / sizes.clamp(min=1))
        w, _ = wide.solve(begin, prox=pull)
        found = fit(wide, prior, w[:, None], scale)
        site.count_parts(wide)
        w = kept_models(prior, found.posterior, w[:, None], whole[:, None])[:, 0]
        level = one_hot(kind, 2).double()
        reply = {"level": level} | {
            name: value.view(len(site), S, *value.shape[2:])
            for name, value in statistics(prior, found.posterior, weight).items()
        }
        if site.model.loss is squared_loss:
            total = noise(wide, prior, found, weight, scale).view(len(site), S, 3).sum(1)
            reply["noise"] = level[:, :, None] * total[:, None]
        kept = start.index_put((rows, j), torch.where(weight > 0, w, start[rows, j]))
        reply = {name: value.to(site.dtype) for name, value in reply.items()}
        return mine | {"w": kept, "fresh": torch.zeros_like(mine["fresh"])}, reply

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return all models of the client with their shares, or that under the one prior for everybody."""
        if "picture" in state.extra:
            return self.predict_network(mine, state)
        if "merged" in state.extra and bool(state.extra["merged"]):
            return PersonalModels(mine["one"])
        p = _counted(mine["p"], state.extra["open"])[:, None]
        return PersonalModels(mine["w"], torch.cat([(1 - p) * mine["r"], p * mine["u"]], 1))

    def adopt(self, site: Site, state: State) -> PersonalModels | None:
        """Find the kind of new clients by evidence, and their models under the learned priors."""
        if "picture" in state.extra:
            return self.adopt_network(site, state)
        mine = self.init_client(site) | {"w": state.extra["models"].repeat(len(site), 1, 1)}
        return self.predict(site, settled(self.estimate, site, mine, dict(state.extra)), state)

    def closing_tasks(self, model: Model) -> int:
        return self.MOST_TASKS if self._isotropic(model) else 0

    def way(self, state: State) -> Way | None:
        """Return the way from a center to a network of a client's own, once it is known, unless it mixes centers."""
        return self.network_way(state) if "picture" in state.extra else None

    def _isotropic(self, model: Model) -> bool:
        return self.covariance == "isotropic" or (self.covariance == "auto" and is_network(model.layout))

    def _variance(self, level: int) -> float:
        return (self.spread * (NARROW if level else 1)) ** 2

    def _units(self, site: Site, shared: Reply) -> Tensor:
        """Return `[m, 2]`, by which losses are divided to be negative log-likelihoods of tastes, and of sources."""
        levels = zip(shared["s2"], shared["models"].split(self.S), strict=True)
        return torch.stack([unit(site, s2, centers) for s2, centers in levels], 1)

    def _routed(self, site: Site, mine: ClientState, shared: Reply) -> tuple[Tensor, Tensor]:
        """Return where the client's models start `[m, 2 S, P]`, and how probable each source is for each point."""
        sources = shared["models"][self.S :].expand(len(site), -1, -1)
        own = torch.where(mine["fresh"][:, None, None], sources, mine["w"][:, self.S :])
        q = shares_of_points(site, own, mine["u"], self._units(site, shared)[:, 1])
        return torch.cat([mine["w"][:, : self.S], own], 1), q

    def _drawn(self, site: Site, mine: ClientState, shared: Reply, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw 1 `[m]` for clients with sources and 0 for a taste, the models `[m, S]` used, and that of each point."""
        chance = torch.as_tensor(site.generators("kind").random(2), device=q.device)
        p, rho = (_counted(value.double(), shared["open"]) for value in (mine["p"], shared["rho"]))
        kind = (chance[:, 0] < _levels(p, rho, torch.ones_like(shared["open"]))[:, 1]).long()
        taste = (mine["r"].double().cumsum(1) < chance[:, 1:]).sum(1).clamp(max=self.S - 1)
        drawn = site.generators("sources").random_each(site.data.sizes.cpu().numpy(), 1)
        each = torch.as_tensor(drawn, device=q.device)
        source = (q.cumsum(1) < each).sum(1).clamp(max=self.S - 1)
        used = torch.where(kind[:, None] == 1, 1.0, one_hot(taste, self.S).double())
        return kind, used, torch.where(kind[site.data.owners] == 1, source, taste[site.data.owners])


def prior_of(named: Mapping[str, Tensor]) -> Prior:
    """Return tastes and sources as one prior of 2 S centers, in float64."""
    return Prior(named["models"].double(), named["covariance"].double(), named["shares"].double())


def _counted(p: Tensor, opened: Tensor) -> Tensor:
    """Return how probable sources are, `p` if both levels are open."""
    return torch.where(opened.bool().all(), p, opened[1].to(p))


def _levels(p: Tensor, rho: Tensor, opened: Tensor) -> Tensor:
    """Return the weights `[m, 2]` of clients for tastes and sources: by `p[m]`, and some for a level that has none.

    If one level is closed the other one has all clients.
    """
    least = (FLOOR - torch.stack([1 - rho, rho])).clamp(min=0)
    weights = torch.stack([1 - p, p], 1) * (1 - least.sum()) + least
    return torch.where(opened.bool() & ~opened.bool().all(), 1.0, weights)
