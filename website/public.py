"""The page of all public names. The docstrings are put in by mkdocstrings when the site is rendered."""

from __future__ import annotations

import fedsoft as fs
from fedsoft import plugins

GROUPS: dict[str, tuple[str, ...]] = {
    "Train": ("fit", "FitOptions", "Limit", "Conditions", "Privacy", "Schedule"),
    "A run": ("Run", "load", "export", "Adopted"),
    "Data": ("Federation",),
    "Studies": ("compare", "tune", "choose", "recommend", "StudyOptions"),
    "Errors": ("FedsoftError", "InputError", "StoreError", "DivergedError", "CallbackError"),
}
INTRODUCTION = """\
# Python

`import fedsoft as fs` offers the names on this page, and nothing else is public ([what is stable](../stability.md)).
Algorithms have
[pages of their own](../algorithms/index.md).
"""
PACKAGES = ("datasets", "models", "partitions", "aggregators", "attacks")


def page() -> str:
    """Return the page, in which `:::` stands for a docstring."""
    parts = [INTRODUCTION]
    solvers = tuple(plugins.class_names("solvers"))
    named = {name for names in GROUPS.values() for name in names} | {*solvers, *plugins.class_names("algorithms")}
    left = tuple(
        name
        for name in fs.__all__
        if name not in named and name not in (*PACKAGES, "algorithms", "callbacks", "solvers")
    )
    for title, names in {**GROUPS, "Local solvers": solvers, "Other names": left}.items():
        parts += [f"## {title}", *(f"::: fedsoft.{name}" for name in names)] if names else []
    for package in PACKAGES:
        parts.append(f"## fs.{package}")
        for name in plugins.names(package):
            made = plugins.find(package, name)
            parts.append(f"::: {made.__module__}.{made.__name__}")
    parts += ["## fs.callbacks", "How they are called is on [callbacks](../callbacks.md)."]
    callbacks = __import__("fedsoft.callbacks", fromlist=["__all__"])
    parts += [f"::: {_home(callbacks, name)}" for name in callbacks.__all__]
    return "\n\n".join(parts) + "\n"


def _home(package: object, name: str) -> str:
    """Return where a name is defined."""
    made = getattr(package, name)
    return f"{made.__module__}.{made.__name__}"
