"""Algorithms, models, data sets, partitions, solvers, aggregators and attacks by name, one file each.

A file `fedsoft/<kind>/<name>.py` offers the first name in its `__all__`; nothing is registered. `package.module:name`
names code of the user. Importing it runs it, so it needs consent: `imported` is the only importer of such names, and
imports those that are allowed by whoever may decide: the user who types them or lists them with `--allow`, or the owner
of a node, in its file. A run folder or a server allows nothing.

What is allowed may have a place, `folder/package.module:name`: then the module is looked for in that folder before
Python's path. A TOML file that the user runs allows what it names, beside itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_type_hints

import pydantic

from fedsoft.errors import InputError, MissingSetting, UnknownSetting, unknown
from fedsoft.settings import CONFIG, Tunable, check_flag, sentence

CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")  # package.module:name
OFFERED = re.compile(r"""^__all__ = \["(\w+)\"""", re.MULTILINE)  # what a plugin's file is for
PARTS = {
    "algorithm": "algorithms", "dataset": "datasets", "partition": "partitions", "model": "models", "solver": "solvers",
    "aggregator": "aggregators", "attack": "attacks",
}  # fmt: skip
"""The parts of a run, and what kind of plugin each is."""
OBJECT = "python:object"
"""Stands for a part that was passed as an object in Python and has no name: it is never imported."""
KINDS = tuple(PARTS.values())
ROLES = {kind: part for part, kind in PARTS.items()}
GIVEN_BY_RUN = {"datasets": ("seed", "partition")}
"""Parameters of plugins that are no settings: a run has them itself."""


_PLACES: list[Path] = []  # folders of users' files that modules were loaded from


class _NamesCode:
    """Marks settings that name code."""


CodeName = Annotated[str, _NamesCode()]
"""The type of a plugin's setting that names code as `package.module:name`; `build` imports it, with consent."""


class ConsentError(InputError):
    """Code outside of fedsoft that is not allowed."""

    def __init__(self, name: str) -> None:
        top = name.partition(":")[0].partition(".")[0]
        here = "./" if Path(f"{top}.py").is_file() or Path(top, "__init__.py").is_file() else ""
        super().__init__(
            f"'{name}' names code that does not come with fedsoft, and nothing was imported: look at that code, then "
            f"allow it (--allow {here}{name} on the command line, allow = ['{here}{name}'] in Python and in a node's "
            "file)"
        )
        self.name = name


def is_code(name: str) -> bool:
    """Whether this names code as `package.module:name`.

    >>> is_code("mine.models:net"), is_code("10:90"), is_code("fedsoft")
    (True, False, False)
    """
    return CODE.fullmatch(name) is not None


def beside(folder: Path, names: Iterable[str]) -> list[str]:
    """Return names of code as allowed in a folder, see above."""
    return [f"{folder.absolute().as_posix()}/{name}" for name in names]


def allows(allow: Iterable[str], name: str) -> bool:
    """Whether this very name of code is allowed, at whatever place."""
    return any(one.rpartition("/")[2] == name for one in allow)


def imported(name: str, allow: Collection[str]) -> Any:
    """Import what `package.module:name` names, if this very name is allowed."""
    if not is_code(name):
        raise InputError(f"'{name}' is not allowed: should be 'package.module:name'")
    if name == OBJECT:
        raise InputError(
            "a part of this run was passed as an object in Python, and no name says what it was: go on there, with "
            "fs.load(path, model=...) for a network (see docs/runs.md), or with the call that made the run"
        )
    if not allows(allow, name):
        raise ConsentError(name)
    module, _, attribute = name.partition(":")
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise InputError(f"'{name}' is not allowed: should be in a module of your own, not in Python's library")
    found = {one.rpartition("/")[0] for one in allow if one.rpartition("/")[2] == name} - {""}
    places = [Path(place).expanduser().absolute() for place in sorted(found)]
    try:
        for place in places:
            _load_beside(top, place)
        return getattr(importlib.import_module(module), attribute)
    except InputError:
        raise
    except Exception as error:  # a user's own file may raise anything
        missing = isinstance(error, ModuleNotFoundError) and error.name == top
        hint = f" ({_looked(top, places)})" if missing else ""
        raise InputError(f"'{name}' cannot be imported: {type(error).__name__}: {error}{hint}") from None


def _load_beside(top: str, place: Path) -> None:
    """Load a module from a folder, if it is there; what it imports from there is found after Python's path."""
    spec = PathFinder.find_spec(top, [str(place)])
    if spec is None or spec.origin is None or spec.loader is None:
        return
    if (known := sys.modules.get(top)) is not None:
        origin = known.__spec__.origin if known.__spec__ is not None else getattr(known, "__file__", None)
        if origin is None or Path(origin) != Path(spec.origin):
            raise InputError(
                f"'{spec.origin}' cannot be imported: another module is called '{top}' ({origin}): rename it"
            )
        return
    if str(place) not in sys.path:
        _PLACES.append(place)
        sys.path.append(str(place))  # last: nothing that is installed is hidden by a file there
    made = importlib.util.module_from_spec(spec)
    sys.modules[top] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[top]
        raise


def modules_beside() -> list[ModuleType]:
    """Return the modules that were loaded from the folders of users' files."""
    loaded = [module for module in [*sys.modules.values()] if getattr(module, "__file__", None)]
    return [module for module in loaded if any(place in Path(str(module.__file__)).parents for place in _PLACES)]


def _looked(top: str, places: list[Path]) -> str:
    """Return where a module was looked for, and what to do."""
    where = " and ".join([*(f"in '{place}'" for place in places), "on Python's path"])
    advice = f"put {top}.py there" if places else f"give its folder, --allow FOLDER/{top}:..., or set PYTHONPATH=FOLDER"
    return f"looked for {top}.py {where}: {advice}"


