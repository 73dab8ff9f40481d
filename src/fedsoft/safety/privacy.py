"""Noise that hides what single points or clients contribute, and the guarantees it gives.

Three mechanisms, see docs/privacy.md. The first two hide a client's data from the server, so their privacy loss adds
up; the third hides clients from anyone who sees the centers.

Counts. A client adds Gaussian noise to its counts n_ks before they leave it. Moving one point to another center changes
two counts by 1 each, so the sensitivity is sqrt(2). Hidden from the server: any one point, as far as counts go.

Updates. A client clips the difference of its model from the mean of the centers it received to the norm C, and adds
Gaussian noise before the model leaves it. Its points change that by 2 C at most. Hidden from the server: any one point,
and all of them, as far as models go.

Centers. The server clips what each client adds to a center to the norm C, divides by the number of clients in the mean
(fixed beforehand: K, or all), and adds Gaussian noise. Replacing one client changes each center by 2 C / K at most, and
all centers together by sqrt(S) times that. Hidden from anyone who sees the centers: any one client.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from fedsoft.clusters.collapse import use_of
from fedsoft.errors import InputError
from fedsoft.safety.accountant import (
    centers_epsilon,
    check_accountant,
    gaussian_epsilon,
    gaussian_noise,
    shares_epsilon,
)
from fedsoft.settings import settings

if TYPE_CHECKING:
    from torch import Tensor

    from fedsoft.core.contract import Algorithm, Means, State
    from fedsoft.core.model import Model
    from fedsoft.secure.distributed import Mechanism

LEAST_CLIP = 1e-30  # near the smallest numbers that there are, rounding would make long what was clipped


class Released(NamedTuple):
    """How often noisy values were released: counts and models (of the client with the most), and centers.

    Counts used several times in one estimation have more noise each, and count as one release together.
    """

    counts: float = 0
    updates: float = 0
    centers: float = 0

    def plus(self, other: Released) -> Released:
        return Released(*(a + b for a, b in zip(self, other, strict=True)))

    @staticmethod
    def most(found: Iterable[Released]) -> Released:
        """Return the largest counts of several clients."""
        return functools.reduce(lambda a, b: Released(*map(max, a, b)), found, Released())


@dataclass(frozen=True)
class Spent:
    """What can be stated after some rounds; None where nothing is hidden in that way.

    Arguments:
        delta: of all statements.
        estimations, counts_each, counts_epsilon: releases of counts, epsilon of each, and of all.
        updates, updates_epsilon: releases of a client's models, and their epsilon.
        sent_epsilon: of counts and models together.
        releases, epsilon: new centers, and their epsilon; sampled: whether drawing clients was counted on; honest:
            whether clients add the noise, of whom as many as a sum has at least are counted on.
    """

    delta: float
    estimations: float | None = None
    counts_each: float | None = None
    counts_epsilon: float | None = None
    updates: float | None = None
    updates_epsilon: float | None = None
    sent_epsilon: float | None = None
    releases: float | None = None
    epsilon: float | None = None
    sampled: bool = False
    honest: bool = False

    @property
    def released(self) -> Released:
        return Released(self.estimations or 0, self.updates or 0, self.releases or 0)


@settings
class Privacy:
    """The noise of a run, and what is published.

    Arguments:
        counts: standard deviation of the noise on the counts n_ks, in units of their sensitivity sqrt(2); 0 for none.
        update_clip: the largest norm of the difference of a client's model from the mean of the centers; 0 for none.
        update_noise: standard deviation of the noise that a client adds to its model, in units of the sensitivity
            2 `update_clip`; needs `update_clip`.
        clip: C, the largest norm of what a client adds to a center; 0 for none.
        noise: standard deviation of the noise on centers, in units of their sensitivity; needs `clip`.
        delta: of all guarantees (epsilon, delta). Should be well below 1 / number of points or clients.
        floor: centers with fewer effective clients are not published; 0 for none.
    """

    counts: Annotated[float, Field(ge=0)] = 0.0
    update_clip: Annotated[float, Field(ge=0)] = 0.0
    update_noise: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(ge=0)] = 0.0
    noise: Annotated[float, Field(ge=0)] = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    floor: Annotated[float, Field(ge=0)] = 0.0

    def check(
        self, algorithm: Algorithm, model: Model, clients: int, *, plain_mean: bool = True, secure: bool = False
    ) -> None:
        """Raise for noise without a guarantee for this algorithm and model.

        `plain_mean`: whether neither an aggregator nor a guard is in use; `secure`: whether clients add the noise of
        centers, in shares.
        """
        kind, means = type(algorithm).__name__, algorithm.means(clients)
        self._check_pairs()
        if self.update_noise and means is None and not algorithm.counting:
            raise InputError(
                f"privacy.update_noise = {self.update_noise} is not allowed for {kind}: should be 0, since it is "
                "stated for clients that send one model and at most their mixture (FedSoft, FedAvg, FedProx)"
            )
        if self.counts:
            self._check_counts(kind, algorithm, model)
        if self.clip and secure:
            self._check_shares(kind, stated=algorithm.weighs or means is not None)
        elif self.clip and means is None:
            raise InputError(
                f"privacy.clip = {self.clip} is not allowed for this {kind}: should be 0, since it is stated for "
                "centers that are means over a fixed number of clients (FedSoft with a number K, replacement = false, "
                "aggregate = mean, first = xavier and sigma > 0; FedAvg; FedProx)"
            )
        if self.clip and not plain_mean:
            raise InputError(
                "privacy.clip goes with the plain mean: leave [aggregator] and guard out, through which one client "
                "could move what counts of the others"
            )
        if self.hides:
            check_accountant()

    def _check_pairs(self) -> None:
        """Raise for a limit without noise, or noise without a limit."""
        for clip, limit, noise, std in (
            ("clip", self.clip, "noise", self.noise),
            ("update_clip", self.update_clip, "update_noise", self.update_noise),
        ):
            if (limit > 0) != (std > 0):
                raise InputError(
                    f"privacy.{clip} = {limit} and privacy.{noise} = {std} are not allowed: should both be above "
                    "0, or both 0"
                )
            if 0 < limit < LEAST_CLIP:
                raise InputError(f"privacy.{clip} = {limit} is not allowed: should be at least {LEAST_CLIP:g}, or 0")

    def _check_counts(self, kind: str, algorithm: Algorithm, model: Model) -> None:
        """Raise where noise on counts hides nothing that can be stated."""
        from fedsoft.core.metrics import squared_loss

        if not algorithm.counting or (model.loss is squared_loss and algorithm.counting > 1):
            raise InputError(
                f"privacy.counts = {self.counts} is not allowed for this {kind}: should be 0, since it is stated for "
                "clients that count points (FedSoft with weights = hard, or soft without squared loss)"
            )
        if model.local_statistics:
            raise InputError(
                f"privacy.counts = {self.counts} is not allowed with statistics = 'local': should be 0, or statistics "
                "'averaged', since statistics of all points of a client let one point change where others are counted"
            )

    def _check_shares(self, kind: str, *, stated: bool) -> None:
        """Raise where clients add the noise of centers and nothing is `stated`, or other noise stands beside it."""
        if not stated:
            raise InputError(
                f"privacy.clip = {self.clip} is not allowed for this {kind} with secure = true: should be 0, since it "
                "is stated where clients send one model each and nothing else (FedAvg, FedProx; FedSoft with K = all, "
                "IFCA and HypCluster, if they begin at drawn centers and keep them)"
            )
        if self.counts or self.update_noise:
            raise InputError(
                "privacy.clip with secure = true goes without privacy.counts and privacy.update_noise: leave them out"
            )

    @property
    def hides(self) -> bool:
        """Return whether there is noise, and so an epsilon."""
        return self.counts > 0 or self.clip > 0 or self.update_noise > 0

    def covers_scores(self, secure: bool) -> bool:
        """Return whether a client hides from the server what its scores would tell; `secure`: see `check`."""
        return self.counts > 0 or self.update_noise > 0 or (secure and self.clip > 0)

    def spent(self, released: Released, means: Means | None, clients: int, shares: Mechanism | None = None) -> Spent:
        """Return what can be stated after this many releases; `shares`: of centers, if clients hide them together."""
        found = Spent(self.delta)
        if self.counts:
            each = gaussian_epsilon(self.counts, self.delta)
            total = gaussian_epsilon(self.counts, self.delta, released.counts)
            found = replace(found, estimations=released.counts, counts_each=each, counts_epsilon=total)
        if self.update_noise:
            total = gaussian_epsilon(self.update_noise, self.delta, released.updates)
            found = replace(found, updates=released.updates, updates_epsilon=total)
        if self.counts and self.update_noise:
            found = replace(found, sent_epsilon=gaussian_epsilon(1.0, self.delta, self.precision(released)))
        if shares is not None:
            total = shares_epsilon(shares, self.delta, int(released.centers))
            found = replace(found, releases=released.centers, epsilon=total, honest=True)
        elif self.clip and means is not None:
            total = centers_epsilon(self.noise, self.delta, int(released.centers), means, clients)
            sampled = means.uniform and means.members < clients
            found = replace(found, releases=released.centers, epsilon=total, sampled=sampled)
        return found

    def precision(self, released: Released) -> float:
        """Return how many releases of noise 1 (in units of the sensitivity) a client's releases amount to."""
        counts = released.counts / self.counts**2 if self.counts else 0.0
        return counts + (released.updates / self.update_noise**2 if self.update_noise else 0.0)


