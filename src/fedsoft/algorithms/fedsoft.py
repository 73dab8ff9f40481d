"""FedSoft: soft clustered federated learning with proximal local updating (Ruan & Joe-Wong, AAAI 2022)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from fedsoft.clusters.averaging import average, mean_by, unmix
from fedsoft.clusters.collapse import reseeded
from fedsoft.clusters.importance_weights import aggregation_weights, importance_weights
from fedsoft.clusters.initial import First, Starts, age_of, first_state, needs_of_start, older, start
from fedsoft.clusters.posterior import SWEEPS, soft_weights
from fedsoft.clusters.selection import Participants, ids_of, select
from fedsoft.core.batches import Prox
from fedsoft.core.contract import Algorithm, Ask, Means, Needs, PersonalModels, State, job
from fedsoft.core.metrics import squared_loss
from fedsoft.core.model import as_numbers
from fedsoft.core.replies import MIXTURE, MODEL, NUMBER, Answer, ClientState, Reply, prefixed, under
from fedsoft.core.site import Site
from fedsoft.errors import SettingError
from fedsoft.settings import Tunable, settings

__all__ = ["FedSoft"]

RIDGE = 1e-3  # of unmixing, as a share of the mean weight of a center


@settings
class FedSoft(Starts, Algorithm):
    """Every client solves one proximal problem per round; its model updates every center it was drawn for.

    A client is pulled to all centers by its shares of them, so its solution is its personal model, and costs one
    task however many sources there are.

    Maths (Algorithm 1):

        u_ks    = max(n_ks / n_k, sigma)                              every tau rounds, by all clients
        v_sk    = u_ks n_k / sum_k' u_k's n_k'                        eq. (5)
        Sel_s   = K clients, each with probability v_sk
        w_k     = argmin f_k(w) + lambda/2 sum_s u_ks |w - c_s|^2     by the clients in any Sel_s
        c_s     = 1/K sum_{k in Sel_s} w_k                            or sum_k v_sk w_k when all clients take part

    Beyond the paper, by option. With `weights = soft` every point is shared by the centers instead of counted for one:

        q_i(s) = u_ks exp(-l_s(i)) / sum_s' u_ks' exp(-l_s'(i)),   u_ks = max(mean_i q_i(s), sigma)     in a few sweeps

    where a squared loss is divided by twice the variance of the noise, found in the same sweeps. With `aggregate =
    unmix` the centers are those whose mixtures are the client models (least squares over clients, weights n_k):

        m_k = w_k + lambda/h_k sum_s u_ks (w_k - c_s)      what w_k would be without the pull; h_k: curvature of f_k
        C   = argmin sum_k n_k |m_k - sum_s u_ks c_s|^2    with a little ridge towards the centers as they were

    It is for models that are linear in their parameters with squared loss, the only ones whose minima mix as data do.

    Arguments:
        S: number of centers.
        K: clients drawn for each center in a round; "all" lets all clients take part and averages by v.
        lam: the paper's lambda, strength of the pull towards the centers.
        tau: rounds between estimations of the importance weights.
        sigma: smallest importance weight.
        replacement: draw the K clients with replacement, as the proofs do; without, as the experiments do.
        start: where a local solve starts: the client's `own` last model, or the `mixture` sum_s u_ks c_s of centers.
        optimizer_state: whether the local optimizer's state is `kept` over rounds or `fresh` in each.
        weights: importance weights by counting points (`hard`, as published) or by sharing them (`soft`).
        aggregate: centers as the `mean` of client models (as published), or `unmix` them.
        first: initial centers: each an independent draw (`xavier`), the corners of the clients' own models after one
            task from a common draw (`simplex`), or the same after some rounds of FedAvg (`warm`).
        warm: FedAvg rounds of `first = warm`.
        reseed: before an estimation, a center that is hardly used (less than a tenth of an even share of the points) is
            replaced by the client model that is farthest from the others.

    Cost: one task per client drawn, whatever S is, and every tau rounds S evaluations of all clients' points; S models
        down, one up.

    Use it: when every client's data is a mixture of a few sources that share much.

    Avoid it: when cluster models must be as good as those of separated data and sources conflict: averages of
        models that were trained on mixed data remain mixtures (FedRoute, or FedEM at S times the work).

    Example:
        >>> FedSoft(S=2, K=60, lam=1.0).tau
        2

    Reference: Ruan, Joe-Wong. FedSoft: Soft clustered federated learning with proximal local updating. AAAI 2022.
    """

    S: Annotated[int, Field(ge=1)] = 2
    K: Participants = "all"
    lam: Annotated[float, Field(ge=0), Tunable((0.01, 0.1, 1.0, 10.0))] = 1.0
    tau: Annotated[int, Field(ge=1)] = 2
    sigma: Annotated[float, Field(ge=0, lt=1)] = 1e-4
    replacement: bool = False
    start: Literal["own", "mixture"] = "own"
    optimizer_state: Literal["kept", "fresh"] = "kept"
    weights: Literal["hard", "soft"] = "hard"
    aggregate: Literal["mean", "unmix"] = "mean"
    first: First = "xavier"
    warm: Annotated[int, Field(ge=0)] = 6
    reseed: bool = False

    def check(self, clients: int) -> None:
        if not self.replacement and self.K != "all" and self.K > clients:
            reason = f"should be at most {clients}, the number of clients, or set replacement = true"
            raise SettingError("FedSoft", "K", self.K, reason)

    @property
    def pull(self) -> float:
        return self.lam

    @property
    def smallest_share(self) -> float:
        return self.sigma

    @property
    def counting(self) -> int:
        return 1 if self.weights == "hard" else SWEEPS

    def means(self, clients: int) -> Means | None:
        plain = not self.replacement and self.aggregate == "mean" and self.first == "xavier" and self.sigma > 0
        return Means(self.K, uniform=False) if self.K != "all" and plain else None

    @property
    def needs(self) -> Needs:
        if self.reseed:
            return Needs.MODELS
        others = self.K != "all" or self.aggregate == "unmix"
        start = needs_of_start(self.first, self.S)
        return Needs.MIXTURES if others and start is Needs.SUMS else start

    @property
    def weighs(self) -> bool:
        return self.needs is Needs.SUMS and self.first == "xavier"

    def init(self, site: Site, clients: int) -> State:
        """Return centers by the setting `first` and uniform mixtures."""
        if self.aggregate == "unmix" and site.model.features is None:
            raise SettingError(
                "FedSoft", "aggregate", self.aggregate,
                "should be 'mean', since only the model 'linear' on a regression with one output mixes as its data "
                "does", "for this model",
            )  # fmt: skip
        state = first_state(site, self.S, self.first, self.warm)
        return state.update(u=state.centers.new_full((clients, self.S), 1 / self.S))

    def init_client(self, site: Site) -> ClientState:
        """Start all clients at one further draw."""
        w = site.draw("client").repeat(len(site), 1)
        u = w.new_full((len(site), self.S), 1 / self.S)
        return {"w": w, "u": u, **prefixed("optimizer", site.optimizer_state(w))}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Play Algorithm 1, lines 2 to 18."""
        if (t := age_of(state, t)) < 0:  # the start takes rounds of its own unless `first = xavier`
            return start(state, ask, self.K)
        if ask.secure and self.needs is Needs.SUMS:
            return self._unseen(state, t, ask)
        c, u = state.centers, state.u
        if t % self.tau == 0:
            u = ask("estimate", ask.everyone, centers=c).update("u", u)
        v = aggregation_weights(u, ask.sizes)
        sel = v if self.K == "all" else select(v, self.K, ask.generators("select"), replacement=self.replacement)
        union = ids_of(sel.sum(0))
        answer = ask("train", union, centers=c)
        if self.aggregate == "unmix":
            c = self.unmixed(ask, answer, u, c)
        else:
            c = average(answer["w"], sel[:, answer.ids], old=c)
        if self.reseed and (t + 1) % self.tau == 0:
            c = reseeded(c, u, ask.sizes, answer.rows("w", like=c))
        state = state.update(centers=c, u=u, extra=older(state))
        return state, {"selected": len(union), "answered": len(answer.ids)}

    def _unseen(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Play a round with all clients, who alone know their mixtures: each weighs its own model by u_ks n_k."""
        c = state.centers
        if t % self.tau == 0:
            ask("estimate", ask.everyone, centers=c)
        answer = ask("train", ask.everyone, centers=c)
        c, _ = mean_by(answer, "w", "u", c, ask.sizes[answer.ids])
        notes = {"selected": len(ask.everyone), "answered": len(answer.ids)}
        return state.update(centers=c, extra=older(state)), notes

    def unmixed(self, ask: Ask, answer: Answer, u: Tensor, c: Tensor) -> Tensor:
        """Return unmixed centers: every model counts by its number of points, whichever centers it was drawn for."""
        h = answer.rows("h", like=c[:, 0])
        return unmix(answer["w"], u[answer.ids], ask.sizes[answer.ids], h, self.lam, c, RIDGE)

    @job(u=MIXTURE)
    def estimate(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Estimate u_ks (lines 5 to 11): which center explains each point best?"""
        losses = site.losses(shared["centers"])
        if self.weights == "hard":
            u = importance_weights(losses, site.data, self.sigma, site.hidden)
        else:
            outputs = site.data.y[:1].numel() if site.model.loss is squared_loss else None
            u = soft_weights(losses, site.data, self.sigma, outputs, hidden=site.hidden)
        return mine | {"u": u}, {"u": u}

    @job(w=MODEL, u=MIXTURE, h=NUMBER)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Solve one proximal problem, pulled towards all centers at once (line 17)."""
        c, u = shared["centers"], mine["u"]
        w = mine["w"] if self.start == "own" else u @ c
        optimizer = under("optimizer", mine) if self.optimizer_state == "kept" else None
        w, optimizer = site.solve(w, optimizer, prox=Prox.to_centers(self.lam * u, c))
        reply = {"w": w} | ({"u": u} if site.secure else {})
        if self.aggregate == "unmix" and site.model.features is not None:
            # The mean curvature over all directions: 2/P times the mean of |phi(x)|^2.
            phi = site.model.features(as_numbers(site.data.x[site.data.points], site.dtype)[None])[0]
            reply["h"] = 2 * site.data.mean_by_client(phi.square().mean(1))
        return mine | {"w": w, **prefixed("optimizer", optimizer)}, reply

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        return PersonalModels(mine["w"])
