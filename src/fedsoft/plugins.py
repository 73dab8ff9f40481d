"""Algorithms, models, data sets, partitions and solvers by name. A new one is one new file: nothing is registered.

A file `fedsoft/<kind>/<name>.py` offers the first name in its `__all__`. Besides, `package.module:name` names something
in a module of the user's own. Not in one of Python or of the packages that come with us: a run folder from elsewhere
could name `os:system` with a command.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_type_hints

import pydantic

from fedsoft.checks import CONFIG, sentence
from fedsoft.errors import InputError, unknown
from fedsoft.partition import Partition

OTHERS = frozenset((  # packages that are there with us, and are not meant to be called from a spec
    "IPython", "_pytest", "click", "cloudpickle", "cryptography", "dill", "flwr", "hypothesis", "jinja2", "joblib",
    "llvmlite", "matplotlib", "numba", "numpy", "onnx", "onnxruntime", "onnxscript", "pandas", "pip", "pkg_resources",
    "pooch", "psutil", "py", "pyarrow", "pydantic", "pytest", "ray", "requests", "rich", "safetensors", "scipy",
    "setuptools", "sklearn", "sympy", "torch", "typer", "urllib3", "yaml",
))  # fmt: skip
PARTS = {
    "algorithm": "algorithms", "dataset": "datasets", "partition": "partitions", "model": "models", "local": "solvers",
    "robust": "rules", "attack": "attacks",
}  # fmt: skip
"""The parts of a run, and what kind of plugin each is."""
KINDS = tuple(PARTS.values())
ROLES = {kind: part for part, kind in PARTS.items()}


def names(kind: str) -> list[str]:
    """The names of a kind, without importing anything."""
    folder = Path(__file__).parent / kind
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def find(kind: str, name: str) -> Callable[..., Any]:
    """The class or function behind a name."""
    module, _, attribute = name.partition(":")
    try:
        if attribute:
            if (top := module.partition(".")[0]) in sys.stdlib_module_names or top in OTHERS:
                raise InputError(f"{kind.removesuffix('s')} '{name}' is not allowed: should be in a module of your own")
            return getattr(importlib.import_module(module), attribute)
        if name not in names(kind):
            raise unknown(kind.removesuffix("s"), name, names(kind))
        found = importlib.import_module(f"fedsoft.{kind}.{name}")
        return getattr(found, found.__all__[0])
    except InputError:
        raise
    except Exception as error:  # a user's own file may raise anything
        raise InputError(
            f"{kind.removesuffix('s')} '{name}' cannot be imported: {type(error).__name__}: {error}"
        ) from None


def load(package: str) -> dict[str, Any]:
    """Everything that a package of plugins offers, by the names of its files."""
    kind = package.rpartition(".")[2]
    return {name: find(kind, name) for name in names(kind)}


def by_class_name(package: str, name: str) -> Any | None:
    """The class of that name in a package of plugins, if there is one."""
    kind = package.rpartition(".")[2]
    found = find(kind, name.lower()) if name.lower() in names(kind) and not name.islower() else None
    return found if getattr(found, "__name__", None) == name else None


def missing(package: str, name: str) -> AttributeError:
    """The error for a name that a package of plugins does not offer."""
    kind = package.rpartition(".")[2]
    return AttributeError(f"module '{package}': {unknown(kind.removesuffix('s'), name, names(kind))}")


def parameters(made: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The settings that a plugin takes."""
    return {key: p for key, p in inspect.signature(made).parameters.items() if p.kind is not p.VAR_KEYWORD}


def resolve(kind: str, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings of a plugin with their defaults filled in, checked, as plain values; without those that are None."""
    made, role = find(kind, name), ROLES[kind]
    hints = get_type_hints(made, include_extras=True)
    known = parameters(made)
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
    resolved = {}
    for key, parameter in known.items():
        if key not in settings and parameter.default is parameter.empty:
            raise InputError(f"{role}.{key} is missing: '{name}' needs a value for it")
        value = settings.get(key, parameter.default)
        if isinstance(value, bool) and hints.get(key) is not bool:  # pydantic would take it for 0 or 1
            raise InputError(f"{role}.{key} = {value} is not allowed: should not be true or false")
        kind_of = pydantic.TypeAdapter(hints.get(key, Any), config=CONFIG)
        try:
            plain = kind_of.dump_python(kind_of.validate_python(value), mode="json")
        except pydantic.ValidationError as error:
            raise sentence(error, f"{role}.{key}") from None
        if plain is not None:
            resolved[key] = plain
    return resolved


def build(kind: str, name: str, settings: dict[str, Any]) -> Any:
    """Make the thing, with its settings checked against its signature."""
    made = find(kind, name)
    return made(**resolve(kind, name, settings))


def parse_partition(text: str) -> tuple[str, dict[str, Any]]:
    """The short form of a partition as name and settings: `10:90`, `dirichlet(0.5)`, `linear`.

    >>> parse_partition("30:70")
    ('ratio', {'a': '30', 'b': '70'})
    """
    if pair := re.fullmatch(r"\s*([\d.]+)\s*:\s*([\d.]+)\s*", text):
        return "ratio", {"a": pair[1], "b": pair[2]}
    if call := re.fullmatch(r"\s*(\w+)\s*\(\s*([^()]*?)\s*\)\s*", text):
        name, values = call[1], [value for value in re.split(r"\s*,\s*", call[2]) if value]
        keys = list(inspect.signature(find("partitions", name)).parameters)
        if len(values) > len(keys):
            raise InputError(f"partition '{text}' has {len(values)} values, '{name}' takes {len(keys)}")
        return name, dict(zip(keys, values, strict=False))
    if text not in names("partitions") and not re.fullmatch(r"[A-Za-z_][\w.]*:\w+", text):
        raise unknown("partition", text, ["a:b", "dirichlet(alpha)", *names("partitions")])
    return text, {}


def as_partition(partition: str | Partition) -> Partition:
    """A partition from its short form; a function is one already."""
    if not isinstance(partition, str):
        return partition
    name, settings = parse_partition(partition)
    return cast(Partition, build("partitions", name, settings))
