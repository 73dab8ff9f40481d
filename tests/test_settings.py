"""Errors about settings are values: owner, field, value and reason, put into a sentence when they are shown."""

from __future__ import annotations

import copy
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from fedsoft.errors import InputError, MissingSetting, SettingError, UnknownSetting
from fedsoft.settings import checked, renamed, settings


@settings
class Own:
    S: Annotated[int, Field(ge=1)]
    K: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    sizes: tuple[int, int] = (1, 2)
    name: Annotated[str, Field(min_length=2)] = "ab"


@checked
def made(clients: Annotated[int, Field(ge=1)], kind: Literal["a", "b"] = "a") -> int:
    return clients


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"S": 0}, "Own.S = 0 is not allowed: should be at least 1"),
    ({"S": "x"}, "Own.S = 'x' is not allowed: should be a whole number"),
    ({"S": 1.5}, "Own.S = 1.5 is not allowed: should be a whole number"),
    ({"S": True}, "Own.S = true is not allowed: should not be true or false"),
    ({"S": 1, "K": "some"}, "Own.K = 'some' is not allowed: should be a whole number or 'all'"),
    ({"S": 1, "rate": 0}, "Own.rate = 0 is not allowed: should be above 0"),
    ({"S": 1, "rate": 2}, "Own.rate = 2 is not allowed: should be at most 1"),
    ({"S": 1, "rate": float("nan")}, "Own.rate = nan is not allowed: should be a finite number"),
    ({"S": 1, "sizes": [1, 2, 3]}, "Own.sizes = [1, 2, 3] is not allowed: should be at most 2 values"),
    ({"S": 1, "name": "a"}, "Own.name = 'a' is not allowed: should be at least 2 characters"),
    ({"S": "9" * 5000}, "Own.S = '99"),
    ({}, "Own.S is missing: give it a value"),
    ({"S": 1, "rat": 2, "rate": 9}, "unknown setting of Own 'rat': did you mean 'rate'? (known: K, S"),
]


@pytest.mark.parametrize(("values", "text"), WRONG)
def test_a_wrong_value_is_one_sentence(values: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError) as caught:
        Own(**values)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_arguments_of_functions_are_named_wherever_they_stand() -> None:
    values: Any
    for values in (([0], {}), ([], {"clients": 0})):
        with pytest.raises(SettingError, match=r"^made\.clients = 0 is not allowed: should be at least 1$"):
            made(*values[0], **values[1])
    with pytest.raises(SettingError, match=r"^made\.kind = 'c' is not allowed: should be 'a' or 'b'$"):
        made(1, "c")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownSetting, match=r"^unknown setting of made 'kinds': did you mean 'kind'\?"):
        made(1, kinds="a")  # pyright: ignore[reportCallIssue]
    with pytest.raises(MissingSetting, match=r"^made\.clients is missing"):
        made()  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SettingError("Own", "S", 9, "should be 3", "here"), "algorithm.S = 9 is not allowed here: should be 3"),
        (MissingSetting("Own", "S"), "algorithm.S is missing: give it a value"),
        (UnknownSetting("Own", "s", ["S"]), "unknown setting of algorithm 's': did you mean 'S'? (known: S)"),
        (SettingError("Other", "S", 9, "should be 3"), "Other.S = 9 is not allowed: should be 3"),
        (InputError("Own.S = 9 is a sentence"), "Own.S = 9 is a sentence"),
    ],
)
def test_an_owner_is_renamed_as_the_user_knows_it(error: InputError, text: str) -> None:
    with pytest.raises(InputError) as caught, renamed({"Own": "algorithm"}):
        raise error
    assert caught.value is error
    assert str(error) == text
    assert str(copy.copy(error)) == text  # as it comes from another process


def test_an_owner_without_a_name_is_left_out() -> None:
    with pytest.raises(SettingError, match=r"^unknown setting 'k'"), renamed({"Own": ""}):
        Own(S=1, k=2)  # pyright: ignore[reportCallIssue]