def names(kind: str) -> list[str]:
    """Return the names of a kind; import nothing."""
    folder = Path(__file__).parent / kind
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def class_names(kind: str) -> list[str]:
    """Return what the plugins of a kind are called in Python; import nothing."""
    files = [Path(__file__).parent / kind / f"{name}.py" for name in names(kind)]
    return [found[1] for file in files if (found := OFFERED.search(file.read_text("utf-8"))) is not None]


def find(kind: str, name: str, allow: Collection[str] = ()) -> Callable[..., Any]:
    """Return the class or function behind a name; one that does not come with fedsoft must be allowed."""
    if ":" in name:
        return imported(name, allow)
    if name not in names(kind):
        raise unknown(kind.removesuffix("s"), name, names(kind))
    found = importlib.import_module(f"fedsoft.{kind}.{name}")
    return getattr(found, found.__all__[0])


def code_in(kind: str, name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the names of code in a plugin and its settings; import none of it."""
    if is_code(name):  # what its settings mean is not known before it is imported
        return [name, *(value for value in settings.values() if isinstance(value, str) and is_code(value))]
    if not any(is_code(str(value)) for value in settings.values()):
        return []
    marked = _code_settings(find(kind, name)) if name in names(kind) else []
    return [str(settings[key]) for key in marked if is_code(str(settings.get(key, "")))]


def _code_settings(made: Callable[..., Any]) -> list[str]:
    """Return the settings of a plugin that name code."""

    def marked(hint: Any) -> bool:
        return isinstance(hint, _NamesCode) or any(marked(part) for part in get_args(hint))

    return [key for key, hint in get_type_hints(made, include_extras=True).items() if marked(hint)]


def title(kind: str, name: str) -> str:
    """Return what a plugin is called in Python; import only what comes with fedsoft."""
    return name.partition(":")[2] if is_code(name) else find(kind, name).__name__


def load(package: str) -> dict[str, Any]:
    """Return everything that a package of plugins offers, by the names of its files."""
    kind = package.rpartition(".")[2]
    return {name: find(kind, name) for name in names(kind)}


def by_class_name(package: str, name: str) -> Any | None:
    """Return the class of that name in a package of plugins, if there is one."""
    kind = package.rpartition(".")[2]
    found = find(kind, name.lower()) if name.lower() in names(kind) and not name.islower() else None
    return found if getattr(found, "__name__", None) == name else None


def missing(package: str, name: str) -> AttributeError:
    """Return the error for a name that a package of plugins does not offer."""
    kind = package.rpartition(".")[2]
    return AttributeError(f"module '{package}': {unknown(kind.removesuffix('s'), name, names(kind))}")


def on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that imports what it offers when it is used, from its modules by name.

    A package whose __init__ imports all of its modules takes the time of all of them wherever one is needed.
    """

    def offer(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        home = importlib.import_module(f"{package}.{homes[name]}")
        for one in homes:  # all of them: the module itself may now stand where something of its name belongs
            if homes[one] == homes[name]:
                setattr(sys.modules[package], one, getattr(home, one))
        return getattr(home, name)

    return offer


def parameters(made: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that a plugin takes."""
    return {key: p for key, p in inspect.signature(made).parameters.items() if p.kind is not p.VAR_KEYWORD}


def own_settings(kind: str, name: str, allow: Collection[str] = ()) -> dict[str, inspect.Parameter]:
    """Return the settings that a part of a run may have."""
    known = parameters(find(kind, name, allow))
    return {key: parameter for key, parameter in known.items() if key not in GIVEN_BY_RUN.get(kind, ())}


def tunable(kind: str, name: str, allow: Collection[str] = ()) -> dict[str, tuple[float, ...]]:
    """Return the settings of a plugin that are worth tuning, with the values to try first."""
    hints = get_type_hints(find(kind, name, allow), include_extras=True)
    marks = {key: [one for one in get_args(hint) if isinstance(one, Tunable)] for key, hint in hints.items()}
    return {key: found[0].values for key, found in marks.items() if found}


def resolve(kind: str, name: str, settings: dict[str, Any], allow: Collection[str] = ()) -> dict[str, Any]:
    """Check the settings of a plugin and fill in the defaults. Return plain values, without those that are None."""
    made, role = find(kind, name, allow), ROLES[kind]
    hints = get_type_hints(made, include_extras=True)
    known = parameters(made)
    for key in settings:
        if key not in known:
            raise UnknownSetting(name, key, list(known))
    resolved = {}
    for key, parameter in known.items():
        if key not in settings and parameter.default is parameter.empty:
            raise MissingSetting(role, key, f"'{name}' needs a value for it")
        value = settings.get(key, parameter.default)
        check_flag(role, key, value, hints.get(key))
        kind_of = pydantic.TypeAdapter(hints.get(key, Any), config=CONFIG)
        try:
            plain = kind_of.dump_python(kind_of.validate_python(value), mode="json", exclude_none=True)
        except pydantic.ValidationError as error:
            raise sentence(error, role, key) from None
        if plain is not None:
            resolved[key] = plain
    return resolved


def build(kind: str, name: str, settings: dict[str, Any], allow: Collection[str] = ()) -> Any:
    """Build a plugin with its settings checked against its signature; code that they name must be allowed."""
    made, values = find(kind, name, allow), resolve(kind, name, settings, allow)
    named = {key: values[key] for key in _code_settings(made) if isinstance(values.get(key), str)}
    return made(**values | {key: imported(value, allow) for key, value in named.items()})
