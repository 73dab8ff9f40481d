"""`RunSpec`: everything that the result of a run depends on. TOML in and out, and a hash of its content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection
from functools import partial
from typing import Annotated, Any, Literal, Self

import pydantic
import tomli_w
from pydantic import Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from fedsoft import plugins
from fedsoft.core.class_weight_choice import ClassWeights
from fedsoft.data.partition_names import parse_partition
from fedsoft.errors import InputError, MissingSetting, SettingError, unknown
from fedsoft.plugins import PARTS
from fedsoft.safety.exclusions import Diverged
from fedsoft.safety.privacy import Privacy
from fedsoft.secure.protection import Secure
from fedsoft.settings import renamed, sentence, settings
from fedsoft.training.callbacks.early_stopping import EarlyStopping

SOLVER = "adam"  # the default
PATHS = ("path", "data_dir")  # settings of data sets that name files

TABLES = {
    "privacy": (Privacy, "a table such as [privacy] counts = 2.0"),
    "secure": (Secure, "true, false, or a table such as [secure] threshold = 0.8"),
    "early_stopping": (EarlyStopping, "a table such as [early_stopping] patience = 5"),
}
"""What is a table of settings and no plugin: its type, and what is said of anything else."""

Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Positive = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Number = Annotated[float, Field(strict=True)]


Source = Literal["user", "saved", "record"]
"""Where the values of a run come from.

A `saved` run has all its settings: parts that are code which is not allowed are taken as they are, and raise when they
are built. What only shows the `record` of a run takes all parts as they are, and imports none.
"""


@dataclasses.dataclass(frozen=True)
class Part:
    """A plugin by name, with its settings."""

    name: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML table."""
        return {"name": self.name, **self.settings}

    @staticmethod
    def read(key: str, raw: Any, allow: Collection[str] = (), *, source: Source = "user") -> Part:
        """Read a part from its name or its table, and fill in the defaults."""
        table = {"name": raw} if isinstance(raw, str) else raw
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            raise SettingError("", key, raw, "should be a name or a table with a name")
        name, given = table["name"], {k: v for k, v in table.items() if k != "name"}
        if key == "partition":
            name, short = parse_partition(name, allow)
            given = short | given
        for field in plugins.GIVEN_BY_RUN.get(PARTS[key], ()):
            if field in given:
                raise InputError(f"{key}.{field} is not a setting: set '{field}' of the run")
        if source == "record" or (source == "saved" and is_foreign(name, allow)):
            return Part(name, given)
        resolved = plugins.resolve(PARTS[key], name, given, allow)
        return Part(name, {k: v for k, v in resolved.items() if k not in plugins.GIVEN_BY_RUN.get(PARTS[key], ())})


def _source(info: ValidationInfo) -> Source:
    return info.context["source"] if info.context else "user"


def is_foreign(name: str, allow: Collection[str]) -> bool:
    """Whether this names code that may not be imported."""
    return plugins.is_code(name) and (name == plugins.OBJECT or not plugins.allows(allow, name))


