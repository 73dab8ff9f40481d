"""A run as text: what to run, on what, with which settings. TOML in and out, and a hash of its content."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from fedsoft import plugins
from fedsoft.checks import renamed, toml
from fedsoft.errors import InputError, unknown
from fedsoft.plugins import PARTS

TOP = ("about", "rounds", "work", "bytes", "seed", "dtype", "dropout", "score_every", "source", "data_seed", "variant",
       "guard", "diverged", "privacy", *PARTS)  # fmt: skip
DTYPES = ("float32", "float64")
DIVERGED = ("stop", "drop")
SOLVER = "adam"  # unless told
VARIANTS = ("fast",)  # a preset or file may have a table [fast] of changes that make a short run of a long one
PATHS = ("path", "data_dir")  # settings of data sets that name files


CARRIED = ("S", "K")  # settings of the preset's algorithm that others take over

# Settings that came later, with what was done before: left out of the hash, so that of older runs stays.
LATER = {"algorithm": {"reseed": False}, "dataset": {"standardize": False}}


@dataclass(frozen=True)
class Part:
    """A plugin by name, with settings."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As a TOML table."""
        return {"name": self.name, **self.settings}


@dataclass(frozen=True)
class RunSpec:
    """One run. All settings are explicit: defaults are filled in when it is read, so that it means the same later."""

    algorithm: Part
    dataset: Part
    model: Part
    local: Part
    partition: Part | None = None
    robust: Part | None = None  # a rule in place of the mean
    attack: Part | None = None  # what some clients do, who lie
    rounds: int = 50
    work: int | None = None  # stop before more gradient evaluations than this
    bytes: int | None = None  # stop before more bytes than this
    seed: int = 0
    dtype: str = "float32"
    dropout: float = 0.0
    score_every: int = 1  # rounds between two scorings of the centers, for the log; the last is always scored
    source: int | None = None  # clients keep only their points of this source: an oracle, it looks at the truth
    data_seed: int | None = None  # of the federation, where it stays the same over seeds of the run
    guard: float = 0.0  # how many times the median norm a client's model may have; 0 for any
    diverged: str = "stop"  # what becomes of a run when a client's training gives values that are not finite
    privacy: dict[str, Any] | None = None  # what is hidden of points and clients, see `fedsoft.trust.privacy`
    about: str = ""
    variant: str | None = None  # "fast" for the short form of a preset: a label, so that nobody mistakes it
    label: str = "run"

    @staticmethod
    def from_dict(raw: dict[str, Any], label: str = "run") -> RunSpec:
        """Check a nested dictionary and fill in the defaults."""
        for key in raw:
            if key not in TOP:
                raise unknown("key of a run", key, TOP)
        parts = {key: _part(key, raw[key]) for key in PARTS if key in raw}
        for key in ("algorithm", "dataset", "model"):
            if key not in parts:
                raise InputError(f"the run has no [{key}]: give it a name, for instance {key} = "
                                 f'"{plugins.names(PARTS[key])[0]}"')  # fmt: skip
        parts.setdefault("local", _part("local", SOLVER))
        dataset = plugins.find("datasets", parts["dataset"].name)
        if "partition" in parts and "partition" not in plugins.parameters(dataset):
            raise InputError(f"dataset '{parts['dataset'].name}' takes no partition: leave [partition] out")
        return RunSpec(
            **parts,
            rounds=_whole("rounds", raw.get("rounds", 50), 0),
            work=_whole("work", raw["work"], 1) if "work" in raw else None,
            bytes=_whole("bytes", raw["bytes"], 1) if "bytes" in raw else None,
            seed=_whole("seed", raw.get("seed", 0), 0),
            dtype=_one_of("dtype", raw.get("dtype", "float32"), DTYPES),
            dropout=_share("dropout", raw.get("dropout", 0.0)),
            score_every=_whole("score_every", raw.get("score_every", 1), 1),
            source=_whole("source", raw["source"], 0) if "source" in raw else None,
            data_seed=_whole("data_seed", raw["data_seed"], 0) if "data_seed" in raw else None,
            guard=_guard(raw.get("guard", 0.0)),
            diverged=_one_of("diverged", raw.get("diverged", "stop"), DIVERGED),
            privacy=_privacy(raw["privacy"]) if "privacy" in raw else None,
            about=str(raw.get("about", "")),
            variant=_one_of("variant", raw["variant"], VARIANTS) if "variant" in raw else None,
            label=label,
        )

    def to_dict(self) -> dict[str, Any]:
        """As nested plain values, the form of the TOML file."""
        top = {key: value for key, value in (("about", self.about), ("variant", self.variant)) if value}
        top |= {"rounds": self.rounds, "seed": self.seed, "dtype": self.dtype, "dropout": self.dropout}
        # What came later is left out at its default, so that the hash of older runs stays.
        top |= {"score_every": self.score_every} if self.score_every > 1 else {}
        top |= {"guard": self.guard} if self.guard else {}
        top |= {"diverged": self.diverged} if self.diverged != "stop" else {}
        top |= {key: value for key, value in self._optional() if value is not None}
        top |= {"privacy": self.privacy} if self.privacy is not None else {}
        parts = {key: getattr(self, key) for key in PARTS}
        return top | {key: part.to_dict() for key, part in parts.items() if part is not None}

    def _optional(self) -> list[tuple[str, int | None]]:
        return [("work", self.work), ("bytes", self.bytes), ("source", self.source), ("data_seed", self.data_seed)]

    def to_toml(self) -> str:
        """As the text of a TOML file."""
        return tomli_w.dumps(self.to_dict())

    @property
    def hash(self) -> str:
        """Twelve digits that change when anything changes that the result depends on."""
        content = {key: value for key, value in self.to_dict().items() if key != "about"}
        for part, later in LATER.items():
            content[part] = {k: v for k, v in content[part].items() if (k, v) not in later.items()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def id(self) -> str:
        """A readable name for the run: label, seed and hash."""
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', self.label)}-s{self.seed}-{self.hash}"

    @property
    def title(self) -> str:
        """The run in a few words."""
        text = f"{self.algorithm.name} on {self.dataset.name}"
        if self.partition is not None:
            values = [f"{v:g}" if isinstance(v, float) else str(v) for v in self.partition.settings.values()]
            short = f"{self.partition.name}({', '.join(values)})" if values else self.partition.name
            text += f", {':'.join(values) if self.partition.name == 'ratio' else short} partition"
        text += f", source {self.source} alone" if self.source is not None else ""
        text += f", averaged by {self.robust.name}" if self.robust is not None else ""
        text += f", {self.attack.settings['share']:.0%} {self.attack.name}" if self.attack is not None else ""
        text += f", data of seed {self.data_seed}" if self.data_seed is not None else ""
        return f"{text}, seed {self.seed}{f', {self.variant} variant' if self.variant else ''}"

    def with_seed(self, seed: int) -> RunSpec:
        """The same run with another seed."""
        return replace(self, seed=_whole("seed", seed, 0))


def _part(key: str, raw: Any) -> Part:
    """A plugin from its short form (a name) or a table."""
    if isinstance(raw, str):
        raw = {"name": raw}
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise InputError(f"{key} = {raw!r} is not allowed: should be a name or a table with a name")
    name, settings = raw["name"], {k: v for k, v in raw.items() if k != "name"}
    if key == "partition":
        name, short = plugins.parse_partition(name)
        settings = short | settings
    if key == "dataset":
        for reserved in ("seed", "partition"):
            if reserved in settings:
                raise InputError(f"dataset.{reserved} is not a setting: set '{reserved}' of the run")
    resolved = plugins.resolve(PARTS[key], name, settings)
    if key == "dataset":
        resolved.pop("seed", None)
        resolved.pop("partition", None)
    return Part(name, resolved)


def _whole(key: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or value >= 2**63:
        raise InputError(f"{key} = {value!r} is not allowed: should be a whole number of at least {least}")
    return value


def _share(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{key} = {value!r} is not allowed: should be from 0 to 1")
    return float(value)


def _guard(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value == 0 or 1 <= value < float("inf")):
        raise InputError(f"guard = {value!r} is not allowed: should be a number of at least 1, or 0 for none")
    return float(value)


def _privacy(raw: Any) -> dict[str, Any]:
    from fedsoft.trust.privacy import Privacy

    if not isinstance(raw, dict):
        raise InputError(f"privacy = {raw!r} is not allowed: should be a table such as [privacy] counts = 2.0")
    with renamed({"Privacy": "privacy"}):
        return asdict(Privacy(**raw))


def _one_of(key: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InputError(f"{key} = {value!r} is not allowed: should be one of {', '.join(allowed)}")
    return value


# --- presets and files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preset:
    """What a preset is about, and what its fast variant is (None where there is none)."""

    about: str
    fast: str | None


def presets() -> dict[str, Preset]:
    """The presets that come with the package, by name."""
    folder = resources.files("fedsoft") / "presets"
    found = sorted((p.name.removesuffix(".toml"), p) for p in folder.iterdir() if p.name.endswith(".toml"))
    tables = {name: toml(path.read_text("utf-8")) for name, path in found}
    return {
        name: Preset(raw.get("about", ""), raw["fast"].get("about", "") if "fast" in raw else None)
        for name, raw in tables.items()
    }


def read(source: str, changes: list[str] | None = None, *, fast: bool = False) -> RunSpec:
    """The run that a preset or a TOML file describes, in its fast variant if asked, with `key=value` changes made."""
    raw, label = _raw(source)
    table = raw.pop("fast", None)
    if fast:
        if table is None:
            some = ", ".join(name for name, preset in presets().items() if preset.fast is not None)
            raise InputError(f"--fast: '{source}' has no table [fast], so no fast variant (presets with one: {some})")
        raw, label = _varied(raw, table), f"{label}-fast"
    raw.setdefault("local", SOLVER)  # so that its settings can be changed
    # Another name drops the settings of the old one: names come first, whatever the order they were given in.
    before = _name_of(raw.get("algorithm"))
    for change in sorted(changes or [], key=lambda change: not _names_a_part(change)):
        _set(raw, change)
    if (now := _name_of(raw.get("algorithm"))) != before:
        label = f"{label}-{now}"  # as `compare` calls it
    if isinstance(raw.get("dataset"), dict):  # what --set names is seen from where the user is
        raw["dataset"] |= _beside(Path("file"), raw["dataset"])
    return RunSpec.from_dict(raw, label)


def _name_of(part: Any) -> str:
    return str(part.get("name") if isinstance(part, dict) else part)


def _varied(raw: dict[str, Any], table: Any) -> dict[str, Any]:
    """A run with the changes of its table [fast]: what it names is replaced, parts setting by setting."""
    if not isinstance(table, dict):
        raise InputError(f"fast = {table!r} is not allowed: should be a table of changes")
    about = f"fast variant: {table['about']}" if table.get("about") else "fast variant"
    changed = raw | table | {"variant": "fast", "about": f"{raw['about']} ({about})" if raw.get("about") else about}
    for key in PARTS:
        new, old = table.get(key), raw.get(key)
        if isinstance(new, dict) and old is not None:
            old = old if isinstance(old, dict) else {"name": old}
            # As with --set: another name drops the settings of the old one.
            changed[key] = new if new.get("name", old.get("name")) != old.get("name") else old | new
    return changed


def _raw(source: str) -> tuple[dict[str, Any], str]:
    """The tables of a preset or a file, and its name. Files are looked for beside the file that names them."""
    path = Path(source)
    if from_file := path.suffix == ".toml" or path.is_file():
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
            raise InputError(f"cannot read '{source}': {reason}") from None
        label = path.stem
    else:
        found = resources.files("fedsoft") / "presets" / f"{source}.toml"
        if source not in presets():
            raise unknown("preset", source, presets())
        text, label = found.read_text("utf-8"), source
    try:
        raw = toml(text)
    except ValueError as error:
        raise InputError(f"'{source}' is not valid TOML: {error}") from None
    if from_file:
        for table in (raw, raw.get("fast")):
            if isinstance(table, dict) and isinstance(table.get("dataset"), dict):
                table["dataset"] |= _beside(path, table["dataset"])
    return raw, label


def _beside(file: Path, dataset: dict[str, Any]) -> dict[str, str]:
    """The files that a data set reads, by their full names, so that a run can be taken up from any folder."""
    named = {key: dataset[key] for key in PATHS if isinstance(dataset.get(key), str)}
    return {key: str(file.parent.absolute() / Path(value).expanduser()) for key, value in named.items()}


def _set(raw: dict[str, Any], change: str) -> None:
    """Make one `key=value` change. `lam=0.1` is short for `algorithm.lam=0.1` where only one part has such a key."""
    key, equals, text = change.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"--set '{change}' is not allowed: should be key=value, for instance algorithm.lam=0.1")
    try:
        value = toml(f"x = {text}")["x"]
    except ValueError:
        value = text.strip()  # a bare word is a string
    head, dot, rest = key.partition(".")
    if not dot and key not in TOP:
        homes = [part for part in PARTS if part in raw and key in _settings_of(part, raw[part])]
        if len(homes) != 1:
            known = [name for part in PARTS if part in raw for name in _settings_of(part, raw[part])]
            if homes:
                raise InputError(f"--set '{key}' could be {' or '.join(f'{home}.{key}' for home in homes)}: say which")
            raise unknown("key", key, {*TOP, *known})
        head, dot, rest = homes[0], ".", key
    if not dot:
        raw[key] = value
        return
    if head == "privacy":
        table = raw.get(head, {})
        raw[head] = {**table, rest: value} if isinstance(table, dict) else {rest: value}
        return
    if head not in PARTS:
        raise unknown("key", key, [f"{part}.{rest}" for part in (*PARTS, "privacy")])
    part = raw.get(head, {})
    table = dict(part) if isinstance(part, dict) else {"name": part}
    if head == "partition" and isinstance(table.get("name"), str):
        table["name"], short = plugins.parse_partition(table["name"])
        table = table | short
    if rest == "name" and value != table.get("name"):
        raw[head] = {"name": value} | (carried(table, str(value)) if head == "algorithm" else {})
    else:
        raw[head] = table | {rest: value}


def carried(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """What another algorithm takes over from a preset's: how many centers and clients, where it has such settings."""
    known = plugins.parameters(plugins.find("algorithms", name))
    return {key: settings[key] for key in CARRIED if key in known and key in settings}


def _names_a_part(change: str) -> bool:
    key = change.partition("=")[0].strip()
    return key.removesuffix(".name") in PARTS


def _settings_of(part: str, raw: Any) -> list[str]:
    name = str(raw.get("name", "") if isinstance(raw, dict) else raw)
    if part == "partition":
        name, _ = plugins.parse_partition(name)
    hidden = ("seed", "partition") if part == "dataset" else ()
    return [key for key in plugins.parameters(plugins.find(PARTS[part], name)) if key not in hidden]
