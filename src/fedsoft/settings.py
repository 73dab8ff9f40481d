"""Settings that are checked by pydantic, with errors of one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, dataclass_transform, get_args, get_type_hints

import pydantic
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedsoft.errors import InputError, MissingSetting, SettingError, UnknownSetting

T = TypeVar("T")
P = ParamSpec("P")

CONFIG = pydantic.ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)


@dataclasses.dataclass(frozen=True)
class Tunable:
    """Marks a setting that `tune` tunes: the values to try first, ascending."""

    values: tuple[float, ...]


ALLOWED = {
    "greater_than": "above {gt}", "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}", "less_than_equal": "at most {le}",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "float_parsing": "a number", "finite_number": "a finite number",
    "bool_type": "true or false", "bool_parsing": "true or false", "string_type": "text", "literal_error": "{expected}",
    "list_type": "a list", "tuple_type": "a list", "dict_type": "a table",
    "too_short": "at least {min_length} values", "too_long": "at most {max_length} values",
    "string_too_short": "at least {min_length} characters", "string_too_long": "at most {max_length} characters",
}  # fmt: skip
"""What is allowed, by the type of pydantic's error."""


def sentence(
    error: pydantic.ValidationError, owner: str, field: str | None = None, *, known: Mapping[str, object] | None = None
) -> InputError:
    """Put the first problem that pydantic found into one sentence.

    Arguments:
        error: what pydantic found.
        owner: what has the settings.
        field: the setting, where `error` is about its value alone.
        known: the settings of the owner.
    """
    problems = error.errors(include_url=False)
    if isinstance(cause := problems[0].get("ctx", {}).get("error"), InputError):
        return cause  # raised by a validator, and a sentence already
    names = list(known or ())
    if field is None:
        extra = [one for one in problems if one["type"] == "unexpected_keyword_argument"]
        if extra:
            return UnknownSetting(owner, str(extra[0]["loc"][0]), names)
        place = problems[0]["loc"][0]
        problems = [one for one in problems if one["loc"][0] == place]
        field = names[place] if isinstance(place, int) and place < len(names) else str(place)
    first = problems[0]
    if first["type"].startswith("missing"):
        return MissingSetting(owner, field)
    allowed = dict.fromkeys(ALLOWED[one["type"]].format(**one.get("ctx", {})) for one in problems
                            if one["type"] in ALLOWED)  # fmt: skip
    reason = f"should be {' or '.join(allowed)}" if allowed else str(cause or first["msg"])
    if [*allowed] == ["a list"] and isinstance(first["input"], str):
        reason += f", such as {[first['input']]}"
    return SettingError(owner, field, first["input"], reason)


@contextlib.contextmanager
def renamed(owners: Mapping[str, str]) -> Iterator[None]:
    """Let errors about settings name their owners as the user does: `FedSoft.K` as `algorithm.K`.

    >>> with renamed({"FedSoft": "algorithm"}):
    ...     raise SettingError("FedSoft", "K", 9, "should be at most 3")
    Traceback (most recent call last):
    fedsoft.errors.SettingError: algorithm.K = 9 is not allowed: should be at most 3
    """
    try:
        yield
    except SettingError as error:
        error.owner = owners.get(error.owner, error.owner)
        raise


def check_flag(owner: str, field: str, value: object, hint: object) -> None:
    """Refuse true and false where something else is expected: pydantic would read them as 1 and 0."""
    if isinstance(value, bool) and hint is not bool and bool not in get_args(hint):
        raise SettingError(owner, field, value, "should not be true or false")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only dataclass whose fields are checked, with errors of one sentence."""
    made: Any = pydantic_dataclass(frozen=True, kw_only=True, config=CONFIG | {"extra": "forbid"})(cls)
    check, hints = made.__init__, get_type_hints(cls)

    @functools.wraps(check)
    def __init__(self: Any, **values: Any) -> None:
        for name, value in values.items():
            check_flag(cls.__name__, name, value, hints.get(name, bool))
        try:
            check(self, **values)
        except pydantic.ValidationError as error:
            raise sentence(error, cls.__name__, known=made.__dataclass_fields__) from None

    made.__init__ = __init__
    return made


@dataclass(frozen=True)
class MadeBy:
    """How a function was made by another one, whose arguments are its settings."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    @staticmethod
    def of(made: object) -> MadeBy | None:
        """Return how it was made; None where that is not known."""
        found = vars(made).get("made_by") if isinstance(made, FunctionType) else None
        return found if isinstance(found, MadeBy) else None


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of a function against its annotations, with errors of one sentence."""
    inner = pydantic.validate_call(config=CONFIG)(function)
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            made = inner(*args, **kwargs)
        except pydantic.ValidationError as error:
            raise sentence(error, function.__name__, known=known) from None
        if isinstance(made, FunctionType) and MadeBy.of(made) is None:  # a run in Python is saved by it
            arguments = inspect.signature(function).bind(*args, **kwargs).arguments
            vars(made)["made_by"] = MadeBy(call, arguments)
        return made

    return call
