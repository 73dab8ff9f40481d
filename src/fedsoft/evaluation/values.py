"""What scoring finds, as plain values: read, compared and shown without a tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from fedsoft.clusters.evidence import Evidence
from fedsoft.evaluation.remarks import remarks_on
from fedsoft.evaluation.spread import Spread, Yardstick

Values = list[float | None]
"""A number for each client or center; None where it is not defined."""


@dataclass(frozen=True)
class MetricScores:
    """One metric beside that of the model.

    Arguments:
        train, held_out: personal models on the clients' own points; clients where it is not defined do not count.
        skipped_train, skipped_held_out: how many clients these are.
        yardsticks: how constant predictors fare.
        centers: of every center (rows) on the test set of every source (columns), where sources are known.
        on_all, on_own: of every center on the points of all clients, and of those whose largest part it is.
        by_client_train, by_client_held_out: the value of each client.
    """

    higher_is_better: bool
    train: Spread | None
    held_out: Spread | None
    skipped_train: int
    skipped_held_out: int
    yardsticks: list[Yardstick] = field(default_factory=list)
    centers: list[Values] | None = None
    on_all: Values | None = None
    on_own: Values | None = None
    by_client_train: Values = field(default_factory=list)
    by_client_held_out: Values = field(default_factory=list)


@dataclass(frozen=True)
class Effect:
    """One input of a model that is linear in its weights.

    Arguments:
        name: of the input, and of the output where there are several.
        weight: that the center gives it.
        effect: how much more than under the mean center one standard deviation of the input moves the output: the
            log-odds of a class, or the prediction.
    """

    name: str
    weight: float
    effect: float


@dataclass(frozen=True)
class ClassLean:
    """How much more often than all centers together one predicts a class: a difference of mean probabilities."""

    name: str
    more: float


@dataclass(frozen=True)
class ClusterProfile:
    """One center, compared with the mean of all.

    Arguments:
        share: of the clients, by their mixtures.
        clients: whose main center it is.
        members: the clients that it fits best, by name.
        apart: the share of points for which it predicts another class than all centers together, or the root mean
            squared difference from their mean prediction, in standard deviations of the targets.
        effects: of models that are linear in their weights: the largest first.
        classes: of classifiers: the largest difference first.
    """

    share: float
    clients: int
    members: list[str]
    apart: float | None
    effects: list[Effect] = field(default_factory=list)
    classes: list[ClassLean] = field(default_factory=list)

    def told_by(self, most: int = 3) -> str:
        """What tells it from the mean center, in a few words: inputs with their effects, or else classes."""
        if self.effects:
            return ", ".join(f"{one.name} {one.effect:+.2f}" for one in self.effects[:most])
        return ", ".join(f"{one.name} {100 * one.more:+.1f} %" for one in self.classes[:most])


@dataclass(frozen=True)
class ClusterProfiles:
    """All centers, and how far each pair is apart (as `ClusterProfile.apart`, of one from the other)."""

    profiles: list[ClusterProfile]
    pairs: list[list[float | None]]

    def without(self, hidden: Collection[int]) -> ClusterProfiles:
        """Return the same with nothing about these centers but how many clients they have."""
        profiles = [ClusterProfile(one.share, one.clients, [], None) if s in hidden else one
                    for s, one in enumerate(self.profiles)]  # fmt: skip
        pairs = [[None if s in hidden or j in hidden else value for j, value in enumerate(row)]
                 for s, row in enumerate(self.pairs)]  # fmt: skip
        return ClusterProfiles(profiles, pairs)


@dataclass(frozen=True)
class VarianceRow:
    """What differences between clients cost in loss per point, at the clients' own inputs.

    Arguments:
        name: of the parameter or tensor in which they differ.
        between: by the centers alone.
        within: around their centers.
        noise: the part of `within` that clients' own points do not tell.
    """

    name: str
    between: float
    within: float
    noise: float

    @property
    def total(self) -> float:
        return self.between + self.within

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the total: between sources, within them as far as points tell it, and noise. They add up to 1."""
        if self.total <= 0:
            return 0.0, 0.0, 0.0
        noise = min(self.noise, self.within)
        return self.between / self.total, (self.within - noise) / self.total, noise / self.total


@dataclass(frozen=True)
class PriorSummary:
    """What a learned prior says of the clients; see docs/prior.md.

    Arguments:
        evidence: how well it explains their points.
        unit: of the variances: `mse`, `log loss` or `loss`, per point.
        total: of all parameters together.
        variance: a row for each parameter, or for each tensor of a larger model, as if only that one differed. Where
            parameters vary together these do not add up to the total.
    """

    evidence: Evidence
    unit: str
    total: VarianceRow
    variance: list[VarianceRow]

    @property
    def sentences(self) -> list[str]:
        """What there is to say of it, without a full stop; nothing reads them."""
        between, within, noise = self.total.shares
        evidence = self.evidence
        less = f"{evidence.charged:.4f} less 1 for each of the {evidence.numbers} numbers of the prior"
        use = f"{less}: compare it with that of other S"
        if not evidence.tells_centers:
            use = f"of a prior with {evidence.numbers} numbers: compare other S by held-out points"
        return [
            f"clients differ by {self.total.total:.3g} in {self.unit} per point: {between:.0%} of it between sources, "
            f"{within:.0%} within them, {noise:.0%} in noise",
            f"log evidence {evidence.per_point:.4f} per point, {use}",
            *self._beside_one(),
        ]

    def _beside_one(self) -> list[str]:
        evidence = self.evidence
        if evidence.one is None:
            return []
        one = f"one center for everybody has {evidence.one / evidence.points:.4f}"
        if evidence.merged:
            return [f"{one}: several tell nobody apart, and clients predict under the one"]
        return [f"{one}: several tell clients apart"]


