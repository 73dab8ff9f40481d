"""People who come after training: their mixture, a model, and whether any center fits them at all.

Nothing is trained but, where asked for, the newcomer's own personal model by one proximal solve. Of the run it takes
the centers and, from points that its clients held out, two things: the noise scale, and how large their losses are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedsoft.batches import Problem, Prox
from fedsoft.centers.blend import Blend
from fedsoft.centers.posterior import interval, log_density, mixtures, noise_scale, posterior
from fedsoft.clientdata import Augment, ClientData
from fedsoft.errors import InputError
from fedsoft.federation import Federation, Scale
from fedsoft.local import Moments, Solver, losses_of_all
from fedsoft.model import Model, cross_entropy, squared_loss
from fedsoft.seeds import generator
from fedsoft.threads import one_thread

How = Literal["center", "mixture", "personal"]
HOWS: tuple[How, ...] = get_args(How)
LEVEL = 0.9  # of intervals
STRANGE = 0.01  # a newcomer is told that nothing fits when fewer than this share of the clients would be as badly off
IMAGINED = 1999  # newcomers that are put together from the points of clients
MANY = 1000  # points; the loss of a newcomer who has more is compared to that of one who has so many


@dataclass(frozen=True)
class Fit:
    """Whether the centers fit a newcomer.

    Arguments:
        loss: the mean over its points of the loss under the posterior, sum_s q_i(s) l_s(i).
        typical: the median of that over newcomers with as many points, put together from those of the run's clients.
        limit: what 99 in 100 of these stay below.
        chance: the share of these that have a loss at least as large.
        mean: the mean loss of the clients' own points.
        guess: the same under the one constant that suits them best, where that is known.
    """

    loss: float
    typical: float
    limit: float
    chance: float
    mean: float
    guess: float | None

    @property
    def fits(self) -> bool:
        """The rule: no center fits when the loss is above the limit."""
        return self.loss <= self.limit

    def sentence(self) -> str:
        """The verdict in words."""
        numbers = f"loss {self.loss:.4g}, typical {self.typical:.4g}, limit {self.limit:.4g}"
        if self.guess is not None and self.mean >= self.guess:
            told = f"its clients' {self.mean:.4g}, a constant guess {self.guess:.4g}"
            return f"no center is better than guessing ({numbers}; {told}): train the run longer"
        if self.fits:
            return f"fits: {numbers}"
        return f"fits NO center ({numbers}): its data is unlike that of the run, train with it instead"


@dataclass(frozen=True)
class Adopted:
    """What a newcomer is given.

    Arguments:
        name: of the newcomer.
        how: what `predict` uses: the best `center`, the `mixture` of all of them, or the `personal` model.
        points: how many the newcomer had.
        shares, low, high: its mixture of the centers, and the interval of each share, `[S]`.
        level: of the interval.
        losses: its mean loss under each center, `[S]`.
        fit: whether the centers fit it at all.
        blend: what predicts.
        scale: of inputs, where the federation has one; `predict` takes them as they were before.
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
    blend: Blend
    scale: Scale | None = None

    @property
    def best(self) -> int:
        """The center of the smallest mean loss."""
        return int(self.losses.argmin())

    def predict(self, x: Any) -> Tensor:
        """Values or probabilities for inputs `x[points, ...]`."""
        with torch.no_grad(), one_thread():
            inputs = torch.as_tensor(x if isinstance(x, Tensor) else np.array(x))
            return self.blend.predict(inputs if self.scale is None else self.scale(inputs))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        rows = {key: getattr(self, key).tolist() for key in ("shares", "low", "high", "losses")}
        fit = {key: getattr(self.fit, key) for key in ("loss", "typical", "limit", "chance", "mean", "guess", "fits")}
        plain = {"name": self.name, "how": self.how, "points": self.points, "best": self.best, "level": self.level}
        return plain | rows | {"fit": fit}


