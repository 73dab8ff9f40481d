"""What is usual for the clients of a run, in a few numbers: new clients are compared with it, without any point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fedsoft.core.client_data import ClientData
    from fedsoft.core.federation import Federation
    from fedsoft.core.model import Model

Verdict = Literal["fits", "fits no center", "no better than guessing", "cannot tell"]
REJECTED = 0.01  # no center fits when fewer than this share of simulated clients have a loss as large
SIMULATED = 1999  # clients that are resampled from the points of the run's clients
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 80, 120, 200, 300, 500, 1000)  # points of a simulated client
LEVELS = 201  # of the quantiles that are kept


@dataclass(frozen=True)
class Fit:
    """Whether the centers fit a new client.

    Arguments:
        loss: mean over its points of the loss under the posterior, sum_s q_i(s) l_s(i).
        typical: median of that over simulated clients with as many points, resampled from those of the run's clients.
        limit: 99 % quantile of the same.
        chance: share of the simulated clients with a loss at least as large.
        mean: mean loss of the points of the run's clients.
        guess: mean loss of the best constant prediction for these points, where it is known.
    """

    loss: float
    typical: float
    limit: float
    chance: float
    mean: float
    guess: float | None

    @property
    def verdict(self) -> Verdict:
        if self.guess is not None and self.mean >= self.guess:
            return "no better than guessing"
        return "fits" if self.loss <= self.limit else "fits no center"

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    @property
    def numbers(self) -> str:
        return f"loss {self.loss:.4g}, typical {self.typical:.4g}, limit {self.limit:.4g}"

    def sentence(self) -> str:
        """Return the verdict with its numbers and what to do."""
        if self.verdict == "no better than guessing":
            more = f"mean of the run's clients {self.mean:.4g}, of a constant guess {self.guess:.4g}"
            return f"no center is better than guessing ({self.numbers}; {more}): train the run longer"
        if self.verdict == "fits":
            return f"fits: {self.numbers}"
        return f"fits NO center ({self.numbers}): its data is unlike that of the run, train with it instead"


@dataclass(frozen=True)
class Usual:
    """The losses of the run's clients under their own mixtures of the centers, on held-out points.

    Arguments:
        s2: noise variance for squared loss, else None.
        mean: of the losses of all points.
        guess: mean loss of the best constant prediction for these points; None where it is not known.
        quantiles: for each of `COUNTS`, the quantiles of the mean loss of simulated clients with this many points, at
            evenly spaced levels. A simulated client is one of the run's clients with as many of its points, drawn with
            replacement.
    """

    s2: float | None
    mean: float
    guess: float | None
    quantiles: list[list[float]]

    @staticmethod
    def of(federation: Federation, model: Model, centers: Tensor, seed: int) -> Usual:
        """Measure on the clients' held-out points, or on their training points where there are none."""
        import torch

        from fedsoft.clusters.posterior import log_density, mixtures, noise_scale, posterior
        from fedsoft.core.local_solve import losses_of_all
        from fedsoft.core.metrics import squared_loss
        from fedsoft.errors import InputError
        from fedsoft.machine.threads import one_thread

        kept = federation.held_out if int(federation.held_out.sizes.sum()) else federation.train
        if not len(kept.x):
            raise InputError("what is usual for the clients of this run is not known: their points are not here")
        data = kept.take(torch.nonzero(kept.sizes)[:, 0].tolist()).to(centers.device, centers.dtype)
        with torch.no_grad(), one_thread():
            losses = losses_of_all(model, data, centers).double()
            s2 = noise_scale(losses, data, outputs(data)) if model.loss is squared_loss else None
            logp = log_density(losses, s2, outputs(data))
            own = (posterior(-logp, mixtures(logp, data, rough=True)[data.owners]) * losses).sum(1)
        values = own.cpu().numpy()
        quantiles = [_simulated(values, data, count, seed) for count in COUNTS]
        return Usual(s2, float(values.mean()), _guess(model, data), quantiles)

    def judge(self, loss: float, points: int) -> Fit:
        """Compare a mean loss over `points` points with that of simulated clients."""
        import numpy as np

        row, levels = self._row(points), _levels()
        below = float(np.interp(loss, row, levels)) if loss <= row[-1] else 1.0
        chance = (1 + SIMULATED * (1 - below)) / (SIMULATED + 1)
        typical, limit = (float(np.interp(level, levels, row)) for level in (0.5, 1 - REJECTED))
        return Fit(loss, typical, limit, chance, self.mean, self.guess)

    def _row(self, points: int) -> np.ndarray:
        """Return the quantiles for a number of points; between two that are kept, the spread goes as 1 / sqrt(n)."""
        import numpy as np

        rows, at = np.array(self.quantiles), 1 / np.sqrt(COUNTS)
        place = 1 / np.sqrt(min(points, COUNTS[-1]))
        return np.array([np.interp(place, at[::-1], column[::-1]) for column in rows.T])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Usual:
        """Read what `to_dict` gave; raises ValueError for a field that is missing or of another form."""
        found = _adapter().validate_python(values)
        if len(found.quantiles) != len(COUNTS) or any(len(row) != LEVELS for row in found.quantiles):
            raise ValueError(f"quantiles should be {len(COUNTS)} rows of {LEVELS}")
        return found


@cache
def _adapter() -> TypeAdapter[Usual]:
    return TypeAdapter(Usual)


def _levels() -> np.ndarray:
    import numpy as np

    return np.linspace(0, 1, LEVELS)


def outputs(data: ClientData) -> int:
    """Return the numbers in one target."""
    return max(1, data.y[:1].numel())


def _simulated(losses: np.ndarray, data: ClientData, points: int, seed: int) -> list[float]:
    """Return the quantiles of the mean loss of simulated clients."""
    import numpy as np

    from fedsoft.seeds import generator

    rng = generator(seed, "imagined", points)
    sizes, offsets = data.sizes.cpu().numpy(), data.offsets.cpu().numpy()
    who = rng.integers(0, len(sizes), SIMULATED)
    fraction = rng.random((SIMULATED, points))
    rows = offsets[who, None] + (fraction * sizes[who, None]).astype(np.int64)
    return np.quantile(losses[rows].mean(1), _levels()).tolist()


def _guess(model: Model, data: ClientData) -> float | None:
    """Return the smallest mean loss of a constant: the variance of targets, or the entropy of class frequencies."""
    import torch

    from fedsoft.core.metrics import cross_entropy, squared_loss

    y = data.y[data.points]
    if model.loss is squared_loss:
        return float((y.double() - y.double().mean(0)).square().reshape(len(y), -1).sum(1).mean())
    if model.loss is cross_entropy:
        share = torch.bincount(y.long()).double() / len(y)
        return float(torch.special.entr(share).sum())
    return None
