"""Data sets as frozen settings: one class says which settings there are, checks them, and makes the federation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, Protocol, get_type_hints

from fedsoft.core.federation import Federation
from fedsoft.settings import renamed

ARGUMENTS = "Arguments:\n"


class DatasetSettings(Protocol):
    """The settings of a data set."""

    def federation(self) -> Federation:
        """Make or read the data."""
        ...


def dataset(made: type[DatasetSettings]) -> Callable[..., Federation]:
    """Return a data set as a function of its settings, by which plugins and users call it."""
    name = made.__name__.lower()
    hints = get_type_hints(made, include_extras=True)
    known = [
        inspect.Parameter(
            field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(made)  # pyright: ignore[reportArgumentType]
    ]  # fmt: skip
    known.sort(key=lambda one: one.default is not one.empty)
    signature = inspect.Signature(known, return_annotation=Federation)

    def function(*args: Any, **settings: Any) -> Federation:
        given = dict(zip(signature.parameters, args, strict=False))
        if len(args) > len(known) or given.keys() & settings.keys():
            signature.bind(*args, **settings)  # raises TypeError, as a call does
        with renamed({made.__name__: name}):
            return made(**given | settings).federation()

    function.__name__ = function.__qualname__ = name
    function.__module__, function.__doc__ = made.__module__, _documented(made)
    function.__annotations__ = {key: hints[key] for key in signature.parameters} | {"return": Federation}
    function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _documented(made: type) -> str:
    """Return what a data set is, and its own settings before those that it shares with others."""
    parts = [(inspect.cleandoc(one.__doc__ or "") + "\n").partition(ARGUMENTS) for one in made.__mro__[:-1]]
    return f"{parts[0][0].rstrip()}\n\n{ARGUMENTS}{''.join(part[2] for part in parts)}"
