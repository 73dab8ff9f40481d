"""Settings that check themselves: pydantic does the work, its errors become one sentence each."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar, dataclass_transform, get_type_hints

import pydantic
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedsoft.errors import InputError, unknown

T = TypeVar("T")
P = ParamSpec("P")

MOST_DIGITS = 1000  # of a number in a TOML file
CONFIG = pydantic.ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)


def toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; ValueError for whatever is none."""
    if re.search(rf"[0-9A-Fa-f_]{{{MOST_DIGITS}}}", text):  # Python cannot print numbers of more than 4300
        raise ValueError(f"it holds a number of more than {MOST_DIGITS} digits")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sentence(error: pydantic.ValidationError, what: str) -> InputError:
    """Put what pydantic complains of first into one sentence: `what` is the setting, or its owner."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    value: Any = first["input"]
    if "." not in what:  # errors of a whole owner: the first field that is wrong
        complaints = [c for c in complaints if c["loc"][:1] == first["loc"][:1]]
        what = f"{what}.{first['loc'][0]}"
        if first["type"].startswith("missing"):
            return InputError(f"{what} is missing: give it a value")
    told = (c["msg"].removeprefix("Value error, ").removeprefix("Input should be ") for c in complaints)
    allowed = dict.fromkeys(text.partition(", unable to parse")[0] for text in told)
    return InputError(f"{what} = {value!r} is not allowed: should be {' or '.join(allowed)}")


@contextlib.contextmanager
def renamed(owners: Mapping[str, str]) -> Iterator[None]:
    """Let errors about settings of these owners name them as they stand in a file: `FedSoft.K` as `algorithm.K`.

    >>> with renamed({"FedSoft": "algorithm"}):
    ...     raise InputError("FedSoft.K = 9 is not allowed: should be at most 3")
    Traceback (most recent call last):
    fedsoft.errors.InputError: algorithm.K = 9 is not allowed: should be at most 3
    """
    try:
        yield
    except InputError as error:
        named = re.match(r"(?P<before>unknown setting of )?(?P<owner>\w+)(\.|: |(?= '))", text := str(error))
        if named is None or (owner := owners.get(named["owner"])) is None:
            raise
        of = f"unknown setting{f' of {owner}' * bool(owner)}" if named["before"] else f"{owner}." * bool(owner)
        raise InputError(f"{of}{text[named.end() :]}") from None


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only dataclass whose fields are checked, with errors of one sentence."""
    made: Any = pydantic_dataclass(frozen=True, kw_only=True, config=CONFIG)(cls)
    check, known = made.__init__, list(made.__dataclass_fields__)
    flags = {name for name, hint in get_type_hints(cls).items() if hint is bool}

    @functools.wraps(check)
    def __init__(self: Any, **values: Any) -> None:
        for name in values:
            if name not in known:
                raise unknown(f"setting of {cls.__name__}", name, known)
            if isinstance(values[name], bool) and name not in flags:  # pydantic would take it for 0 or 1
                raise InputError(f"{cls.__name__}.{name} = {values[name]} is not allowed: should not be true or false")
        try:
            check(self, **values)
        except pydantic.ValidationError as error:
            raise sentence(error, cls.__name__) from None

    made.__init__ = __init__
    return made


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of a function against its annotations, with errors of one sentence."""
    inner = pydantic.validate_call(config=CONFIG)(function)
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise unknown(f"setting of {function.__name__}", name, known)
        try:
            return inner(*args, **kwargs)
        except pydantic.ValidationError as error:
            raise sentence(error, function.__name__) from None

    return call
