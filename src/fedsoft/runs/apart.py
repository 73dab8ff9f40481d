"""What tells runs apart: the settings in which they differ from their preset, named as `--set` takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedsoft import plugins
from fedsoft.errors import InputError
from fedsoft.runs.spec import PARTS, PATHS, TOP, Part, Preset, RunSpec, carried, presets, read
from fedsoft.trust.privacy import Privacy

Settings = dict[str, Any]
"""By full names, such as `algorithm.lam`."""

SHOWN = ("about", "seed", "rounds", "variant")  # in the name of a run or beside it
COLUMNS = ("algorithm", "dataset")  # their names


def apart(specs: Sequence[RunSpec]) -> list[Settings]:
    """For each run the settings that are not those of its preset.

    The file of a run from a file may be gone: such runs are compared with those that have the same label.
    """
    names = presets()
    bases: dict[tuple[str, bool], RunSpec] = {}
    alike: dict[str, list[Settings]] = {}
    for spec in specs:
        alike.setdefault(spec.label, []).append(_flat(spec))
    found: list[Settings] = []
    for spec in specs:
        preset, fast = _preset_of(spec, names), spec.variant == "fast"
        if preset and (preset, fast) not in bases:
            bases[preset, fast] = read(preset, fast=fast)
        found.append(_changed(spec, bases[preset, fast]) if preset else _varying(spec, alike[spec.label]))
    return found


def in_short(settings: Mapping[str, Any], spec: RunSpec) -> str:
    """Settings in a few words, as one would type them.

    >>> in_short({"algorithm.lam": 0.1, "local.lr": 0.01}, read("synthetic-10-90"))
    'lam=0.1 lr=0.01'
    """
    parts = [part for key in PARTS if (part := getattr(spec, key)) is not None]
    homes = Counter(name for part in parts for name in part.settings)

    def short(key: str) -> str:
        name = key.rpartition(".")[2]
        return name if key.partition(".")[0] in PARTS and homes[name] == 1 and name not in TOP else key

    return " ".join(f"{short(key)}={_text(key, value)}" for key, value in settings.items())


def _preset_of(spec: RunSpec, names: Mapping[str, Preset]) -> str:
    """The preset that the label of a run is made of, see `read`; nothing for a file or a run made in Python."""
    label = spec.label if spec.label in names else spec.label.removesuffix(f"-{spec.algorithm.name}")
    label = label.removesuffix("-fast") if spec.variant == "fast" else label
    return label if label in names and (spec.variant is None or names[label].fast is not None) else ""


def _changed(spec: RunSpec, base: RunSpec) -> Settings:
    """What is not as in the preset; a part with another name is compared with what it has unless told."""
    other = {key: part for key in PARTS if (part := getattr(spec, key)) is not None and part.name != _name(base, key)}
    usual = _flat(replace(base, **{key: _usual(key, part, base) for key, part in other.items()}))
    usual |= {key: _name(base, key) for key in other}
    return {key: value for key, value in _flat(spec).items() if key not in COLUMNS and value != usual.get(key)}


def _varying(spec: RunSpec, others: Sequence[Settings]) -> Settings:
    """What is not the same in all of these runs."""
    mine = {key: value for key, value in _flat(spec).items() if key not in COLUMNS}
    return {key: value for key, value in mine.items() if any(key in one and one[key] != value for one in others)}


def _flat(spec: RunSpec) -> Settings:
    """All settings; those of parts that are not there, and what has no value, are left out."""
    found: Settings = {key: getattr(spec, key) for key in TOP if key not in (*PARTS, *SHOWN, "privacy")}
    found |= {f"privacy.{key}": value for key, value in (spec.privacy or asdict(Privacy())).items()}
    for key in PARTS:
        if (part := getattr(spec, key)) is not None:
            found |= {key: part.name} | {f"{key}.{name}": value for name, value in part.settings.items()}
    return {key: value for key, value in found.items() if value is not None}


def _usual(key: str, part: Part, base: RunSpec) -> Part:
    """What a part that the preset has not gets unless told."""
    taken = carried(base.algorithm.settings, part.name) if key == "algorithm" else {}
    try:
        return Part(part.name, plugins.resolve(PARTS[key], part.name, {}) | taken)
    except InputError:  # some settings have to be told
        return Part(part.name, taken)


def _name(spec: RunSpec, key: str) -> str | None:
    part = getattr(spec, key)
    return None if part is None else part.name


def _text(key: str, value: Any) -> str:
    if key.rpartition(".")[2] in PATHS:
        return Path(str(value)).name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(_text(key, part) for part in value) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