@dataclass(frozen=True)
class CenterUsage:
    """How clients use one center; needs no truth.

    Arguments:
        share: of all points, by the clients' mixtures.
        clients: how many have it as their largest part.
        on_all: its metric on the points of all clients.
        on_own: on those of the clients whose largest part it is; None where there are none.
    """

    share: float
    clients: int
    on_all: float
    on_own: float | None


@dataclass(frozen=True)
class Scores:
    """How good a run is. Entries that need a truth are None where it is unknown.

    Arguments:
        metric: what the errors are: `mse`, `accuracy` or `loss`.
        sources: the names of the sources.
        centers: the metric of every center (rows) on the test set of every source (columns).
        alignment: for each center the source that it stands for.
        best: for each source the center that serves it best.
        recovery: mean absolute error of u against the true mixture, after alignment.
        recovery_uniform: that of equal shares, which anybody could guess.
        shares: the true mean mixture of the clients whose largest share is source j, for each j.
        personal_train, personal_held_out: personal models on the clients' own points.
        oracle: the metric on each source of a model trained on that source's points alone, where it is known exactly.
        noise_floor: the error that no model can beat.
        served: what clients make of each center, on their held-out points, or all where none are held out.
        distance: mean over pairs of sources of |theta_s - theta_r|^2 of the oracle models: the scale of the errors.
        yardsticks: how constant predictors fare where the personal models are scored.
        metrics: what else the run asked for, by name.
        clusters: what tells the centers apart, where clients have mixtures of several and their points are here.
        prior: what a learned prior says of the clients, where the algorithm has one.
    """

    metric: str
    higher_is_better: bool
    sources: list[str]
    centers: list[list[float]] | None
    alignment: list[int] | None
    best: list[int] | None
    recovery: float | None
    recovery_uniform: float | None
    shares: list[list[float]] | None
    personal_train: Spread | None
    personal_held_out: Spread | None
    oracle: list[float] | None = None
    noise_floor: float | None = None
    distance: float | None = None
    served: list[CenterUsage] | None = None
    yardsticks: list[Yardstick] = field(default_factory=list)
    metrics: dict[str, MetricScores] = field(default_factory=dict)
    clusters: ClusterProfiles | None = None
    prior: PriorSummary | None = None

    @property
    def of_best(self) -> list[float] | None:
        """For each source the metric of the center that serves it best; None without centers."""
        if not self.centers or self.best is None:
            return None
        return [self.centers[s][j] for j, s in enumerate(self.best)]

    @property
    def clients(self) -> int:
        """How many clients have training points."""
        return 0 if self.personal_train is None else self.personal_train.clients

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Scores:
        """Read what `to_dict` gave; raises ValueError for a field that is missing or of another type."""
        return _adapter().validate_python(values)

    def __str__(self) -> str:
        """A few lines for a Python session; the command line has tables."""
        lines = []
        for j, source in enumerate(self.sources if self.centers and self.best else []):
            values = [center[j] for center in self.centers or []]
            known = [("oracle", self.oracle[j] if self.oracle else None), ("noise floor", self.noise_floor)]
            beside = "".join(f", {name} {value:.4g}" for name, value in known if value is not None)
            errors = " ".join(f"{'*' * (s == (self.best or [])[j])}{value:.4g}" for s, value in enumerate(values))
            lines.append(f"{self.metric} of the centers on {source}: {errors} (*: best){beside}")
        for s, use in enumerate(self.served or []):
            own = "" if use.on_own is None else f", {use.on_own:.4g} on those of its own"
            lines.append(f"center {s}: {use.share:.0%} of the points, the largest part of {use.clients} clients; "
                         f"{self.metric} {use.on_all:.4g} on all clients{own}")  # fmt: skip
        for what, spread in (("training", self.personal_train), ("held-out", self.personal_held_out)):
            if spread is not None:
                parts = f"mean {spread.mean:.4g}, median {spread.median:.4g}, worst tenth {spread.worst_decile:.4g}"
                lines.append(f"{self.metric} of personal models on {what} points: {parts} of {spread.clients} clients")
        for name, one in self.metrics.items():
            if (spread := one.held_out or one.train) is not None:
                what = "training" if one.held_out is None else "held-out"
                parts = f"mean {spread.mean:.4g}, worst tenth {spread.worst_decile:.4g}"
                lines.append(f"{name} of personal models on {what} points: {parts} of {spread.clients} clients")
        if self.recovery is not None:
            guess = "" if self.recovery_uniform is None else f", equal shares would give {self.recovery_uniform:.3f}"
            lines.append(f"mean |u - true share| = {self.recovery:.3f}{guess}")
        for yardstick in self.yardsticks:
            if yardstick.held_out is not None:
                lines.append(f"{self.metric} of the {yardstick.name} on held-out points: {yardstick.held_out.mean:.4g}")
        for s, one in enumerate(self.clusters.profiles if self.clusters else []):
            lines.append(f"what tells center {s} apart: {one.told_by()}" if one.told_by() else "")
        lines += self.prior.sentences if self.prior else []
        return "\n".join([*filter(None, lines), *(f"note: {remark.text}" for remark in remarks_on(self))])


@cache
def _adapter() -> TypeAdapter[Scores]:
    return TypeAdapter(Scores)