@settings
class RunSpec:
    """One run. Defaults are filled in when it is read, so that it means the same in later versions.

    Arguments:
        algorithm, dataset, model, solver, partition: the parts of a run.
        aggregator: replaces the mean over clients.
        attack: what malicious clients do.
        rounds: communication rounds.
        work: stop before more gradient evaluations than this.
        bytes: stop before more bytes than this.
        seed: of all draws.
        data_seed: of the federation, where it stays the same over seeds of the run.
        dtype: of models.
        dropout: probability that a client does not answer.
        score_every: rounds between two scores of the centers in the log; the last round is always scored.
        metrics: what to score by, beside the model's own metric.
        class_weights: of points in the local loss, by their class: `balanced` over all clients, `local` by each
            client's own labels, or a weight for each class.
        source: clients keep only their points of this source: an oracle, which looks at the truth.
        guard: how many times the median norm a client's model may have; 0 for any.
        diverged: what happens when a client's training gives values that are not finite.
        privacy: what is hidden of points and clients.
        secure: whether replies are seen as sums only, and how.
        early_stopping: end it when personal models no longer get better on held-out points.
        parent: of a run that goes on with other clients than it began with: the run that it continues.
        about: a description; changes nothing.
        variant: `fast` for the short form of a preset, a label.
        label: names the run; changes nothing.
        allow: code outside of fedsoft that may be imported.
    """

    allow: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)  # first: parts are read with it
    about: str = ""
    variant: Literal["fast"] | None = None
    rounds: Count = 50
    work: Positive | None = None
    bytes: Positive | None = None
    seed: Count = 0
    data_seed: Count | None = None
    dtype: Literal["float32", "float64"] = "float32"
    dropout: Share = 0.0
    score_every: Positive = 1
    metrics: list[str] | None = None
    class_weights: ClassWeights | None = None
    source: Count | None = None
    guard: Number = 0.0
    diverged: Diverged = "stop"
    privacy: Privacy | None = None
    secure: Secure | None = None
    early_stopping: EarlyStopping | None = None
    parent: str | None = None
    algorithm: Part
    dataset: Part
    partition: Part | None = None
    model: Part
    solver: Part = dataclasses.field(default_factory=partial(Part.read, "solver", SOLVER))
    aggregator: Part | None = None
    attack: Part | None = None
    label: str = "run"

    @field_validator(*PARTS, mode="before")
    @classmethod
    def _read_part(cls, raw: Any, info: ValidationInfo) -> Part | None:
        if raw is None or isinstance(raw, Part):
            return raw
        return Part.read(str(info.field_name), raw, info.data.get("allow", ()), source=_source(info))

    @field_validator(*TABLES, mode="before")
    @classmethod
    def _read_table(cls, raw: Any, info: ValidationInfo) -> Any:
        key = str(info.field_name)
        kind, wanted = TABLES[key]
        if raw is None or isinstance(raw, kind):
            return raw
        if kind is Secure and isinstance(raw, bool):
            return Secure() if raw else None
        if not isinstance(raw, dict):
            raise SettingError("", key, raw, f"should be {wanted}")
        with renamed({kind.__name__: key}):
            return kind(**raw)

    @field_validator("metrics")
    @classmethod
    def _check_metrics(cls, value: list[str] | None) -> list[str] | None:
        if not value:
            return None
        from fedsoft.core.client_metrics import check_names

        check_names(value)
        return value

    @field_validator("guard")
    @classmethod
    def _check_guard(cls, value: float) -> float:
        if value and value < 1:
            raise SettingError("", "guard", value, "should be at least 1, or 0 for none")
        return value

    @model_validator(mode="after")
    def _check_partition(self, info: ValidationInfo) -> Self:
        name = self.dataset.name
        if self.partition is None or _source(info) == "record" or is_foreign(name, self.allow):
            return self
        if "partition" not in plugins.parameters(plugins.find("datasets", name, self.allow)):
            raise InputError(f"dataset '{name}' takes no partition: leave [partition] out")
        return self

    @staticmethod
    def from_dict(
        raw: dict[str, Any], label: str = "run", *, allow: Collection[str] = (), source: Source = "user"
    ) -> RunSpec:
        """Check nested plain values and fill in the defaults; see `Source`.

        Code that they name is imported only if `allow` names it, too.
        """
        if (named := next((key for key in raw if key not in KEYS), None)) is not None:
            raise unknown("key of a run", named, KEYS)
        try:
            return _adapter.validate_python(
                raw | {"label": label, "allow": frozenset(allow)}, context={"source": source}
            )
        except pydantic.ValidationError as error:
            problem = sentence(error, "")
            if isinstance(problem, MissingSetting) and not problem.owner:  # a part: everything else has a default
                some = plugins.names(PARTS[problem.field])[0]
                problem.reason = f'give it a name, for instance {problem.field} = "{some}"'
            raise problem from None

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, as in the TOML file; without what is None or empty."""
        found: dict[str, Any] = {}
        for key in KEYS:
            value = getattr(self, key)
            value = value.to_dict() if isinstance(value, Part) else value
            if isinstance(value, Privacy | EarlyStopping | Secure):
                value = {name: own for name, own in dataclasses.asdict(value).items() if own is not None}
            found[key] = value
        return {key: value for key, value in found.items() if value is not None and value != ""}

    def to_toml(self) -> str:
        """Return the text of a TOML file."""
        return tomli_w.dumps(self.to_dict())

    @property
    def hash(self) -> str:
        """Twelve digits that change with everything that the result depends on."""
        content = {key: value for key, value in self.to_dict().items() if key != "about"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def id(self) -> str:
        """A readable name for the run: label, seed and hash."""
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', self.label)}-s{self.seed}-{self.hash}"

    @property
    def title(self) -> str:
        """The run in a few words."""
        variant = f", {self.variant} variant" if self.variant else ""
        return f"{self.algorithm.name} on {self.data_title}, seed {self.seed}{variant}"

    @property
    def data_title(self) -> str:
        """The data, and what is done to it, in a few words."""
        text = "data made in Python" if self.dataset.name == plugins.OBJECT else self.dataset.name
        if self.partition is not None:
            values = [f"{v:g}" if isinstance(v, float) else str(v) for v in self.partition.settings.values()]
            short = f"{self.partition.name}({', '.join(values)})" if values else self.partition.name
            text += f", {':'.join(values) if self.partition.name == 'ratio' else short} partition"
        text += f", source {self.source} alone" if self.source is not None else ""
        text += f", averaged by {self.aggregator.name}" if self.aggregator is not None else ""
        text += f", {self.attack.settings['share']:.0%} {self.attack.name}" if self.attack is not None else ""
        return text + (f", data of seed {self.data_seed}" if self.data_seed is not None else "")

    def with_seed(self, seed: int) -> RunSpec:
        """Return the same run with another seed."""
        with renamed({"RunSpec": ""}):
            return dataclasses.replace(self, seed=seed)


KEYS = [key for key in RunSpec.__dataclass_fields__ if key not in ("label", "allow")]
_adapter = TypeAdapter(RunSpec)
