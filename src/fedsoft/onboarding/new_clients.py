"""Serve clients that join after training: their mixture, a model, and whether any center fits them.

Nothing is trained except, on request, the new client's personal model by one proximal solve. What is used of the run:
its centers, and what is usual for its clients: the noise scale and the distribution of losses, see `usual`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedsoft.clusters.ensemble import Ensemble
from fedsoft.clusters.personal_way import taken, task_solver
from fedsoft.clusters.posterior import interval, log_density, mixtures, posterior
from fedsoft.core.batches import Problem, Prox
from fedsoft.core.class_weights import FixedWeights, trained_on
from fedsoft.core.client_data import Augment, ClientData
from fedsoft.core.client_draws import Draws
from fedsoft.core.contract import PersonalModels, Way
from fedsoft.core.federation import Federation
from fedsoft.core.local_solve import OptimizerState, Solver, Work, losses_of_all
from fedsoft.core.model import Model
from fedsoft.core.scaling import Scale
from fedsoft.core.site import Site
from fedsoft.data.new_points import seen_inputs
from fedsoft.errors import InputError
from fedsoft.machine.threads import one_thread
from fedsoft.onboarding.usual import Fit, Usual, Verdict, outputs

How = Literal["center", "mixture", "personal"]
HOWS: tuple[How, ...] = get_args(How)
LEVEL = 0.9  # of intervals
WIDE = 0.99  # an interval that says nothing about a share
SOME = 0.1  # share that two centers have together before it matters which of them it belongs to


@dataclass(frozen=True)
class Adopted:
    """The result for one new client.

    Arguments:
        how: what `predict` uses: the best `center`, the `mixture` of all centers, or the `personal` model.
        points: how many the new client has.
        shares, low, high: its mixture of the centers, and the interval of each share, `[S]`.
        level: of the intervals.
        losses: mean loss under each center, `[S]`.
        fit: whether the centers fit it.
        alike: pairs of centers that its points do not tell apart.
        ensemble: the models it predicts with.
        inputs: from inputs as users give them, unscaled, to those that models see.
        scale: of inputs, where the federation has one.
    """

    name: str
    how: How
    points: int
    shares: Tensor
    low: Tensor
    high: Tensor
    level: float
    losses: Tensor
    fit: Fit
    alike: tuple[tuple[int, int], ...]
    ensemble: Ensemble
    inputs: Callable[[Any], Tensor]
    scale: Scale | None = None

    @property
    def best(self) -> int:
        """Return the center with the smallest mean loss."""
        return int(self.losses.argmin())

    @property
    def verdict(self) -> Verdict:
        """Whether the centers fit it; `cannot tell` where a share could as well be nothing as all."""
        open_ = len(self.shares) > 1 and float((self.high - self.low).max()) >= WIDE
        return "cannot tell" if self.fit.fits and open_ else self.fit.verdict

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    def predict(self, x: Any) -> Tensor:
        """Return values or probabilities for inputs as they are in the clients' data; see `Run.predict`."""
        with torch.no_grad(), one_thread():
            return self.ensemble.predict(self.inputs(x))

    def sentences(self) -> list[str]:
        """Return the verdict, and which centers its points do not tell apart."""
        pairs = ", ".join(f"c{r} and c{s}" for r, s in self.alike)
        count = f"its {self.points} points do" if self.points > 1 else "its one point does"
        text = f"{count} not tell {pairs} apart: how its share is divided between them is arbitrary"
        return [self._sentence(), *([text] if pairs else [])]

    def _sentence(self) -> str:
        if self.verdict != "cannot tell":
            return self.fit.sentence()
        count = f"{self.points} points" if self.points > 1 else "one point"
        return (
            f"cannot tell which center fits: with {count} a share could be anything from 0 to 1 ({self.fit.numbers}); "
            "give it more points"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rows = {key: getattr(self, key).tolist() for key in ("shares", "low", "high", "losses")}
        fit = asdict(self.fit) | {"fits": self.fits, "verdict": self.verdict}
        plain = {"name": self.name, "how": self.how, "points": self.points, "best": self.best, "level": self.level}
        return plain | rows | {"fit": fit, "alike": [list(pair) for pair in self.alike], "sentences": self.sentences()}


@dataclass(frozen=True)
class NewClients:
    """Serves new clients one after the other; made by `Run.new_clients`.

    Arguments:
        federation: gives the shape of the data.
        model, solver, centers: of the run.
        lam: strength of the pull towards the centers in the proximal solve.
        usual: for the clients of the run.
        class_weights: of the run.
        way: from a center to a model of one's own, in place of that solve, where the run has learned one.
        adopted: personal models as the run's algorithm makes them, in place of both; None where it has no such way.
    """

    federation: Federation
    model: Model
    solver: Solver
    centers: Tensor
    lam: float
    seed: int
    usual: Usual
    class_weights: FixedWeights | None = None
    way: Way | None = None
    adopted: Callable[[Site], PersonalModels | None] = lambda _: None

    @property
    def augment(self) -> Augment | None:
        return self.federation.train.augment

    def adopt(self, x: Any, y: Any, *, how: How = "mixture", level: float = LEVEL, name: str = "new client") -> Adopted:
        """See `Run.adopt`."""
        if how not in HOWS:
            raise InputError(f"how = '{how}' is not allowed: should be one of {', '.join(HOWS)}")
        if not 0 < level < 1:
            raise InputError(f"level = {level} is not allowed: should be above 0 and below 1")
        data = self.points([self.federation.new_client(x, y, name)])
        with torch.no_grad(), one_thread():
            losses, logp, u = self.explain(data)
            span = interval(logp, u[0], level)
            q = posterior(-logp, u[data.owners])
            fit = self.usual.judge(float((q * losses).sum(1).mean()), len(losses))
            mean = losses.mean(0)
            return Adopted(
                name, how, len(losses), u[0], span.low, span.high, level, mean, fit, alike(logp, u[0], level),
                self._ensemble(how, data, u, mean, name), partial(seen_inputs, self.federation), self.federation.scale,
            )  # fmt: skip

    def points(self, pairs: list[tuple[Tensor, Tensor]]) -> ClientData:
        return ClientData.concat(pairs).to(self.centers.device, self.centers.dtype)

    def explain(self, data: ClientData) -> tuple[Tensor, Tensor, Tensor]:
        """Return losses and log-likelihoods `[points, S]`, and the mixture of every new client `[m, S]`."""
        losses = losses_of_all(self.model, data, self.centers).double()
        logp = log_density(losses, self.usual.s2, outputs(data))
        return losses, logp, mixtures(logp, data)

    def personal(self, data: ClientData, u: Tensor, start: Tensor, names: list[str]) -> PersonalModels:
        """Solve `argmin f(w) + lam/2 sum_s u_s |w - c_s|^2` for each new client, from `start[m, P]`.

        Where the run has learned a prior, that and the evidence of its centers stand in for lam and u; where it has
        learned a way from a center to a model of one's own, take it from `start`.
        """
        own = replace(data, augment=self.augment)
        site = Site(
            self.model, own, self.solver, names, self.seed, 0, self.centers.dtype, work=Work.none(len(names)),
            class_weights=self.class_weights,
        )  # fmt: skip
        if (found := self.adopted(site)) is not None:
            return found
        return PersonalModels(self._solved(data, u, start, names))

    def _solved(self, data: ClientData, u: Tensor, start: Tensor, names: list[str]) -> Tensor:
        if (way := self.way) is not None:
            return taken(
                way, start, data.sizes,
                lambda w, pull, task: replace(self, solver=task_solver(self.solver, task, way.rate)).solve(
                    data, w, pull, names, "way", task
                )[0],
            )  # fmt: skip
        prox = Prox.to_centers((self.lam * u).to(self.centers), self.centers)
        return self.solve(data, start, prox, names, "adopt")[0]

    def solve(
        self, data: ClientData, w: Tensor, prox: Prox | None, names: list[str], *labels: str | int,
        optimizer_state: OptimizerState | None = None, t: int = 0,
    ) -> tuple[Tensor, OptimizerState]:  # fmt: skip
        """Apply the run's local solver to the points of new clients, whose round t is: they begin at round 0."""
        own, weights = trained_on(self.class_weights, replace(data, augment=self.augment), w.dtype)
        problem = Problem(self.model, own, prox, weights, lambda: Draws(self.seed, *labels, names=names), t)
        before = self.solver.init_state(w, self.model.layout) if optimizer_state is None else optimizer_state
        solved, after, _ = self.solver.solve(problem, w, before)
        return solved, after

    def _ensemble(self, how: How, data: ClientData, u: Tensor, mean: Tensor, name: str) -> Ensemble:
        best = self.centers[int(mean.argmin())]
        if how == "mixture":
            return Ensemble(self.model, self.centers, u[0].to(self.centers))
        if how == "center":
            return Ensemble.single(self.model, best)
        return Ensemble.of(self.model, self.personal(data, u, best[None], [name]))


def alike(logp: Tensor, u: Tensor, level: float) -> tuple[tuple[int, int], ...]:
    """Return the pairs of centers that the points do not tell apart.

    Of such a pair either center can have the share of both, and the log-likelihood stays within the drop that an
    interval of that level allows. The log-likelihood is concave in u, so this holds for every division in between.
    """
    from scipy.special import chdtri

    def likelihood(shares: Tensor) -> float:
        return float(torch.logsumexp(shares.log() + logp, 1).sum())

    least = likelihood(u) - float(chdtri(1, 1 - level)) / 2
    found = []
    for r, s in itertools.combinations(range(len(u)), 2):
        both, moved = u[r] + u[s], []
        for taker in (r, s):
            shares = u.clone()
            shares[[r, s]] = 0.0
            shares[taker] = both
            moved.append(likelihood(shares))
        if float(both) >= SOME and min(moved) >= least:
            found.append((r, s))
    return tuple(found)