@dataclass(frozen=True)
class Newcomers:
    """Takes in newcomers, one after the other; made by `Run.newcomers`.

    Arguments:
        federation: for the form of its data.
        model, solver, centers: of the run.
        lam: strength of the pull towards the centers in the proximal solve.
        s2: for squared loss the variance of the noise, else None.
        usual, owners: the loss of points that clients held out, each under its client's mixture.
        guess: the loss of the one constant that suits these points best; None where that is not known.
    """

    federation: Federation
    model: Model
    solver: Solver
    centers: Tensor
    lam: float
    seed: int
    s2: float | None
    usual: Tensor
    owners: ClientData
    augment: Augment | None = None
    guess: float | None = None

    @staticmethod
    def of(
        federation: Federation, model: Model, solver: Solver, centers: Tensor, lam: float, seed: int
    ) -> Newcomers:  # fmt: skip
        """From what a run left behind; its clients' held-out points, or their training points where there are none."""
        if not len(centers):
            raise InputError("this run has no centers that a newcomer could use: train with another algorithm")
        kept = federation.held_out if int(federation.held_out.sizes.sum()) else federation.train
        data = kept.take(torch.nonzero(kept.sizes)[:, 0].tolist()).to(centers.device, centers.dtype)
        with torch.no_grad(), one_thread():
            losses = losses_of_all(model, data, centers).double()
            s2 = noise_scale(losses, data, _outputs(data)) if model.loss is squared_loss else None
            logp = log_density(losses, s2, _outputs(data))
            usual = (posterior(-logp, mixtures(logp, data, rough=True)[data.owners]) * losses).sum(1)
        return Newcomers(
            federation, model, solver, centers, lam, seed, s2, usual, data, federation.train.augment,
            _guess(model, data),
        )  # fmt: skip

    def adopt(self, x: Any, y: Any, *, how: How = "mixture", level: float = LEVEL, name: str = "newcomer") -> Adopted:
        """See `Run.adopt`."""
        if how not in HOWS:
            raise InputError(f"how = '{how}' is not allowed: should be one of {', '.join(HOWS)}")
        if not 0 < level < 1:
            raise InputError(f"level = {level} is not allowed: should be above 0 and below 1")
        data = self.points([self.federation.newcomer(x, y, name)])
        with torch.no_grad(), one_thread():
            losses, logp, u = self.explain(data)
            span = interval(logp, u[0], level)
            q = posterior(-logp, u[data.owners])
            fit = self.judge(float((q * losses).sum(1).mean()), len(losses))
            mean = losses.mean(0)
            return Adopted(
                name, how, len(losses), u[0], span.low, span.high, level, mean, fit,
                self._blend(how, data, u, mean, name), self.federation.scale,
            )  # fmt: skip

    def points(self, pairs: list[tuple[Tensor, Tensor]]) -> ClientData:
        """The points of newcomers as the model takes them."""
        return ClientData.concat(pairs).to(self.centers.device, self.centers.dtype)

    def explain(self, data: ClientData) -> tuple[Tensor, Tensor, Tensor]:
        """Losses and log-likelihoods `[points, S]`, and the mixture of every newcomer `[m, S]`."""
        losses = losses_of_all(self.model, data, self.centers).double()
        logp = log_density(losses, self.s2, _outputs(data))
        return losses, logp, mixtures(logp, data)

    def judge(self, loss: float, points: int) -> Fit:
        """How a loss over so many points compares to those of clients of the run.

        Newcomers are imagined: a client is drawn, then as many of its points, with replacement.
        """
        rng = generator(self.seed, "imagined", points)
        sizes, begins = self.owners.sizes.cpu().numpy(), self.owners.offsets.cpu().numpy()
        who = rng.integers(0, len(sizes), IMAGINED)
        along = rng.random((IMAGINED, min(points, MANY)))
        places = begins[who, None] + (along * sizes[who, None]).astype(np.int64)
        imagined = self.usual.cpu().numpy()[places].mean(1)
        limit = float(np.quantile(imagined, 1 - STRANGE))
        chance = (1 + int((imagined >= loss).sum())) / (IMAGINED + 1)
        return Fit(loss, float(np.median(imagined)), limit, chance, float(self.usual.mean()), self.guess)

    def personal(self, data: ClientData, u: Tensor, start: Tensor, names: list[str]) -> Tensor:
        """One proximal solve for each newcomer, `argmin f(w) + lam/2 sum_s u_s |w - c_s|^2` from `start[m, P]`."""
        prox = Prox.to_centers((self.lam * u).to(self.centers), self.centers)
        return self.solve(data, start, prox, names, "adopt")[0]

    def solve(
        self, data: ClientData, w: Tensor, prox: Prox | None, names: list[str], *labels: str | int,
        moments: Moments | None = None,
    ) -> tuple[Tensor, Moments]:  # fmt: skip
        """The run's local solver on the points of newcomers."""
        problem = Problem(
            self.model, replace(data, augment=self.augment), prox, None,
            lambda: [generator(self.seed, *labels, name) for name in names],
        )  # fmt: skip
        solved, moments, _ = self.solver.solve(problem, w, self.solver.moments(w) if moments is None else moments)
        return solved, moments

    def _blend(self, how: How, data: ClientData, u: Tensor, mean: Tensor, name: str) -> Blend:
        best = self.centers[int(mean.argmin())]
        if how == "mixture":
            return Blend(self.model, self.centers, u[0].to(self.centers))
        return Blend.single(self.model, best if how == "center" else self.personal(data, u, best[None], [name])[0])


def _outputs(data: ClientData) -> int:
    """Numbers in one target."""
    return max(1, data.y[:1].numel())


def _guess(model: Model, data: ClientData) -> float | None:
    """The smallest mean loss of a constant: the variance of targets, or the entropy of the classes' frequencies."""
    y = data.y[data.points]
    if model.loss is squared_loss:
        return float((y.double() - y.double().mean(0)).square().reshape(len(y), -1).sum(1).mean())
    if model.loss is cross_entropy:
        share = torch.bincount(y.long()).double() / len(y)
        return float(torch.special.entr(share).sum())
    return None
