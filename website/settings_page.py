"""The page of all settings: the keys of a run's file, and what each part can be with its settings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from fedsoft import plugins
from fedsoft.flower.node import refusals
from fedsoft.runs.spec import RunSpec
from fedsoft.safety.privacy import Privacy
from fedsoft.secure.protection import Secure
from website.cells import cell, code, table

INTRODUCTION = """\
# Settings

A run is a TOML file: keys of the run, and a table for each part. `--set key=value` on the command line changes one
of them;
`lam=0.1` is short for `algorithm.lam=0.1` where only one part has such a setting. In Python the same settings are
the arguments of
`fs.fit`, of algorithms, models, data sets and solvers. Settings without a default have to be given.
"""
PARTS = {
    "algorithm": "algorithms", "dataset": "data sets", "partition": "partitions, for data sets that are divided here",
    "model": "models", "solver": "local solvers", "aggregator": "aggregators: it replaces the mean over clients",
    "attack": "attacks: what malicious clients do, for studies",
}  # fmt: skip
HIDDEN = ("allow", "label", "variant", "parent")  # that runs set themselves
TABLES = {"privacy": Privacy, "secure": Secure}


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, "## Keys of a run", run_table()]
    from fedsoft.training.callbacks.early_stopping import EarlyStopping

    for name, made in {**TABLES, "early_stopping": EarlyStopping}.items():
        parts += [f"### [{name}]", settings(made)]
    for kind in plugins.KINDS:
        parts.append(f"## {kind.capitalize()}")
        for name in plugins.names(kind):
            made = plugins.find(kind, name)
            link = f" ([its page](../algorithms/{name}.md))" if kind == "algorithms" else ""
            parts += [
                f"### {name} {{ #{kind}-{name} }}",  # names occur in several kinds
                first_sentence(made) + link,
                settings(made, plugins.own_settings(kind, name)),
            ]
    parts += [
        "## Refusals of a node",
        "What a node of a federation answers in place of an error ([security](../security.md)).",
        codes(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def run_table() -> str:
    """Return the keys of a run."""
    about, fields = arguments(RunSpec), {one.name: one for one in dataclasses.fields(RunSpec)}
    about |= {
        name: f"one of the {text}, by name or as a table with settings; see below." for name, text in PARTS.items()
    }
    rows = [
        (code(name), default(one.default), cell(about.get(name, "")))
        for name, one in fields.items()
        if name not in HIDDEN
    ]
    return table(("key", "default", "what it is"), rows)


def settings(made: Callable[..., Any], known: Mapping[str, inspect.Parameter] | None = None) -> str:
    """Return the settings of a class or a function."""
    known = plugins.parameters(made) if known is None else known
    about, hints = arguments(made), get_type_hints(made, include_extras=True)
    rows = [
        (code(name), default(one.default), tried(hints.get(name)) + cell(about.get(name, "")))
        for name, one in known.items()
    ]
    return table(("setting", "default", "what it is"), rows) if rows else "No settings."


def tried(hint: Any) -> str:
    """Return what `tune` tries of a setting, if it does."""
    found = [one for one in get_args(hint) if type(one).__name__ == "Tunable"]
    return f"(tuned: {', '.join(f'{value:g}' for value in found[0].values)}) " if found else ""


def arguments(made: Any) -> dict[str, str]:
    """Return what a docstring says of each argument."""
    text = inspect.getdoc(made) or ""
    block = text.partition("Arguments")[2].partition(":\n")[2]
    lines = re.split(r"\n(?=\S)", block)[0]
    found: dict[str, str] = {}
    for one in re.finditer(r"^ {4}([\w, ]+): (.*?)(?=^ {4}[\w, ]+: |\Z)", lines + "\n", re.MULTILINE | re.DOTALL):
        for name in one[1].split(","):
            found[name.strip()] = one[2]
    return found


def default(value: Any) -> str:
    """Return a default as it stands in TOML; nothing where there is none."""
    if value is inspect.Parameter.empty or value is dataclasses.MISSING or value is None:
        return ""
    return code(f'"{value}"' if isinstance(value, str) else list(value) if isinstance(value, tuple) else value)


def first_sentence(made: Any) -> str:
    """Return what a docstring begins with."""
    return cell((inspect.getdoc(made) or "").partition("\n\n")[0])


def codes() -> str:
    """Return the codes with which a node refuses."""
    return table(("code", "meaning"), [(code(one.value), cell(refusals.MEANS[one])) for one in refusals.Refusal])
