"""The methods of a study: algorithms with settings, as text, from a file of `tune`, or as objects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsoft import plugins
from fedsoft.core.contract import Algorithm
from fedsoft.errors import InputError
from fedsoft.runs.given import named_part
from fedsoft.runs.spec import Part, RunSpec, carried
from fedsoft.storage.files import read_text, reason
from fedsoft.storage.toml import toml

ALGORITHM = re.compile(r"\s*([^,()]+?)\s*(?:\(([^()]*)\))?\s*(?:,|$)")  # a name, settings in brackets


@dataclass(frozen=True)
class Method:
    """An algorithm with settings: its own; `solver.lr` and the like; `source` for points of that source alone."""

    name: str
    settings: dict[str, Any]
    label: str
    chosen: frozenset[str]  # settings that the user decided on: they are not tuned

    def spec(self, base: RunSpec) -> RunSpec:
        """Return its run on the same federation."""
        return variant(base, self.name, self.settings)


@dataclass(frozen=True)
class Methods:
    """The methods of a study, and whose cost is the budget; default: that of the first."""

    listed: tuple[Method, ...]
    budget_of: str | None = None


Algorithms = str | Algorithm | Methods | Sequence[str | Algorithm]
"""`"fedsoft,ifca(S=3)"`, a file of `tune`, or a list of such texts and of algorithms with their settings."""


def read_methods(algorithms: Algorithms) -> Methods:
    """Return the methods that are named."""
    if isinstance(algorithms, Methods):
        return algorithms
    if isinstance(algorithms, str) and algorithms.endswith(".toml"):
        return _read_file(algorithms)
    given = [algorithms] if isinstance(algorithms, str | Algorithm) else algorithms
    found = [method for one in given for method in ([_of(one)] if isinstance(one, Algorithm) else _parsed(one))]
    if not found:
        raise InputError("algorithms: none is given, should be a list such as 'fedsoft,ifca,fedem'")
    return Methods(tuple(found))


def _of(algorithm: Algorithm) -> Method:
    part = named_part("algorithm", algorithm)
    own = _changed(part)
    return Method(part.name, part.settings, label_of(part.name.rpartition(":")[2], own), frozenset(own))


def _changed(part: Part) -> dict[str, Any]:
    """Return the settings of an algorithm that are not the defaults."""
    known = plugins.parameters(plugins.find("algorithms", part.name, [part.name]))
    needed = {key: part.settings[key] for key, one in known.items() if one.default is one.empty}
    plain = plugins.resolve("algorithms", part.name, needed, [part.name])
    return {key: value for key, value in part.settings.items() if key in needed or plain.get(key) != value}


def _parsed(text: Any) -> list[Method]:
    if not isinstance(text, str):
        raise InputError(f"algorithms: {text!r} is not allowed: should be a name or one such as FedSoft(S=2)")
    return [Method(name, given, label_of(name, given), frozenset(given)) for name, given in parse_algorithms(text)]


def parse_algorithms(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Split `fedsoft,ifca(average=gradient),fedem(S=3)` into algorithms, each with its settings.

    >>> parse_algorithms("fedavg,ifca(average=gradient, lr=0.1)")
    [('fedavg', {}), ('ifca', {'average': 'gradient', 'lr': 0.1})]
    """
    found = []
    for match in ALGORITHM.finditer(text):
        settings = {}
        for change in filter(None, (part.strip() for part in (match[2] or "").split(","))):
            key, equals, value = change.partition("=")
            if not equals:
                raise InputError(f"--algorithms: '{change}' is not allowed: should be key=value")
            try:
                settings[key.strip()] = toml(f"x = {value}")["x"]
            except ValueError:
                settings[key.strip()] = value.strip()
        found.append((match[1], settings))
    if not found or ALGORITHM.sub("", text):
        raise InputError(f"--algorithms '{text}' is not allowed: should be a list such as fedsoft,ifca,fedem")
    return found


def _read_file(text: str) -> Methods:
    """Read a TOML file: `algorithms = ["fedsoft", ...]` and, as `fedsoft tune` writes it, `budget_of`."""
    try:
        raw = toml(read_text(Path(text)))
        listed, of = ",".join([*map(str.strip, raw["algorithms"])]), raw.get("budget_of")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--algorithms '{text}' cannot be read: {type(error).__name__} ({reason(error)})") from None
    methods = _parsed(listed)
    if of is not None and of not in [method.label for method in methods]:
        raise InputError(f"--algorithms '{text}': budget_of = {of!r} is none of its algorithms")
    return Methods(tuple(methods), of)


def variant(base: RunSpec, name: str, settings: dict[str, Any]) -> RunSpec:
    """Return the run of another algorithm on the same federation; see `Method`.

    S and K are those of the base's algorithm by default; a solver of another name has none of the base's settings.
    """
    of_preset = base.algorithm.settings
    own = of_preset if name == base.algorithm.name else {}
    given = {key: value for key, value in settings.items() if not key.startswith("solver.") and key != "source"}
    solver = {key.removeprefix("solver."): value for key, value in settings.items() if key.startswith("solver.")}
    allow = [*base.allow, name]  # naming a method is consent to import it
    raw = base.to_dict() | {"algorithm": {"name": name, **own, **carried(of_preset, name, allow), **given}}
    raw["solver"] = solver if solver.get("name", base.solver.name) != base.solver.name else raw["solver"] | solver
    raw |= {"source": settings["source"]} if "source" in settings else {}
    return RunSpec.from_dict(
        raw, f"{base.label}-{name}", allow=allow, source="saved"
    )  # the base was checked when it was read


def label_of(name: str, settings: dict[str, Any]) -> str:
    """Return a method as it is written in a list."""
    given = ", ".join(f"{key}={_text(value)}" for key, value in settings.items())
    return f"{name}({given})" if given else name


def with_settings(label: str, settings: dict[str, Any]) -> str:
    """Return a method that is written so with further settings.

    >>> with_settings("ifca(S=3)", {"solver.lr": 0.1})
    'ifca(S=3, solver.lr=0.1)'
    """
    more = label_of("", settings)
    return f"{label.removesuffix(')')}, {more[1:]}" if label.endswith(")") and more else label + more


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
