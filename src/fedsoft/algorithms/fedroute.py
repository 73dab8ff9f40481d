"""FedRoute: every point trains the one center that most probably made it."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from fedsoft.clusters.averaging import mean_over_points
from fedsoft.clusters.collapse import unused
from fedsoft.clusters.ensemble import mixed
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.initial import First, Starts, age_of, first_state, older, start
from fedsoft.clusters.least_squares import SETTLE
from fedsoft.clusters.routing import FIXED, Routing, first_s2, routed_centers
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Ask, Needs, PersonalModels, State
from fedsoft.core.replies import Answer, ClientState, Ids
from fedsoft.core.site import Site
from fedsoft.settings import settings

__all__ = ["FedRoute"]

SHARE = 0.3  # of the clients take part in the trial


class Phase(enum.IntEnum):
    """What a round does after the start."""

    HARD = 0  # each client trains one center on all its points
    TRIAL = 1  # a few clients route their points, the others play a hard round
    ROUTED = 2  # each point trains its most probable center


@settings
class FedRoute(Starts, Routing):
    """Every client gives each of its points to the center that most probably made it, and trains centers on those.

    Some rounds are FedSoft's own, with one model per client; a trial tells whether giving each point to its own
    center pays.

    Maths, for each client k drawn, its points i and the loss l_s(i) of center s:

        q_i(s) = p_ks exp(-l_s(i)) / sum_s' p_ks' exp(-l_s'(i)),    p_ks = (1 - eps) u_ks + eps / S
        u_ks   = mean_i q_i(s)                                      kept by the client between rounds
        w_ks   = local solution from c_s on the points with argmax_s' q_i(s') = s
        c_s    = sum_k n_ks w_ks / sum_k n_ks                       n_ks: the number of these points

    So every point is used once per epoch, whatever S is. Earlier rounds make centers that differ: FedAvg and the
    corners of the clients' own models (see `first`), then `hard` rounds in which a client trains the center of the
    smallest mean loss on all its points, as in IFCA. Then priors are reset once to u_ks = 1 / S: with the priors of the
    hard rounds, centers would keep explaining the mixed data they were trained on and stay mixtures.

    Routing pays only where sources conflict. Where one model explains all points, dividing them only leaves every
    center with less data. So routing has to prove itself in a trial beside the hard rounds: a few clients route their
    points to centers that start as copies of the hard ones. As soon as the loss of points under the centers they are
    routed to is at most `gain` times the loss of the other clients under the hard centers, all clients route to the
    hard centers, and the copies are dropped. If that does not happen within `trial` rounds, hard rounds continue.

    A source may be explained equally well by the center of another source that it does not conflict with. Its points
    would then be divided between the two at random, and remain so: a center fits best what it was trained on. So in the
    first `ties` routed rounds a point goes to a random one of the centers whose q_i(s) is at least 0.3 of the largest,
    drawn anew in every round. All of them learn such points, and afterwards the client's prior decides.

    With squared loss exp(-l) is that of a Gaussian: l_s(i) = r_s(i)^2 / (2 s2), s2 being the mean of q_i(s) r_s(i)^2
    over all points of the last round, and at first that of min_s r_s(i)^2 at the client. Models that are linear in
    their parameters then need no descent and no hard rounds. Clients send sums, and centers are least squares over all
    points, weighted by q:

        c_s = (sum_k sum_i q_i(s) x_i x_i')^-1 sum_k sum_i q_i(s) x_i y_i

    which is EM for a mixture of regressions. Sources that do not conflict then share their points automatically. Where
    two centers share one source, so that a third has to hold two, one of the twins restarts there.

    Arguments:
        S: number of centers.
        K: clients drawn in a round, or "all".
        first: initial centers: each an independent draw (`xavier`), the corners of the clients' own models after one
            task from a common draw (`simplex`), or the same after some rounds of FedAvg (`warm`).
        warm: FedAvg rounds of `first = warm`; none where least squares give the corners.
        hard: hard rounds before points are routed.
        trial: rounds in which routing has to prove itself; 0 to route without a trial.
        ties: routed rounds in which points that several centers explain equally well go to any of them.
        gain: largest loss of routed points for the trial to succeed, as a share of the loss of hard clients.
        eps: share of the uniform distribution in the prior.
        reseed: a center that is hardly used (less than a tenth of an even share of the points) is replaced in a routed
            round by what the client of the largest loss trained from its main center, and priors are reset.
        predict_with: the `mixture` sum_s u_ks p_s(y | x), or the center of the `largest` u_ks alone.

    Cost: one task per client drawn, and S evaluations of its points; one more task for all clients when the centers are
        made. S models down, and S up in routed rounds (counted as S even when a client has no points for some). With
        least squares S (P + 1) P numbers up, counted as S (P + 2) / 2 gradients of every point.

    Use it: when clients mix sources that conflict, and centers for new users matter.

    Avoid it: when clients differ as people do, each in a way of its own: the centers then explain little. Not with
        `secure = true`.

    Example:
        >>> FedRoute(S=2, K=60).hard
        6

    Reference: none; an algorithm of this library. It joins the hard rounds of IFCA (Ghosh et al., NeurIPS 2020), the
        mixtures of FedEM (Marfoq et al., NeurIPS 2021) and the corners of separable data (Gillis, Vavasis, 2014). Its
        nearest relatives are FedSPD (Lin et al., UAI 2025), which gives points to their lowest-loss center, and FedRC
        (Guo et al., ICML 2024), which keeps centers from becoming specialists of labels; see docs/beyond.md.
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

    @property
    def needs(self) -> Needs:
        return Needs.MODELS

    def init(self, site: Site, clients: int) -> State:
        """Return initial centers and uniform shares.

        `tried` are the centers of the trial, `trial_left` and `ties_left` the rounds left of it and of ties.
        """
        linear = site.model.features is not None
        state = first_state(site, self.S, "simplex" if linear and self.first == "warm" else self.first, self.warm)
        c = state.centers
        phase = Phase.HARD if self.S == 1 else Phase.TRIAL if self.trial else Phase.ROUTED
        phase = Phase.ROUTED if linear else phase
        extra = {
            "s2": c.new_tensor(first_s2(site.model)),
            "linear": torch.tensor(linear), "phase": torch.tensor(phase), "tried": c.clone(),
            "trial_left": torch.tensor(self.trial), "ties_left": torch.tensor(self.ties),
        }  # fmt: skip
        trial = torch.zeros(clients, dtype=torch.bool, device=c.device)
        return state.update(u=c.new_full((clients, self.S), 1 / self.S), per_client={"trial": trial}, extra=extra)

    def init_client(self, site: Site) -> ClientState:
        """Return the client's mixture, and whether its prior is open, that is uniform."""
        u = site.draw("center", 0).new_full((len(site), self.S), 1 / self.S)
        return {"u": u, "open": torch.ones(len(site), dtype=torch.bool, device=u.device)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Play the start, hard rounds, a trial beside them, then routed rounds if the trial succeeds."""
        if (age := age_of(state, t)) < 0:
            return start(state, ask, self.K)
        ids, phase = participants(ask, self.K), self._phase(state, age)
        notes: dict[str, Any] = {"selected": len(ids), "answered": 0, "phase": phase.name.lower()}
        state = state.update(extra=older(state))
        match phase:
            case Phase.HARD:
                state = self.play_hard(state, ask, ids, notes)
            case Phase.ROUTED:
                state = self._play_routed(state, ask, ids, notes, age)
            case Phase.TRIAL:
                state = self._draw_trial(state, ask)
                tries = state.per_client["trial"].cpu().numpy()[ids]
                state = self.play_hard(state, ask, ids[~tries], notes)
                state = self._play_routed(state, ask, ids[tries], notes, age, trial=True)
                state = self._judge_trial(state, notes)
        return state, notes

    def _phase(self, state: State, age: int) -> Phase:
        warming_up = age < self.hard and not bool(state.extra["linear"])
        return Phase.HARD if warming_up else Phase(int(state.extra["phase"]))

    def _play_routed(
        self, state: State, ask: Ask, ids: Ids, notes: dict[str, Any], age: int, trial: bool = False
    ) -> State:
        """Update centers (in a trial, their copies) from the points routed to them, and the scale of the noise."""
        c, linear, s2 = state.extra["tried"] if trial else state.centers, bool(state.extra["linear"]), state.extra["s2"]
        ties = not linear and not trial and int(state.extra["ties_left"]) > 0
        if linear:
            answer, new, _ = self.play_gathered(ask, ids, c, s2, check=age % SETTLE == SETTLE - 1)
        else:
            answer = ask("route", ids, centers=c, s2=s2, ties=c.new_tensor(float(ties)))
            new = routed_centers(answer, c)
        notes["answered"] += len(answer.ids)
        if not len(answer.ids):
            return state
        loss = notes["routed_loss"] = mean_over_points(ask, answer, "loss")
        if float(s2) != FIXED:
            s2 = c.new_tensor(max(loss, torch.finfo(c.dtype).tiny))
        state = state.update(u=answer.update("u", state.u), extra={"s2": s2})
        if trial:
            return state.update(extra={"tried": new.to(c.dtype)})
        state = state.update(centers=new.to(c.dtype), extra={"ties_left": state.extra["ties_left"] - int(ties)})
        return self._replace_unused(state, ask, answer) if self.reseed and not linear else state

    def _draw_trial(self, state: State, ask: Ask) -> State:
        """Draw the clients of the trial and copy the centers for it, once."""
        if bool(state.per_client["trial"].any()):
            return state
        draws = ask.generators("trial").random()
        chosen = torch.as_tensor(np.argsort(draws)[: math.ceil(SHARE * len(draws))], device=state.u.device)
        trial = state.per_client["trial"].index_fill(0, chosen, True)
        return state.update(per_client={"trial": trial}, extra={"tried": state.centers})

    def _judge_trial(self, state: State, notes: Mapping[str, Any]) -> State:
        """Let all clients route once the trial succeeds; return to hard rounds when its time is over."""
        if notes.get("routed_loss", math.inf) <= self.gain * notes.get("hard_loss", 0.0):
            # From the hard centers: only a few clients trained the tried ones.
            return state.update(extra={"phase": torch.tensor(Phase.ROUTED)})
        left = int(state.extra["trial_left"]) - 1
        phase = Phase.TRIAL if left else Phase.HARD
        return state.update(extra={"trial_left": torch.tensor(left), "phase": torch.tensor(phase)})

    def _replace_unused(self, state: State, ask: Ask, answer: Answer) -> State:
        """Replace a center that is hardly used; see the setting `reseed`."""
        use = (state.u.double() * ask.sizes[:, None]).sum(0)
        poor = unused((use / use.sum()).tolist())
        if not poor:
            return state
        worst = int(answer.rows("loss", like=use).argmax())
        u = state.u[answer.ids[worst]]
        main = int(u.argmax())
        weights = one_hot(torch.tensor([worst]), len(answer.ids)).double()
        given = float(answer["n"].weighted(weights)[0, main])
        c = state.centers.clone()
        c[poor[0]] = (answer["sum"].weighted(weights)[0, main] / max(1.0, given)).to(c.dtype)
        ask("open", ask.everyone)
        return state.update(centers=c)

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return the client's mixture of all centers, or its main center."""
        return mixed(state.centers, mine["u"], largest=self.predict_with == "largest")
