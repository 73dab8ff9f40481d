"""What the owner of a node lets a server do with its data: the table [policy] of a node's file.

The defaults are meant for data worth protecting. A node with synthetic data (`shard`) has wider ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from fedsoft import plugins
from fedsoft.core.client_metrics import NAMED, check_names
from fedsoft.core.schedules import Schedule
from fedsoft.errors import InputError, unknown
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.machine.resources import memory_size
from fedsoft.safety.accountant import check_accountant
from fedsoft.safety.privacy import Released
from fedsoft.settings import settings

BOUNDS = {"S": (1, 32), "epochs": (1, 200), "batch": (1, 100_000), "class_weights": (0.1, 10)}  # default
SENDS_SUMS = ("fedgmm", "fedlevels", "fedprior", "fedrc", "fedroute", "flux")  # over points: small clients show theirs


@settings
class NoiseFloor:
    """The noise that must be added before anything leaves this node; 0 for none.

    Arguments:
        counts: least `privacy.counts`: everything but models then leaves with noise, or not at all.
        update_noise: least `privacy.update_noise`: everything but mixtures then leaves with noise, or not at all.
        epsilon: the largest epsilon of any point, over all runs of this node; 0 for no limit. With it everything leaves
            with noise, or not at all.
        delta: of that epsilon.
    """

    counts: Annotated[float, Field(ge=0)] = 0.0
    update_noise: Annotated[float, Field(ge=0)] = 0.0
    epsilon: Annotated[float, Field(ge=0)] = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5


@settings
class Policy:
    """What may be done with the data of a node.

    Arguments:
        algorithms: that may be run; default: those that come with fedsoft and send no sums over points.
        solvers: that may be used; default: those that come with fedsoft.
        bounds: least and largest value of settings of algorithm and solver, by name, beside those of `S` (1 to 32),
            `epochs` (1 to 200), `batch` (1 to 100,000) and `class_weights` (0.1 to 10).
        points: least number of points that a client must have, that a sum over points must be of, and that a score
            must be a mean of.
        requests_per_round, requests_per_run: how many requests are answered, repetitions included. The number of a
            round is the server's word, so the second is the one that holds.
        runs: how many runs this node keeps memory of; remove folders of old ones in `memory` to make room.
        secure: whether replies leave this node as sums with other nodes only (`secure = true` in the run).
        nodes: of how many nodes such a sum must be, this one among them: one more than may work with the server.
        scores: whether clients send the mean error of their personal model; default: unless `secure` is true, since
            that of models that a server makes up shows a client's mixture.
        metrics: which others they send beside it where a run asks; default: those that are means over points.
        privacy: the noise that is mandatory.
        seconds: that one request may take; then its job is ended.
        ram: memory that jobs may take, beside what the worker needs itself; then the job is ended.
        disk: that `memory` may take; a request that needs more is refused.
    """

    algorithms: list[str] | None = None
    solvers: list[str] | None = None
    bounds: dict[str, tuple[float, float]] = Field(default_factory=dict)
    points: Annotated[int, Field(ge=1)] = 10
    requests_per_round: Annotated[int, Field(ge=1)] = 12
    requests_per_run: Annotated[int, Field(ge=1)] = 2_000
    runs: Annotated[int, Field(ge=1)] = 20
    secure: bool = False
    nodes: Annotated[int, Field(ge=2)] = 3
    scores: bool | None = None
    metrics: list[str] = Field(default_factory=lambda: [one.name for one in NAMED.values() if one.is_mean])
    privacy: dict[str, float] = Field(default_factory=dict)
    seconds: Annotated[float, Field(gt=0)] = 600.0
    ram: str = "4G"
    disk: str = "4G"

    @staticmethod
    def of(table: Mapping[str, Any], *, synthetic: bool, own_code: bool = False) -> Policy:
        """Check the table of a node's file; `synthetic`: its data is nobody's; `own_code`: it allows other code."""
        wide = {
            "algorithms": plugins.names("algorithms"), "points": 1, "requests_per_round": 100, "metrics": [*NAMED],
            "nodes": 2,
        }  # fmt: skip
        found = Policy(**(wide if synthetic else {}) | dict(table))
        check_names(found.metrics)
        for name, (least, most) in found.bounds.items():
            if not own_code and name not in (known := _settings()):
                raise unknown("setting in policy.bounds", name, known)
            if not least <= most:
                raise InputError(f"policy.bounds: '{name}' = [{least}, {most}] is not allowed: should be [least, most]")
        for key in ("ram", "disk"):
            memory_size(getattr(found, key))
        if NoiseFloor(**found.privacy).epsilon:
            check_accountant()
        return found

    @property
    def noise(self) -> NoiseFloor:
        return NoiseFloor(**self.privacy)

    @property
    def requires_noise(self) -> bool:
        return bool(self.noise.counts or self.noise.update_noise or self.noise.epsilon)

    @property
    def sends_scores(self) -> bool:
        """Scores have no noise: none are sent where noise is mandatory."""
        wanted = not self.secure if self.scores is None else self.scores
        return wanted and not self.requires_noise

    def check_names(self, spec: Mapping[str, Any], allow: list[str]) -> None:
        """Refuse an algorithm or a solver that the owner does not allow. Nothing is imported for that."""
        algorithms = self.algorithms
        if algorithms is None:
            algorithms = [*(name for name in plugins.names("algorithms") if name not in SENDS_SUMS), *allow]
        solvers = [*plugins.names("solvers"), *allow] if self.solvers is None else self.solvers
        for part, known in (("algorithm", algorithms), ("solver", solvers)):
            if (name := spec[part]["name"]) not in known:
                where = "algorithms" if part == "algorithm" else "solvers"
                detail = f"the run's {part} '{name}' is not in policy.{where}, which allows {', '.join(known)}"
                raise Refused(Refusal.NOT_ALLOWED, detail)

    def check(self, spec: Mapping[str, Any]) -> None:
        """Refuse settings that the owner does not allow, in a run with all its settings."""
        for part in ("algorithm", "solver"):
            for where, key, value in _leaves(part, spec[part]):
                self._check_bound(where, key, value)
        self._check_class_weights(spec.get("class_weights"))
        self._check_noise(spec.get("privacy") or {})

    def bound(self, name: str) -> tuple[float, float]:
        return (BOUNDS | self.bounds)[name]

    def _check_bound(self, where: str, key: str, value: Any) -> None:
        if key not in BOUNDS | self.bounds or value is None:
            return
        plain = isinstance(value, str | bool)
        if plain and where.count(".") < 2:  # K = "all"; in an optimizer's options, true could be taken for 1
            return
        least, most = self.bound(key)
        if plain or not isinstance(value, int | float) or not least <= value <= most:
            detail = f"the run's {where} = {value!r} is outside of policy.bounds: {least:g} to {most:g}"
            raise Refused(Refusal.NOT_ALLOWED, detail)

    def _check_class_weights(self, weights: Any) -> None:
        """Refuse weights with which a client would train on its few points of one class, or tell how many it has."""
        if weights == "balanced":
            raise Refused(
                Refusal.NOT_ALLOWED, "the run's class_weights = 'balanced' needs label counts, which stay here"
            )
        for weight in weights if isinstance(weights, list) else ():
            self._check_bound("class_weights", "class_weights", weight)

    def _check_noise(self, privacy: Mapping[str, Any]) -> None:
        for key in ("counts", "update_noise"):
            found, least = privacy.get(key, 0.0), getattr(self.noise, key)
            if 0 < found < least:
                detail = f"the run's privacy.{key} = {found!r} is below policy.privacy.{key} = {least:g}"
                raise Refused(Refusal.PRIVACY, detail)

    def check_reply(self, names: Iterable[str], released: Released) -> None:
        """Refuse to send what must have noise and has none, whatever the algorithm calls it."""
        bare = set(names) - ({"u"} if released.counts else set()) - ({"w"} if released.updates else set())
        noise = self.noise
        if not noise.epsilon:  # one kind of noise alone leaves the other kind of reply as it is
            if not noise.update_noise:
                bare = bare - {"w"} if noise.counts else set()
            elif not noise.counts:
                bare -= {"u"}
        if bare:
            raise Refused(Refusal.PRIVACY, f"{sorted(bare)} would leave without the noise of policy.privacy")


def _leaves(where: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield all settings of a table and of tables within it: where they are, their names and values."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{where}.{key}", value)
        else:
            yield f"{where}.{key}", key, value


def _settings() -> list[str]:
    """Return the settings of all algorithms and solvers that come with fedsoft."""
    made = [plugins.find(kind, name) for kind in ("algorithms", "solvers") for name in plugins.names(kind)]
    return sorted({key for one in (*made, Schedule) for key in plugins.parameters(one)} | set(BOUNDS))