def noise_for(epsilon: float, delta: float, times: int) -> float:
    """Return the noise, in units of the sensitivity, for which this many Gaussian mechanisms have this epsilon."""
    if not epsilon > 0 or not 0 < delta < 1 or times < 1:
        raise InputError(f"epsilon = {epsilon}, delta = {delta}, times = {times}: should be above 0, below 1, above 0")
    return gaussian_noise(epsilon, delta) * math.sqrt(times)


# --- what is published ------------------------------------------------------------------------------------------------


def withheld(privacy: Privacy | None, state: State, sizes: Tensor) -> dict[int, float]:
    """Return the centers that are not published, with their effective numbers of clients."""
    c, u = state.centers, state.mixture
    if privacy is None or not privacy.floor or not len(c):
        return {}
    if u is None or u.shape[1] != len(c):
        u = c.new_ones(len(sizes), len(c))
    return below(privacy.floor, use_of(c, u.to(sizes.device), sizes)["effective"])


def below(floor: float, effective: list[float]) -> dict[int, float]:
    """Return the centers with fewer effective clients than the floor."""
    return {s: count for s, count in enumerate(effective) if count < floor}


def why_withheld(s: int, effective: float, floor: float) -> str:
    return f"center {s} is not published: {effective:.1f} clients use it, privacy.floor asks for {floor:g}"


