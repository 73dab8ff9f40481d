"""Noise that hides what single points or clients contribute, and what can be stated about it.

Two mechanisms, each with a statement of its own. They protect different things from different people, so their epsilons
do not add up; see docs/privacy.md.

Counts. A client adds Gaussian noise to its counts n_ks before they leave it. One of its points moved to another center
changes two counts by 1 each, so the sensitivity is sqrt(2). Hidden from the server: any one point, as far as counts go.

Centers. The server clips what each client adds to a center to the norm C, divides by the number of clients that the
center is a mean of (fixed beforehand: K, or all), and adds Gaussian noise. Another client in place of one changes each
center by 2 C / K at most, and all centers together by sqrt(S) times that. Hidden from all who see centers: any one
client.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsoft.centers.collapse import use_of
from fedsoft.checks import settings
from fedsoft.contract import Algorithm, Answer, Means, Rows
from fedsoft.errors import InputError

ORDERS = [*range(2, 65), 80, 96, 128, 192, 256]  # of Renyi divergences, for draws without replacement


@settings
class Privacy:
    """What is hidden, and how well.

    Arguments:
        counts: standard deviation of the noise on the counts n_ks, in units of their sensitivity sqrt(2); 0 for none.
        clip: C, the largest norm of what a client adds to a center; 0 for none.
        noise: standard deviation of the noise on centers, in units of their sensitivity; goes with `clip`.
        delta: of all statements (epsilon, delta). Should be well below one over the number of points or clients.
        floor: a center of fewer effective clients is not published; 0 for none.
    """

    counts: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(ge=0)] = 0.0
    noise: Annotated[float, Field(ge=0)] = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    floor: Annotated[float, Field(ge=0)] = 0.0

    def check(self, algorithm: Algorithm, clients: int, *, rule: object | None, guard: float, squared: bool) -> None:
        """Complain about what cannot be stated for this algorithm."""
        kind = type(algorithm).__name__
        if (self.clip > 0) != (self.noise > 0):
            raise InputError(
                f"privacy.clip = {self.clip} and privacy.noise = {self.noise} are not allowed: should both be above 0, "
                "or both 0"
            )
        counting = getattr(algorithm, "counting", None)
        if self.counts and (counting is None or (squared and counting > 1)):
            raise InputError(
                f"privacy.counts = {self.counts} is not allowed for this {kind}: should be 0, since it is stated for "
                "clients that count points (FedSoft with weights = hard, or soft without squared loss)"
            )
        if self.clip and self.means(algorithm, clients) is None:
            raise InputError(
                f"privacy.clip = {self.clip} is not allowed for this {kind}: should be 0, since it is stated for "
                "centers that are means over a fixed number of clients (FedSoft with a number K, replacement = false, "
                "aggregate = mean, first = xavier and sigma > 0; FedAvg; FedProx)"
            )
        if self.clip and (rule is not None or guard):
            raise InputError(
                "privacy.clip goes with the plain mean: leave [robust] and guard out, through which one client could "
                "move what counts of the others"
            )
        if self.counts or self.clip:
            _accountant()

    @staticmethod
    def means(algorithm: Algorithm, clients: int) -> Means | None:
        """How many clients a center of this algorithm is a mean of, where that is fixed."""
        found = getattr(algorithm, "means", None)
        return None if found is None else found(clients)

    def spent(self, estimations: int, releases: int, means: Means | None, clients: int) -> dict[str, Any]:
        """What can be stated after so many estimations of counts, and so many new centers."""
        told: dict[str, Any] = {"delta": self.delta}
        if self.counts:
            each = gaussian_epsilon(self.counts, self.delta)
            total = gaussian_epsilon(self.counts, self.delta, estimations)
            told |= {"estimations": estimations, "counts_each": each, "counts_epsilon": total}
        if self.clip and means is not None:
            told |= {
                "releases": releases, "sampled": means.uniform and means.members < clients,
                "epsilon": centers_epsilon(self.noise, self.delta, releases, means, clients),
            }  # fmt: skip
        return told


# --- accounting -------------------------------------------------------------------------------------------------------


def _accountant() -> Any:
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        if error.name != "dp_accounting":
            raise
        raise InputError('[privacy] needs a package that is not installed: pip install "fedsoft[privacy]"') from None
    return dp_accounting


@functools.cache
def gaussian_epsilon(noise: float, delta: float, times: int = 1) -> float:
    """Epsilon of so many Gaussian mechanisms, `noise` being each one's deviation in units of its sensitivity.

    Together they are one of noise / sqrt(times), exactly, even where each depends on what the others gave.
    """
    return float(_accountant().get_epsilon_gaussian(noise / math.sqrt(times), delta)) if times else 0.0


@functools.cache
def centers_epsilon(noise: float, delta: float, times: int, means: Means, clients: int) -> float:
    """Epsilon of so many new centers.

    Where clients are drawn uniformly without replacement, the accountant knows it (Renyi, another client in place of
    one). FedSoft draws by v_sk, which depends on the clients' data: nothing is gained from the draw, so that the
    statement holds for a client that is drawn in every round.
    """
    plain = gaussian_epsilon(noise, delta, times)
    if not (times and means.uniform and means.members < clients):
        return plain
    dp = _accountant()
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    drawn = dp.SampledWithoutReplacementDpEvent(clients, means.members, dp.GaussianDpEvent(noise))
    accountant.compose(drawn, times)
    return min(plain, float(accountant.get_epsilon(delta)))


def noise_for(epsilon: float, delta: float, times: int) -> float:
    """The noise with which so many Gaussian mechanisms have this epsilon together, in units of their sensitivity."""
    if not epsilon > 0 or not 0 < delta < 1 or times < 1:
        raise InputError(f"epsilon = {epsilon}, delta = {delta}, times = {times}: should be above 0, below 1, above 0")
    return float(_accountant().get_sigma_gaussian(epsilon, delta)) * math.sqrt(times)


# --- counts -----------------------------------------------------------------------------------------------------------


def hidden_shares(shares: Tensor, n: Tensor, deviation: float, draws: list[np.random.Generator]) -> Tensor:
    """`shares[m, S]` of `n[m]` points with noise on the counts, none below 0, and rows that sum to 1 again."""
    noise = np.stack([draw.standard_normal(shares.shape[1]) for draw in draws])
    counts = shares.double() * n[:, None].double() + deviation * torch.from_numpy(noise).to(shares.device)
    counts = counts.clamp(min=0)
    total = counts.sum(1, keepdim=True)
    return torch.where(total > 0, counts / total, 1 / shares.shape[1]).to(shares.dtype)


# --- centers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HiddenRows:
    """Models of which nothing is seen but noisy means. All of them are brought to one place for it.

    Arguments:
        rows: the models.
        clip, noise: see `Privacy`.
        members: how many clients a mean is over. Those of them that did not answer count as if nothing had changed.
        draw: the generator of the noise of center s; called once for each, when a mean is taken.
    """

    rows: Rows
    clip: float
    noise: float
    members: int
    draw: Callable[[int], np.random.Generator]

    def gather(self) -> Tensor:
        """Never."""
        raise InputError("privacy.clip is not allowed here: this algorithm looks at single models")

    def weighted(self, weights: Tensor) -> Tensor:
        """Never: weights that depend on other clients have no bounded sensitivity."""
        raise InputError("privacy.clip is not allowed here: this algorithm takes sums that are no plain means")

    def average(self, weights: Tensor, old: Tensor) -> Tensor:
        """Centers `old[S, P]` moved by the mean of clipped updates of those with a weight, and by noise."""
        w, c = self.rows.gather().double(), old.double()
        moved = c.clone()
        for s, drawn in enumerate(weights > 0):
            update = w[drawn.to(w.device)] - c[s]
            length = torch.linalg.vector_norm(update, dim=1, keepdim=True)
            moved[s] += (update * (self.clip / length.clamp(min=self.clip))).sum(0) / self.members
            noise = torch.from_numpy(self.draw(s).standard_normal(c.shape[1])).to(c.device)
            moved[s] += self.deviation(len(c)) * noise
        return moved.to(old.dtype)

    def deviation(self, centers: int) -> float:
        """Of the noise on every coordinate of so many centers."""
        return self.noise * 2 * self.clip * math.sqrt(centers) / self.members


class _Nobody:
    """No models: centers get their noise even when nobody answered."""

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self) -> Tensor:
        return torch.empty(0, self.size)

    def weighted(self, weights: Tensor) -> Tensor:
        return weights.new_zeros((len(weights), self.size), dtype=torch.float64)


@dataclass(frozen=True)
class HiddenAnswer(Answer):
    """An answer of which models are seen as noisy means only, even those of nobody."""

    models: HiddenRows

    def __getitem__(self, name: str) -> Rows:
        return self.models if name == "w" else super().__getitem__(name)


def hidden(answer: Answer, hide: Callable[[Rows], HiddenRows], size: int) -> Answer:
    """The same answer, with models (of so many parameters) of which only noisy means can be had."""
    rows = answer.values["w"] if "w" in answer and len(answer.ids) else _Nobody(size)
    models = hide(rows)
    return HiddenAnswer(answer.ids, {**answer.values, **({"w": models} if "w" in answer else {})}, models)


# --- what is published ------------------------------------------------------------------------------------------------


def withheld(privacy: Privacy | None, state: Mapping[str, Tensor], sizes: Tensor) -> dict[int, float]:
    """The centers that are not published, with their effective numbers of clients."""
    if privacy is None or not privacy.floor or not len(state["centers"]):
        return {}
    u = state.get("u")
    if u is None or u.shape[1] != len(state["centers"]):
        u = torch.ones(len(sizes), len(state["centers"]))
    return below(privacy.floor, use_of(state["centers"], u.to(sizes.device), sizes)["effective"])


def below(floor: float, effective: list[float]) -> dict[int, float]:
    """Which centers have fewer effective clients than that."""
    return {s: count for s, count in enumerate(effective) if count < floor}


def why_withheld(s: int, effective: float, floor: float) -> str:
    """In a sentence."""
    return f"center {s} is not published: {effective:.1f} clients use it, privacy.floor asks for {floor:g}"


def statements(told: Mapping[str, Any]) -> list[str]:
    """What a round's record says of privacy, a sentence each."""
    if not told:
        return []
    found = []
    delta = f"delta = {told['delta']:g}"
    if "counts_epsilon" in told:
        found.append(
            f"counts of points: epsilon = {told['counts_each']:.3g} in each of {told['estimations']} estimations, "
            f"{told['counts_epsilon']:.3g} in total ({delta}; any one point of a client, against the server, for the "
            "counts alone)"
        )
    if "epsilon" in told:
        how = "clients drawn uniformly without replacement" if told["sampled"] else "nothing gained from draws"
        found.append(
            f"centers: epsilon = {told['epsilon']:.3g} after {told['releases']} rounds ({delta}; any one client, "
            f"against those who see centers; {how})"
        )
    return found
