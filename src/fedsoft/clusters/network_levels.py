"""Both levels on networks: one model for all, a center for each client or each point, decided by held-back points.

Each of these pictures is trained from the same FedAvg start by a part of the clients. Then all clients tell what each
leaves of the loss of points that they hold back, after one task on the others. The picture with the smallest loss is
trained for the rest of the run, if it is clearly better than one model, and personal models come from it by a way
(`closing`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsoft.clusters.averaging import mean_by_size, mean_over_points
from fedsoft.clusters.closing import Beginning, Closing, losses_along, reached, task_done, way_of
from fedsoft.clusters.importance_weights import one_hot
from fedsoft.clusters.initial import Starts, age_of, first_state, older, start
from fedsoft.clusters.personal_way import hold_back
from fedsoft.clusters.posterior import posterior, soft_weights, summed_outputs
from fedsoft.clusters.routing import FIXED, Routing, first_s2, routed_centers
from fedsoft.clusters.selection import participants
from fedsoft.core.contract import Ask, PersonalModels, State, Way, job
from fedsoft.core.metrics import squared_loss
from fedsoft.core.replies import NUMBER, ClientState, Ids, Reply
from fedsoft.core.site import Site

WARM = 6  # rounds of FedAvg before clients part
APART = 6  # rounds in which each client trains one of several centers, before points are routed
TRIAL = 2  # rounds in which some clients route their points
SHARE = 0.3  # of the clients train one model for all meanwhile, and as many route their points in the trial
TIES = 20  # routed rounds in which points that several centers explain equally well go to any of them
CLEAR = 2.0  # standard errors by which several centers have to be better than one


class Picture(enum.IntEnum):
    """What the points of a client come from."""

    UNKNOWN = -1
    ONE = 0  # the same model for everybody
    CLIENTS = 1  # one of S centers
    POINTS = 2  # several of S centers, a mixture of its own


class NetworkLevels(Starts, Routing, Closing):
    """The rounds and jobs of networks; subclasses declare the settings."""

    reach: float
    eps = 0.05

    def init_network(self, site: Site, clients: int) -> State:
        """Return copies of one draw, and that nothing is known yet."""
        state = first_state(site, self.S, "warm", WARM)
        c, several = state.centers, self.S > 1
        extra = {
            "picture": torch.tensor(Picture.UNKNOWN if several else Picture.ONE), "one": c[:1].clone(),
            "tried": c.clone(), "apart": c.clone(), "s2": c.new_tensor(first_s2(site.model)),
            "ties_left": torch.tensor(TIES),
        }  # fmt: skip
        trial = torch.zeros(clients, dtype=torch.bool, device=c.device)
        u = c.new_full((clients, self.S), 1 / self.S)
        return state.update(u=u, per_client={"trial": trial}, extra=extra | self.unknown_way(c))

    def init_network_client(self, site: Site) -> ClientState:
        """Start without models, and with an even prior."""
        w = site.draw("center", 0).repeat(len(site), self.S, 1)
        is_open = torch.ones(len(site), dtype=torch.bool, device=w.device)
        return {**self.untuned(w), "u": w.new_full(w.shape[:2], 1 / self.S), "open": is_open}

    def network_round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Play the start, the pictures side by side, then the one that was found; in the last round personal models."""
        picture, age, old = Picture(int(state.extra["picture"])), age_of(state, t), state.centers
        if picture is Picture.UNKNOWN and age < 0:
            pooled = state.centers[:1]
            state, notes = start(state, ask, self.K)
            state = state.update(extra={"one": pooled if age == -1 else state.centers[:1]})
        else:
            ids = participants(ask, self.K)
            notes = {"selected": len(ids), "answered": 0, "phase": picture.name.lower()}
            state = state.update(extra=older(state))
            if picture is Picture.UNKNOWN:
                state = self._side_by_side(state, ask, ids, age, notes)
            else:
                state = self._trained(state, ask, picture, ids, notes)
        if ask.last:
            if int(state.extra["picture"]) == Picture.UNKNOWN:
                state = self._judged(state, ask, notes)
            if picture is Picture.ONE and self.reach > 1:
                state = state.update(centers=(old + state.centers) / 2)
            state, notes["tuned"] = self.closed(state, ask, {"picture": state.extra["picture"]})
        return state, notes

    def _side_by_side(self, state: State, ask: Ask, ids: Ids, age: int, notes: dict[str, Any]) -> State:
        """Have some clients train one model, the others a center each; later a few route their points instead."""
        notes["phase"], trying = "apart" if age < APART else "trial", age >= APART
        if trying and not bool(state.per_client["trial"].any()):
            draws = np.array([g.random() for g in ask.generators("trial")])
            chosen = torch.as_tensor(np.argsort(draws)[: math.ceil(SHARE * len(draws))], device=state.u.device)
            trial = state.per_client["trial"].index_fill(0, chosen, True)
            copies = {"tried": state.centers, "apart": state.centers}
            state = state.update(per_client={"trial": trial}, extra=copies)
        routes = state.per_client["trial"].cpu().numpy()[ids]
        draws = np.array([g.random() for g in ask.generators("picture")])[ids]
        pooled = ~routes & (draws < SHARE / (1 - SHARE * trying))
        state = self._trained(state, ask, Picture.ONE, ids[pooled], notes, "one")
        state = self._trained(state, ask, Picture.CLIENTS, ids[~routes & ~pooled], notes)
        if trying:
            state = self._trained(state, ask, Picture.POINTS, ids[routes], notes, "tried")
        return self._judged(state, ask, notes) if age == APART + TRIAL - 1 else state

    def _trained(
        self, state: State, ask: Ask, picture: Picture, ids: Ids, notes: dict[str, Any], where: str = ""
    ) -> State:
        """Have clients train the centers of a picture; `where` these are, if not `centers`."""
        if picture is Picture.CLIENTS:
            return self.play_hard(state, ask, ids, notes)
        c, s2 = state.extra[where] if where else state.centers, state.extra["s2"]
        if picture is Picture.ONE:
            answer, new = ask("pool", ids, center=c[:1]), c
            if len(answer.ids):
                mean = mean_by_size(ask, answer, c[:1])
                new = reached(c[:1], mean, 1.0 if where else self.reach).expand(len(c), -1)
        else:
            ties = not where and int(state.extra["ties_left"]) > 0
            answer = ask("route", ids, centers=c, s2=s2, ties=c.new_tensor(float(ties)))
            if len(answer.ids):
                loss = notes["routed_loss"] = mean_over_points(ask, answer, "loss")
                s2 = s2 if float(s2) == FIXED else c.new_tensor(max(loss, torch.finfo(c.dtype).tiny))
                c = routed_centers(answer, c).to(c.dtype)
                state = state.update(u=answer.update("u", state.u))
            state, new = state.update(extra={"s2": s2, "ties_left": state.extra["ties_left"] - int(ties)}), c
        notes["answered"] += len(answer.ids)
        return state.update(extra={where: new}) if where else state.update(centers=new)

    def _judged(self, state: State, ask: Ask, notes: dict[str, Any]) -> State:
        """Choose the picture; go on from its centers."""
        answer = ask("judge", ask.everyone, centers=state.centers, one=state.extra["one"], tried=state.extra["tried"])
        if not len(answer.ids):
            return state
        losses = answer.rows("losses", like=state.centers).double()
        picture = clearest(losses)
        notes["picture"] = picture.name.lower()
        notes["left"] = [round(float(x), 4) for x in (losses.sum(0).amin(1) / losses.sum(0)[0, 0])]
        extra = {"picture": torch.tensor(picture)}
        if picture is Picture.ONE:
            even = torch.full_like(state.u, 1 / self.S)
            return state.update(centers=state.extra["one"].expand(self.S, -1).clone(), u=even, extra=extra)
        if picture is Picture.POINTS:
            # From the centers that most clients made, before some of them tried: not from those of the few that did.
            ask("open", ask.everyone)
            return state.update(centers=state.extra["apart"], extra=extra)
        return state.update(extra=extra)

    @job(losses=NUMBER)
    def judge(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Return the losses of points held back under every picture, after one task on the others, `[m, 3, scales]`."""
        rest, back = hold_back(site, "held back")
        models, losses = {"one": Picture.ONE, "centers": Picture.CLIENTS, "tried": Picture.POINTS}, []
        for name, picture in models.items():
            begin = explained(rest, shared[name], picture)
            w = task_done(rest, begin, begin.centers, strength=0.0, rate=1.0, task=0)
            losses.append(losses_along(back, begin, w))
        return mine, {"losses": torch.stack(losses, 1)}

    def beginning(self, site: Site, mine: ClientState, shared: Mapping[str, Tensor]) -> Beginning:
        """Begin at the center of all models, or at the S centers with the points of each."""
        return explained(site, shared["centers"], Picture(int(shared["picture"])))

    def predict_network(self, mine: ClientState, state: State) -> PersonalModels:
        """Return the client's own model, or models where it mixes several; while it has none, centers by its shares."""
        if int(state.extra["picture"]) in (Picture.ONE, Picture.CLIENTS):
            own = mine["own"][torch.arange(len(mine["u"])), mine["shares"].argmax(1)]
            return PersonalModels(torch.where(mine["tuned"][:, None], own, state.centers[mine["u"].argmax(1)]))
        return self.predict_tuned(mine, PersonalModels(state.centers.expand(len(mine["u"]), -1, -1), mine["u"]))

    def adopt_network(self, site: Site, state: State) -> PersonalModels | None:
        """Give new clients models of their own, as the last round did; none before it."""
        if not float(state.extra["strengths"][0]):
            return None
        mine, _ = self.tune(site, self.init_network_client(site), {"centers": state.centers, **state.extra})
        return self.predict_network(mine, state)

    def network_way(self, state: State) -> Way | None:
        """Return the way to a model of one's own; none where a client mixes several."""
        return way_of(state.extra) if int(state.extra["picture"]) in (Picture.ONE, Picture.CLIENTS) else None


def clearest(losses: Tensor) -> Picture:
    """Return one model for all unless several are clearly better, from losses `[m, 3, scales]` of m clients.

    Each picture counts with the scale that is best for all clients together. Those with several centers are equally
    free, so the one with the smaller loss stands for both. It is clearly better if the mean difference, client by
    client, is more than `CLEAR` standard errors above 0.
    """
    best = losses.sum(0).argmin(1)
    each = losses[:, torch.arange(len(best)), best]  # [m, 3]
    found = min(Picture.CLIENTS, Picture.POINTS, key=lambda picture: float(each[:, picture].sum()))
    gain = each[:, Picture.ONE] - each[:, found]
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    return found if float(gain.mean()) > CLEAR * error else Picture.ONE


def explained(site: Site, centers: Tensor, picture: Picture) -> Beginning:
    """Return which of `centers[S, P]` made the points of each client, in a picture."""
    data, m, count = site.data, len(site), len(centers)
    c = centers.expand(m, -1, -1)
    if picture is Picture.POINTS:
        losses, squared = site.losses(centers), site.model.loss is squared_loss
        u = soft_weights(losses, data, 0.0, summed_outputs(site) if squared else None)
        s2 = data.mean_by_client(losses.amin(1)) / summed_outputs(site) if squared else c.new_full((m,), FIXED)
        s2 = s2.clamp(min=torch.finfo(s2.dtype).tiny)[data.owners, None]
        return Beginning(c, posterior(losses, u[data.owners], s2).argmax(1), u)
    s = torch.zeros(m, dtype=torch.int64, device=c.device)
    if picture is Picture.CLIENTS:
        s = data.mean_by_client(site.losses(centers)).argmin(1)
    return Beginning(c, s[data.owners], one_hot(s, count).to(c.dtype))
