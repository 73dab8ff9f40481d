"""What tells runs apart: the settings in which they differ from their preset, named as `--set` takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from fedsoft import plugins
from fedsoft.errors import InputError
from fedsoft.plugins import PARTS
from fedsoft.runs.presets import Preset, presets
from fedsoft.runs.spec import KEYS, PATHS, Part, RunSpec, carried, read
from fedsoft.safety.privacy import Privacy

Settings = dict[str, Any]
"""By full names, such as `algorithm.lam`."""

SHOWN = ("about", "seed", "rounds", "variant")  # in the name of a run or beside it
COLUMNS = ("algorithm", "dataset")  # their names


def apart(specs: Sequence[RunSpec], noted: Sequence[Settings | None] = ()) -> list[Settings]:
    """Return for each run the settings that differ from its preset.

    A run of a file is compared with those that have the same label: the file may be gone.

    Arguments:
        specs: of the runs.
        noted: what was found when each of them began, see `from_preset`; None where it was not.
    """
    names, alike = presets(), dict[str, list[Settings]]()
    for spec in specs:
        alike.setdefault(spec.label, []).append(_flat(spec))
    found: list[Settings] = []
    for spec, known in zip(specs, noted or [None] * len(specs), strict=True):
        if known is None:
            preset = _preset_of(spec, names)
            known = _changed(spec, _base(preset, spec.variant)) if preset else _varying(spec, alike[spec.label])
        found.append(known)
    return found


def from_preset(spec: RunSpec) -> Settings | None:
    """Return the settings that differ from its preset; None for a run that was not made of one.

    A run notes it when it begins: what the preset means by then is known without importing its parts.
    """
    preset = _preset_of(spec, presets())
    return _changed(spec, _base(preset, spec.variant)) if preset else None


@cache
def _base(preset: str, variant: str | None) -> RunSpec:
    return read(preset, fast=variant == "fast")


def in_short(settings: Mapping[str, Any], spec: RunSpec) -> str:
    """Return settings in a few words, as one would type them.

    >>> in_short({"algorithm.lam": 0.1, "solver.lr": 0.01}, read("synthetic-10-90"))
    'lam=0.1 lr=0.01'
    """
    parts = [part for key in PARTS if (part := getattr(spec, key)) is not None]
    homes = Counter(name for part in parts for name in part.settings)

    def short(key: str) -> str:
        part, _, name = key.partition(".")
        return name if part in PARTS and homes[name] == 1 and name not in KEYS else key

    return " ".join(f"{short(key)}={_text(key, value)}" for key, value in settings.items())


def _preset_of(spec: RunSpec, names: Mapping[str, Preset]) -> str:
    """Return the preset that the label of a run is made of, see `read`; nothing for a file or a run made in Python."""
    label = spec.label if spec.label in names else spec.label.removesuffix(f"-{spec.algorithm.name}")
    label = label.removesuffix("-fast") if spec.variant == "fast" else label
    return label if label in names and (spec.variant is None or names[label].fast is not None) else ""


def _changed(spec: RunSpec, base: RunSpec) -> Settings:
    """Return what is not as in the preset; a part with another name is compared with its defaults."""
    usual = _flat(base)
    for key in PARTS:
        part: Part | None = getattr(spec, key)
        if part is not None and part.name != usual.get(key):
            usual = {name: value for name, value in usual.items() if not name.startswith(f"{key}.")}
            usual |= {f"{key}.{name}": value for name, value in _defaults(key, part, base).items()}
    return {key: value for key, value in _flat(spec).items() if key not in COLUMNS and value != usual.get(key)}


def _varying(spec: RunSpec, others: Sequence[Settings]) -> Settings:
    """Return what is not the same in all of these runs."""
    mine = {key: value for key, value in _flat(spec).items() if key not in COLUMNS}
    return {key: value for key, value in mine.items() if any(key in one and one[key] != value for one in others)}


def _flat(spec: RunSpec) -> Settings:
    """Return all settings by full names, and the names of parts."""
    found: Settings = {}
    for key, value in (spec.to_dict() | {"privacy": asdict(spec.privacy or Privacy())}).items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": setting for name, setting in value.items() if name != "name"}
            found |= {key: value["name"]} if "name" in value else {}
        elif key not in SHOWN:
            found[key] = value
    return found


def _defaults(key: str, part: Part, base: RunSpec) -> Settings:
    """Return the settings of a part that takes the place of the preset's own, where none are given."""
    try:
        taken = carried(base.algorithm.settings, part.name) if key == "algorithm" else {}
    except InputError:  # code that is not allowed: all that is known of it is what the run says
        taken = {}
    try:
        return plugins.resolve(PARTS[key], part.name, {}) | taken
    except InputError:  # some settings have no default
        return taken


def _text(key: str, value: Any) -> str:
    if key.rpartition(".")[2] in PATHS:
        return Path(str(value)).name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(_text(key, part) for part in value) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
