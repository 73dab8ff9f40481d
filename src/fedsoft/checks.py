"""Settings that check themselves: pydantic does the work, its errors become one sentence each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, dataclass_transform

import pydantic
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedsoft.errors import InputError, unknown

T = TypeVar("T")
P = ParamSpec("P")

CONFIG = pydantic.ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)


def sentence(error: pydantic.ValidationError, owner: str, known: list[str]) -> InputError:
    """Put the first complaint of pydantic into one sentence that names the field and the value."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"] if not isinstance(part, str) or "[" not in part)
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown(f"setting of {owner}", field, known)
    if first["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return InputError(f"{owner} needs a value for '{field}'")
    allowed = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    union = {e["msg"].removeprefix("Input should be ") for e in error.errors() if e["loc"][:1] == first["loc"][:1]}
    if len(union) > 1:
        field, allowed = str(first["loc"][0]), " or ".join(sorted(union))
    return InputError(f"{owner}: {field} = {first['input']!r} is not allowed: should be {allowed}")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only dataclass whose fields are checked, with errors of one sentence."""
    made: Any = pydantic_dataclass(frozen=True, kw_only=True, config=CONFIG)(cls)
    check, known = made.__init__, list(made.__dataclass_fields__)

    @functools.wraps(check)
    def __init__(self: Any, **values: Any) -> None:
        try:
            check(self, **values)
        except pydantic.ValidationError as error:
            raise sentence(error, cls.__name__, known) from None

    made.__init__ = __init__
    return made


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of a function against its annotations, with errors of one sentence."""
    inner = pydantic.validate_call(config=CONFIG)(function)
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return inner(*args, **kwargs)
        except pydantic.ValidationError as error:
            if error.title != function.__name__ and not error.title.endswith(f".{function.__name__}"):
                raise  # of something inside, not of our own arguments
            raise sentence(error, function.__name__, known) from None

    return call
