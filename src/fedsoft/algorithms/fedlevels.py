"""FedLevels: one taste per client or several sources of points, told apart by evidence."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.clusters.averaging import mean_over_points
from fedsoft.clusters.both_levels import (
    counted,
    drawn,
    kinds_of,
    levels,
    next_levels,
    noise_of,
    prior_of,
    routed,
    units,
)
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.initial import age_of, corners_of, older
from fedsoft.clusters.laplace import (
    fit,
    kept_models,
    mixture_evidence,
    noise,
    own_pull,
    settled,
    statistics,
)
from fedsoft.clusters.least_squares import SETTLE
from fedsoft.clusters.network_levels import NetworkLevels
from fedsoft.clusters.network_prior import is_network
from fedsoft.clusters.one_prior import NARROW, begun, explained, learned, merged, told
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Ask, Needs, PersonalModels, State, Way, job
from fedsoft.core.metrics import squared_loss
from fedsoft.core.model import Model
from fedsoft.core.replies import COUNTS, MIXTURE, MODEL, NUMBER, Answer, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedLevels"]

REST = 0.002  # sources are at rest where their error changes by less than this share in a round
FULL = 32  # parameters up to which `covariance = auto` learns how they vary together


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
    clients' own models, and nearly without width: at first a source is the same for everybody. For squared loss the
    variance of the noise is estimated as in FedPrior, for either kind, and the smaller one is taken for both.

    A source that may widen while another one is missing widens to hold both. So sources of linear models settle first:
    beside everything else, clients send the sums of FedRoute's least squares in every round, and sources move by those
    alone (one of two equal ones to where one is missing) until their error rests; only then their widths are learned.

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
        and one model at the start; while sources of linear models settle, FedRoute's sums of all clients. For networks
        (`isotropic`) one task per client drawn; up S models where points are routed, else one; once three tasks of all
        clients, and in the last round up to 12 of K clients and 8 of all.

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
        width = torch.cat([c.new_full(c.shape, variance) for variance in self._variances])
        if self.covariance == "full" or (self.covariance == "auto" and c.shape[1] <= FULL):
            width = torch.diag_embed(width)
        known = site.model.loss is not squared_loss
        extra = {
            "models": c.repeat(2, 1), "covariance": width, "shares": c.new_full((2 * self.S,), 1 / self.S),
            "s2": c.new_full((2,), 0.5 * known), "rho": c.new_tensor(0.5), "open": c.new_ones(2),
            "age": torch.tensor(-1, device=c.device), "routed_s2": c.new_zeros(()),
            "settled": torch.tensor(site.model.features is None or self.S == 1),
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
        known = {"w": c.repeat(len(site), 1, 1), "r": even, "u": even.clone(), "p": p}
        return known | {"fresh": fresh, "open": fresh.clone(), **one}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Find where sources start; then estimate kinds or have clients draw them, and improve both priors."""
        if "picture" in state.extra:
            return self.network_round(state, t, ask)
        age = age_of(state, t)
        due = age % self.tau == 0
        ids = ask.everyone if due or age < 0 else participants(ask, self.K)
        work = "alone" if age < 0 else "estimate" if due else "train"
        if age >= 0 and not bool(state.extra["settled"]):
            state = self._settling(state, ask, age)
        names = ["models", "covariance", "shares", "s2", "rho", "open"]
        names += ["one", "one_covariance"] if work == "estimate" and self.S > 1 else []
        answer = ask(work, ids, each=None, **{name: state.extra[name] for name in names})
        notes = {"selected": len(ids), "answered": len(answer.ids)}
        if not len(answer.ids):
            return state, notes
        like = state.centers.dtype
        if age < 0:
            tastes = state.extra["models"][: self.S]
            found = {"models": torch.cat([tastes.double(), corners_of(answer, tastes)])}
        else:
            found = self._improved(state, answer, ask, due=due)
        extra = older(state) | found
        state = state.update(extra={key: value if key == "age" else value.to(like) for key, value in extra.items()})
        share = float(counted(state.extra["rho"], state.extra["open"]))
        mixed = share > 0.5
        lead = (state.extra["models"][self.S :] if mixed else state.extra["models"][: self.S]).clone()
        u = answer.update("u" if mixed else "r", state.u) if work == "estimate" else state.u
        return state.update(centers=lead, u=u), notes | {"sources": round(share, 3)}

    def _settling(self, state: State, ask: Ask, age: int) -> State:
        """Take a step of the sources alone, without width, by least squares over the points of all clients."""
        c, s2, check = state.extra["models"], state.extra["routed_s2"], age % SETTLE == SETTLE - 1
        answer, new, moved = self.play_gathered(ask, ask.everyone, c[self.S :], s2, check=check)
        if not len(answer.ids):
            return state
        loss = s2.new_tensor(max(mean_over_points(ask, answer, "loss"), torch.finfo(s2.dtype).tiny))
        rests = check and not moved and bool((loss - s2).abs() < REST * s2)
        models = torch.cat([c[: self.S], new.to(c.dtype)])
        return state.update(extra={"models": models, "routed_s2": loss, "settled": torch.tensor(rests)})

    def _improved(self, state: State, answer: Answer, ask: Ask, *, due: bool) -> dict[str, Tensor]:
        """Return what the sums over clients say of tastes, sources, their noise and which of them clients have."""
        extra, N = state.extra, len(ask.sizes)
        new = next_levels(prior_of(extra), answer, N, self._variances, due=due)
        found = {"models": new.centers, "covariance": new.covariance, "shares": new.shares}
        if "noise" in answer:
            found["s2"] = noise_of(answer, extra["s2"], due=due)
        if not bool(extra["settled"]):
            held = ("models", "covariance")
            found |= {name: torch.cat([found[name][: self.S], extra[name][self.S :]]) for name in held}
        if due:
            found |= kinds_of(answer, state.centers.numel(), int(ask.sizes.sum()))
        if due and self.S > 1:
            evidence = float(answer["evidence"].weighted(torch.ones(1, len(answer.ids), dtype=torch.float64))[0])
            found |= learned(extra, answer, N, self.spread)
            found["merged"] = torch.tensor(float(merged(evidence, explained(answer), *state.centers.shape)))
        return found

    @job(w=MODEL)
    def alone(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Solve for one taste near the first center, so that where points tell nothing all are alike."""
        prior, scale = prior_of(shared), units(site, shared)[:, 0]
        first = torch.zeros(len(site), dtype=torch.int64, device=scale.device)
        if site.model.features is not None:  # least squares need no pull, which would draw corners inwards
            return mine, self.explore(site, {}, {"center": mine["w"][0, 0]})[1]
        w, _ = site.solve(mine["w"][:, 0], prox=own_pull(site, prior, first, scale / site.data.sizes)[0])
        return mine, {"w": w}

    @job(u=MIXTURE, loss=NUMBER, gram=MODEL, sum=MODEL, n=COUNTS, misfit=NUMBER)
    def gather(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Send the sums of least squares; sources have moved, so one's own models of them count no longer."""
        mine, reply = super().gather(site, mine, shared)
        return mine | {"fresh": torch.ones_like(mine["fresh"])}, reply

    @job(
        r=MIXTURE, u=MIXTURE, p=NUMBER, gain=NUMBER, level=NUMBER, weight=NUMBER, first=NUMBER, second=NUMBER,
        spread=NUMBER, noise=NUMBER, evidence=NUMBER, one_evidence=NUMBER, one_first=NUMBER, one_second=NUMBER,
        one_spread=NUMBER,
    )  # fmt: skip
    def estimate(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Solve under every taste and for every source, and weigh them by their evidence."""
        S, prior, rho = self.S, prior_of(shared), shared["rho"].double()
        scale = units(site, shared).repeat_interleave(S, 1)
        start, q = routed(site, mine, shared)
        whose = torch.cat([torch.ones_like(q), q], 1)
        each = torch.arange(2 * S, device=q.device).repeat(len(site))
        pull, whole = own_pull(site, prior, each, (scale / site.data.sizes[:, None]).flatten())
        w = site.solve_each(start, whose.to(site.dtype), prox=pull)
        found = fit(site, prior, w, scale, whose)
        w = kept_models(prior, found.posterior, w, whole.view(-1, 2 * S))
        each = prior.shares[:S].log() + found.evidence[:, :S]
        sources, u = mixture_evidence(site, q, found.evidence[:, S:])
        alone = torch.stack([each.logsumexp(1), sources], 1)
        both = alone + torch.stack([1 - rho, rho]).log()
        r, p, gain = each.softmax(1), (both[:, 1] - both[:, 0]).sigmoid(), both.logsumexp(1)[:, None] - alone.flip(1)
        level = levels(p, rho, shared["open"])
        weight = torch.cat([level[:, :1] * r, level[:, 1:].expand(-1, S)], 1)
        reply = {"r": r, "u": u, "p": p, "gain": gain, "level": level} | statistics(prior, found.posterior, weight)
        if site.model.loss is squared_loss:
            reply["noise"] = noise(site, prior, found, weight, scale)
        known: ClientState = {}
        if S > 1:
            likely = w[torch.arange(len(site), device=w.device), r.argmax(1)]
            known["one"], more = told(site, shared, likely, scale[:, 0])
            reply |= more | {"evidence": both.logsumexp(1)}
        reply = {name: value.to(site.dtype) for name, value in reply.items()}
        known |= {name: reply[name] for name in ("r", "u", "p")}
        return mine | known | {"w": w, "fresh": torch.zeros_like(mine["fresh"])}, reply

    @job(level=NUMBER, weight=NUMBER, first=NUMBER, second=NUMBER, spread=NUMBER, noise=NUMBER)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Draw a kind, and a center or the source of each point; train every model on the points that are its own."""
        S, both = self.S, prior_of(shared)
        start, q = routed(site, mine, shared)
        kind, used, part = drawn(site, mine, shared, q)
        wide, rows = site.parts(part, S), torch.arange(len(site), device=q.device).repeat_interleave(S)
        sizes, j = wide.data.sizes, (torch.arange(S, device=q.device) + S * kind[:, None]).flatten()
        prior, scale, weight = both.chosen(j), units(site, shared)[rows, kind[rows], None], used.view(-1, 1)
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
            reply["noise"] = noise(wide, prior, found, weight, scale).view(len(site), S, 3)
        kept = start.index_put((rows, j), torch.where(weight > 0, w, start[rows, j]))
        reply = {name: value.to(site.dtype) for name, value in reply.items()}
        return mine | {"w": kept, "fresh": torch.zeros_like(mine["fresh"])}, reply

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return all models of the client with their shares, or that under the one prior for everybody."""
        if "picture" in state.extra:
            return self.predict_network(mine, state)
        if "merged" in state.extra and bool(state.extra["merged"]):
            return PersonalModels(mine["one"])
        p = counted(mine["p"], state.extra["open"])[:, None]
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

    @property
    def _variances(self) -> tuple[float, float]:
        return self.spread**2, (NARROW * self.spread) ** 2