def statements(spent: Spent | None) -> list[str]:
    """Return a sentence for each statement."""
    if spent is None:
        return []
    found = []
    delta = f"delta = {spent.delta:g}"
    if spent.counts_epsilon is not None:
        each = "its only estimation" if spent.estimations == 1 else f"each of {spent.estimations:g} estimations"
        found.append(
            f"counts of points: epsilon = {spent.counts_each:.3g} in {each}, "
            f"{spent.counts_epsilon:.3g} in total ({delta}; any one point of a client, against the server, for the "
            "counts alone)"
        )
    if spent.updates_epsilon is not None:
        found.append(
            f"models of clients: epsilon = {spent.updates_epsilon:.3g} after {spent.updates:g} "
            f"model{'s' * (spent.updates != 1)} of a client ({delta}; all points of a client, against the server, "
            "for the models alone)"
        )
    if spent.sent_epsilon is not None:
        found.append(
            f"all that a client sends: epsilon = {spent.sent_epsilon:.3g} ({delta}; any one point, against the server)"
        )
    if spent.epsilon is not None:
        how = "clients drawn uniformly without replacement" if spent.sampled else "nothing gained from draws"
        whom = "the server and all others" if spent.honest else "those who see centers"
        how += ", if as many clients as a sum has at least are honest" * spent.honest
        found.append(
            f"centers: epsilon = {spent.epsilon:.3g} after {spent.releases:g} releases ({delta}; any one client, "
            f"against {whom}; {how})"
        )
    return found
