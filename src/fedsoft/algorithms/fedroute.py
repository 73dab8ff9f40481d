"""FedRoute: every point trains the one center that most probably made it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.centers.blend import mixed
from fedsoft.centers.collapse import unused
from fedsoft.centers.leastsquares import parted, solved, sums
from fedsoft.centers.mixing import Participants, average, check_participants, one_hot, participants
from fedsoft.centers.posterior import posterior
from fedsoft.centers.starting import First, Starts, age_of, first_state, older, start
from fedsoft.checks import settings
from fedsoft.contract import Answer, Ask, Ids, Memory, Reply, Site, State, job
from fedsoft.model import squared_loss

__all__ = ["FedRoute"]

HARD, TRIAL, ROUTED = range(3)
PHASES = ("hard", "trial", "routed")
SETTLE = 5  # rounds between two looks for twins
SHARE = 0.3  # of the clients take part in the trial
TIED = 0.3  # of the largest posterior is nearly as probable


@settings
class FedRoute(Starts):
    """Every client gives each of its points to the center that most probably made it, and trains centers on those.

    Maths, for each client k drawn, its points i and the loss l_s(i) of center s:

        q_i(s) = p_ks exp(-l_s(i)) / sum_s' p_ks' exp(-l_s'(i)),    p_ks = (1 - eps) u_ks + eps / S
        u_ks   = mean_i q_i(s)                                      kept by the client between rounds
        w_ks   = local solution from c_s on the points with argmax_s' q_i(s') = s
        c_s    = sum_k n_ks w_ks / sum_k n_ks                       n_ks: the number of these points

    So every point is used once in an epoch, whatever S is. The rounds before make centers that differ: FedAvg and the
    corners of everybody's own models (see `first`), then `hard` rounds in which a client trains the center of the
    smallest mean loss with all its points, as in IFCA. Then priors are opened once: u_ks = 1 / S. With those of the
    hard rounds, centers would explain the mixed data that they were made of and stay mixtures.

    Points are worth routing only where sources conflict. Where one model explains them all, parting the points just
    leaves every center with less, and centers become specialists of nothing in particular. So routing has to show its
    worth, in a trial beside the hard rounds: a few clients route their points to centers that began as copies of the
    hard ones. As soon as the loss of points under the centers that they are given to is at most `gain` times that of
    the other clients under the hard centers, everybody routes to these, and the copies are forgotten. If that does not
    happen within `trial` rounds, hard rounds go on.

    A source may be explained as well by the center of another one that it does not conflict with. Its points would then
    be divided between the two by chance, and stay so: a center knows best what it was trained on. So in the first
    `ties` routed rounds a point goes to any of the centers whose q_i(s) is at least 0.3 of the largest, drawn anew in
    every round. All of them learn such points, and afterwards the client's prior decides.

    With squared loss exp(-l) is that of a Gaussian: l_s(i) = r_s(i)^2 / (2 s2), s2 being the mean of q_i(s) r_s(i)^2
    over all points of the last round, and at first that of min_s r_s(i)^2 at the client. Models that are linear in
    their parameters then need no descent and no hard rounds. Clients send sums, and centers are least squares over all
    points, shared by q:

        c_s = (sum_k sum_i q_i(s) x_i x_i')^-1 sum_k sum_i q_i(s) x_i y_i

    which is EM for a mixture of regressions. Sources that do not conflict then share their points by themselves. Where
    two centers have come to share a source, so that a third one has to hold two, one of the twins starts again there.

    Arguments:
        S: number of centers.
        K: clients drawn in a round, or "all".
        first: where centers start: each a draw of its own (`xavier`), the corners of everybody's own models after one
            task from a common draw (`simplex`), or the same after some rounds of FedAvg (`warm`).
        warm: these rounds; none where least squares tell the corners.
        hard: hard rounds before points are routed.
        trial: rounds in which routing may show its worth; 0 to route without.
        ties: rounds after it in which points that several centers explain alike go to any of them.
        gain: the loss of routed points that is good enough, as a share of the loss of hard clients.
        eps: share of the prior that is even.
        reseed: a center that is hardly used (less than a tenth of an even share of the points) is replaced in a routed
            round by what the client of the largest loss made of its main center, and priors are opened again.
        predict_with: the `mixture` sum_s u_ks p_s(y | x), or the center of the `largest` u_ks alone.

    Cost: one task per client drawn, and S evaluations of its points; one task more for everybody when the centers are
        made. S models down, and S up in routed rounds (counted as S even when a client has no points for some). With
        least squares S (P + 1) P numbers up, counted as P gradients of every point.

    Use it: when clients mix sources that conflict, and centers for new users matter.

    Example:
        >>> FedRoute(S=2, K=60).hard
        6

    Reference: none; an algorithm of this library. It joins the hard rounds of IFCA (Ghosh et al., NeurIPS 2020), the
        mixtures of FedEM (Marfoq et al., NeurIPS 2021) and the corners of separable data (Gillis, Vavasis, 2014).
    """

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"
    first: First = "warm"
    warm: Annotated[int, Field(ge=0)] = 6
    hard: Annotated[int, Field(ge=0)] = 6
    trial: Annotated[int, Field(ge=0)] = 4
    ties: Annotated[int, Field(ge=0)] = 20
    gain: Annotated[float, Field(gt=0)] = 0.67
    eps: Annotated[float, Field(ge=0, lt=1)] = 0.05
    reseed: bool = False
    predict_with: Literal["mixture", "largest"] = "mixture"

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("FedRoute", self.K, clients)

    def init(self, site: Site, clients: int) -> State:
        """First centers and even shares. `tried`: the centers of the trial. `left`: its rounds, then those of ties."""
        linear = site.model.features is not None
        state = first_state(site, self.S, "simplex" if linear and self.first == "warm" else self.first, self.warm)
        c = state["centers"]
        phase = ROUTED if linear else HARD if self.S == 1 else TRIAL if self.trial else ROUTED
        return state | {
            "u": c.new_full((clients, self.S), 1 / self.S),
            "s2": c.new_tensor(0.0 if site.model.loss is squared_loss else 0.5),  # 0: not known yet, 1/2: as it is
            "linear": torch.tensor(linear), "phase": torch.tensor(phase),
            "left": torch.tensor(self.trial if phase == TRIAL else self.ties),
            "tried": c.clone(), "trial_k": torch.zeros(clients, dtype=torch.bool, device=c.device),
        }  # fmt: skip

    def enrol(self, site: Site) -> Memory:
        """The client's mixture, and whether its prior is open: even, whatever its mixture was."""
        u = site.draw("center", 0).new_full((len(site), self.S), 1 / self.S)
        return {"u": u, "open": torch.ones(len(site), dtype=torch.bool, device=u.device)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """The start; hard rounds; a trial beside them; then routed ones, if that is worth it."""
        if (age := age_of(state, t)) < 0:
            return start(state, ask, self.K)
        ids, phase = participants(ask, self.K), int(state["phase"])
        if age < self.hard and not bool(state["linear"]):
            phase = HARD
        state, notes = state | older(state), {"selected": len(ids), "answered": 0, "phase": PHASES[phase]}
        if phase == HARD:
            return self.hardened(state, ask, ids, notes), notes
        if phase == ROUTED:
            return self.routed(state, ask, ids, notes, "centers", age), notes
        state = self.begun(state, ask)
        tries = state["trial_k"].cpu().numpy()[ids]
        state = self.hardened(state, ask, ids[~tries], notes)
        return self.judged(self.routed(state, ask, ids[tries], notes, "tried", age), notes), notes

    def hardened(self, state: State, ask: Ask, ids: Ids, notes: dict[str, Any]) -> State:
        """After a hard round of these clients."""
        answer = ask("choose", ids, centers=state["centers"])
        notes["answered"] += len(answer.ids)
        if not len(answer.ids):
            return state
        notes["hard_loss"] = _mean(ask, answer, "loss")
        u = answer.update("u", state["u"])
        weights = u[answer.ids].T.double() * ask.sizes[answer.ids]
        return state | {"u": u, "centers": average(answer["w"], weights, old=state["centers"])}

    def routed(self, state: State, ask: Ask, ids: Ids, notes: dict[str, Any], which: str, age: int) -> State:
        """After a routed round: centers from the points that they were given, and the scale of the noise."""
        c, linear = state[which], bool(state["linear"])
        ties = not linear and which == "centers" and int(state["left"]) > 0
        if linear:
            answer = ask("gather", ids, centers=c, s2=state["s2"])
        else:
            answer = ask("route", ids, centers=c, s2=state["s2"], ties=c.new_tensor(float(ties)))
        notes["answered"] += len(answer.ids)
        if not len(answer.ids):
            return state
        each = c.new_ones((1, len(answer.ids)), dtype=torch.float64)
        if linear:
            new = solved(c, answer, each)
            if age % SETTLE == SETTLE - 1 and (other := parted(c, new, answer)) is not None:
                new = other
                ask("open", ask.everyone)
        else:
            given, total = answer["n"].weighted(each)[0][:, None], answer["sum"].weighted(each)[0]
            new = torch.where(given > 0, total / given.clamp(min=1), c.double())
        loss = notes["routed_loss"] = _mean(ask, answer, "loss")
        s2 = state["s2"] if float(state["s2"]) == 0.5 else c.new_tensor(max(loss, torch.finfo(c.dtype).tiny))
        state = state | {"u": answer.update("u", state["u"]), which: new.to(c.dtype), "s2": s2}
        if ties:
            state = state | {"left": state["left"] - 1}
        return self.reseeded(state, ask, answer) if self.reseed and not linear and which == "centers" else state

    def begun(self, state: State, ask: Ask) -> State:
        """The trial's clients, drawn once, and its first centers."""
        if bool(state["trial_k"].any()):
            return state
        draws = np.array([g.random() for g in ask.generators("trial")])
        few = torch.as_tensor(np.argsort(draws)[: math.ceil(SHARE * len(draws))], device=state["u"].device)
        return state | {"trial_k": state["trial_k"].index_fill(0, few, True), "tried": state["centers"]}

    def judged(self, state: State, notes: Mapping[str, Any]) -> State:
        """Everybody routes when that has shown its worth; it is given up when the trial is over."""
        if notes.get("routed_loss", math.inf) <= self.gain * notes.get("hard_loss", 0.0):
            # From the hard centers: few clients have made the tried ones.
            return state | {"phase": torch.tensor(ROUTED), "left": torch.tensor(self.ties)}
        left = int(state["left"]) - 1
        return state | {"left": torch.tensor(left), "phase": torch.tensor(TRIAL if left else HARD)}

    def reseeded(self, state: State, ask: Ask, answer: Answer) -> State:
        """See the setting."""
        use = (state["u"].double() * ask.sizes[:, None]).sum(0)
        poor = unused((use / use.sum()).tolist())
        if not poor:
            return state
        worst = int(answer.rows("loss", like=use).argmax())
        u = state["u"][answer.ids[worst]]
        main = int(u.argmax())
        weights = one_hot(torch.tensor([worst]), len(answer.ids)).double()
        given = float(answer["n"].weighted(weights)[0, main])
        c = state["centers"].clone()
        c[poor[0]] = (answer["sum"].weighted(weights)[0, main] / max(1.0, given)).to(c.dtype)
        ask("open", ask.everyone)
        return state | {"centers": c}

    @job
    def open(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """Forget the prior."""
        return mine | {"open": torch.ones_like(mine["open"])}, {}

    @job
    def choose(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """A hard round, as IFCA: all points for the center of the smallest mean loss."""
        c = shared["centers"]
        loss, s = site.data.mean_by_client(site.losses(c)).min(1)
        w, _ = site.solve(c[s])
        u = one_hot(s, self.S).to(c.dtype)
        return mine | {"u": u, "open": torch.ones_like(mine["open"])}, {"u": u, "w": w, "loss": loss / _outputs(site)}

    @job
    def route(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """Every point for its most probable center."""
        c, data = shared["centers"], site.data
        q, _, mine, reply = self._shares(site, mine, shared)
        part = _parts(site, q) if bool(shared["ties"]) else q.argmax(1)
        given = data.mean_by_client(one_hot(part, self.S).to(c.dtype)) * data.sizes[:, None]
        w = site.solve_parts(c.expand(len(site), -1, -1), part)
        return mine, reply | {"sum": w * given[:, :, None], "n": given}

    @job
    def gather(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """The sums of weighted least squares."""
        q, losses, mine, reply = self._shares(site, mine, shared)
        return mine, reply | sums(site, q, losses)

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The client's mixture of all centers, or its main one."""
        c, u = shared["centers"], mine["u"]
        if self.predict_with == "largest":
            return site.predictions(c[u.argmax(1)])
        return mixed(site, c, u)

    def _shares(self, site: Site, mine: Memory, shared: Reply) -> tuple[Tensor, Tensor, Memory, Reply]:
        """The posterior and the losses of every point, what the client keeps of it, and what it tells of it."""
        data, losses = site.data, site.losses(shared["centers"])
        nearest = (data.mean_by_client(losses.amin(1)) / _outputs(site)).clamp(min=torch.finfo(losses.dtype).tiny)
        s2 = torch.where(shared["s2"] > 0, shared["s2"], nearest)[data.owners, None]
        prior = torch.where(mine["open"][:, None], 1 / self.S, (1 - self.eps) * mine["u"] + self.eps / self.S)
        q = posterior(losses, prior[data.owners], s2)
        u, loss = data.mean_by_client(q), data.mean_by_client((q * losses).sum(1)) / _outputs(site)
        return q, losses, mine | {"u": u, "open": torch.zeros_like(mine["open"])}, {"u": u, "loss": loss}


def _parts(site: Site, q: Tensor) -> Tensor:
    """The center for each point: by chance the most probable one, or one that is nearly as probable."""
    draws = zip(site.generators("ties"), site.data.sizes.tolist(), strict=True)
    chance = torch.as_tensor(np.concatenate([g.random((n, q.shape[1])) for g, n in draws]), device=q.device)
    return torch.where(q >= TIED * q.amax(1, keepdim=True), chance, -1.0).argmax(1)


def _outputs(site: Site) -> int:
    """What a squared loss is summed over."""
    return site.data.y[:1].numel() if site.model.loss is squared_loss else 1


def _mean(ask: Ask, answer: Answer, name: str) -> float:
    """Over all points of those who answered."""
    n = ask.sizes[answer.ids].double()[None]
    return float(answer[name].weighted(n / n.sum())[0])
