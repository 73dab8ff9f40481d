"""FedRoute: every point trains the one center that most probably made it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.checks import settings
from fedsoft.collapse import unused
from fedsoft.contract import Answer, Ask, Memory, Reply, Site, State, job
from fedsoft.mixing import Participants, average, check_participants, one_hot, participants, posterior
from fedsoft.model import as_numbers, squared_loss
from fedsoft.starting import First, Starts, age_of, first_state, older, start

__all__ = ["FedRoute"]

FALLS = 0.8  # doubt above this share of what it was `trial` rounds before does not fall any more


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
    leaves every center with less. This shows in the doubt, the mean entropy of q as a share of log S: it falls below
    the setting within a few rounds, or it stops falling above it. In that case the centers go back to where they were
    before, and hard rounds go on from there: the better for the common start.

    With squared loss exp(-l) is that of a Gaussian: l_s(i) = r_s(i)^2 / (2 s2), s2 being the mean of q_i(s) r_s(i)^2
    over all points of the last round, and at first that of min_s r_s(i)^2 at the client. Models that are linear in
    their parameters then need no descent and no hard rounds. Clients send sums, and centers are least squares over all
    points, shared by q:

        c_s = (sum_k sum_i q_i(s) x_i x_i')^-1 sum_k sum_i q_i(s) x_i y_i

    which is EM for a mixture of regressions. Sources that do not conflict then share their points by themselves.

    Arguments:
        S: number of centers.
        K: clients drawn in a round, or "all".
        first: where centers start: each a draw of its own (`xavier`), the corners of everybody's own models after one
            task from a common draw (`simplex`), or the same after some rounds of FedAvg (`warm`).
        warm: these rounds; none where least squares tell the corners.
        hard: hard rounds before points are routed.
        doubt: routing goes on below, and is given up when it stays above.
        trial: rounds in which doubt has to fall by a fifth as long as it is above.
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
    doubt: Annotated[float, Field(ge=0, le=1)] = 0.4
    trial: Annotated[int, Field(ge=1)] = 3
    eps: Annotated[float, Field(ge=0, lt=1)] = 0.05
    reseed: bool = False
    predict_with: Literal["mixture", "largest"] = "mixture"

    def check(self, clients: int) -> None:
        """K distinct clients must exist."""
        check_participants("FedRoute", self.K, clients)

    def init(self, site: Site, clients: int) -> State:
        """First centers and even shares. `kept`: the centers of the last hard round. `course`: doubts so far."""
        linear = site.model.features is not None
        state = first_state(site, self.S, "simplex" if linear and self.first == "warm" else self.first, self.warm)
        c = state["centers"]
        s2 = c.new_tensor(0.0 if site.model.loss is squared_loss else 0.5)  # 0: not known yet, 1/2: as it is
        flags = {"linear": torch.tensor(linear), "joined": torch.tensor(self.S == 1 and not linear)}
        return state | flags | {
            "u": c.new_full((clients, self.S), 1 / self.S), "s2": s2, "kept": c.clone(), "course": c.new_zeros(0)
        }  # fmt: skip

    def enrol(self, site: Site) -> Memory:
        """The client's mixture, and whether its prior is open: even, whatever its mixture was."""
        u = site.draw("center", 0).new_full((len(site), self.S), 1 / self.S)
        return {"u": u, "open": torch.ones(len(site), dtype=torch.bool, device=u.device)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """The start; hard rounds; then routed ones, as long as points can be told apart."""
        if (age := age_of(state, t)) < 0:
            return start(state, ask, self.K)
        ids = participants(ask, self.K)
        linear = bool(state["linear"])
        routed = linear or (age >= self.hard and not bool(state["joined"]))
        job = "gather" if linear else "route" if routed else "choose"
        answer = ask(job, ids, centers=state["centers"], s2=state["s2"])
        state = state | older(state) | {"u": answer.update("u", state["u"])}
        notes: dict[str, Any] = {"selected": len(ids), "answered": len(answer.ids)}
        if not routed:
            weights = state["u"][answer.ids].T.double() * ask.sizes[answer.ids]
            c = average(answer["w"], weights, old=state["centers"])
            return state | {"centers": c, "kept": c}, notes | {"phase": "hard"}
        if len(answer.ids):
            state = self.shared(state, ask, answer)
            notes["doubt"] = float(state["course"][-1])
            if not linear:
                state = self.judged(self.reseeded(state, ask, answer) if self.reseed else state)
        return state, notes | {"phase": "routed"}

    def shared(self, state: State, ask: Ask, answer: Answer) -> State:
        """Centers from the points that they were given, and the scale and the doubt of this round."""
        c, n = state["centers"], ask.sizes[answer.ids].double()[None]
        each = torch.ones_like(n)
        given = answer["n"].weighted(each)[0][:, None]
        total = answer["sum"].weighted(each)[0]
        if "gram" in answer:
            gram = answer["gram"].weighted(each)[0]
            total = torch.linalg.pinv(gram, hermitian=True) @ (total[:, :, None] - gram @ c.double()[:, :, None])
            new = c.double() + total[:, :, 0]  # of several minima the nearest, so a center without points stays
        else:
            new = torch.where(given > 0, total / given.clamp(min=1), c.double())
        residual, doubt = (answer[name].weighted(n / n.sum())[0].to(c.dtype) for name in ("residual", "doubt"))
        known = float(state["s2"]) == 0.5
        s2 = state["s2"] if known else residual.clamp(min=torch.finfo(c.dtype).tiny)
        return state | {"centers": new.to(c.dtype), "s2": s2, "course": torch.cat([state["course"], doubt[None]])}

    def judged(self, state: State) -> State:
        """Give routing up when doubt stays."""
        course = state["course"]
        if float(course.min()) <= self.doubt or len(course) <= self.trial:
            return state
        if float(course[-1]) <= FALLS * float(course[-1 - self.trial]):
            return state
        return state | {"centers": state["kept"], "joined": torch.ones_like(state["joined"])}

    def reseeded(self, state: State, ask: Ask, answer: Answer) -> State:
        """See the setting."""
        use = (state["u"].double() * ask.sizes[:, None]).sum(0)
        poor = unused((use / use.sum()).tolist())
        if not poor:
            return state
        worst = int(answer.rows("residual", like=use).argmax())
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
        s = site.data.mean_by_client(site.losses(c)).argmin(1)
        w, _ = site.solve(c[s])
        u = one_hot(s, self.S).to(c.dtype)
        return mine | {"u": u, "open": torch.ones_like(mine["open"])}, {"u": u, "w": w}

    @job
    def route(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """Every point for its most probable center."""
        c, data = shared["centers"], site.data
        q, mine, reply = self._shares(site, mine, shared)
        part = q.argmax(1)
        given = data.mean_by_client(one_hot(part, self.S).to(c.dtype)) * data.sizes[:, None]
        w = site.solve_parts(c.expand(len(site), -1, -1), part)
        return mine, reply | {"sum": w * given[:, :, None], "n": given}

    @job
    def gather(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """The sums of weighted least squares."""
        data, features = site.data, site.model.features
        assert features is not None
        q, mine, reply = self._shares(site, mine, shared)
        phi = features(as_numbers(data.x[data.points], site.dtype)[None])[0]
        n = data.sizes.to(site.dtype)
        site.work.gradients.add_((data.sizes * phi.shape[1]).cpu())

        def sums(values: Tensor) -> Tensor:
            return data.mean_by_client(values) * n.view(-1, *[1] * (values.ndim - 1))

        weighted = q[:, :, None] * phi[:, None, :]  # [points, S, P]
        gram = torch.stack([sums(weighted[:, s, :, None] * phi[:, None, :]) for s in range(self.S)], dim=1)
        moment = sums(weighted * data.y[data.points].view(-1, 1, 1))
        return mine, reply | {"sum": moment, "gram": gram, "n": sums(q)}

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The client's mixture of all centers, or its main one."""
        c, u = shared["centers"], mine["u"]
        if self.predict_with == "largest":
            return site.predictions(c[u.argmax(1)])
        each = torch.stack([site.predictions(center.expand(len(site), -1)) for center in c])  # [S, points, ...]
        share = u[site.data.owners].T
        return (share.view(*share.shape, *[1] * (each.ndim - 2)) * each).sum(0)

    def _shares(self, site: Site, mine: Memory, shared: Reply) -> tuple[Tensor, Memory, Reply]:
        """The posterior of every point, what the client keeps of it, and what it tells of it."""
        data, losses = site.data, site.losses(shared["centers"])
        outputs = data.y[:1].numel() if site.model.loss is squared_loss else 1
        nearest = (data.mean_by_client(losses.amin(1)) / outputs).clamp(min=torch.finfo(losses.dtype).tiny)
        s2 = torch.where(shared["s2"] > 0, shared["s2"], nearest)
        prior = torch.where(mine["open"][:, None], 1 / self.S, (1 - self.eps) * mine["u"] + self.eps / self.S)
        q = posterior(losses, prior[data.owners], s2[data.owners, None])
        u = data.mean_by_client(q)
        doubt = data.mean_by_client(torch.special.entr(q).sum(1)) / math.log(max(2, self.S))
        residual = data.mean_by_client((q * losses).sum(1)) / outputs
        kept = mine | {"u": u, "open": torch.zeros_like(mine["open"])}
        return q, kept, {"u": u, "doubt": doubt, "residual": residual}
