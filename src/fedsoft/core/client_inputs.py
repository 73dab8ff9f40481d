"""The inputs that users give for clients: an array, several by name or by place, or sequences of unequal length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsoft.core.inputs import DTYPES, InputField, Kind, Part, pack
from fedsoft.core.mapped import MappedRows, blocks_of, is_on_disk
from fedsoft.errors import InputError
from fedsoft.machine.resources import check_memory

Value = Tensor | list[Tensor]
"""All points in one tensor, or a sequence for each of them."""
Given = Tensor | dict[str, Value]
"""One input, or several: by name, or by the number of their place."""

RANKS: tuple[Kind, ...] = ("bool", "int32", "float32", "float64")  # what becomes what where clients differ
TEXT = (
    "fs.datasets.table codes columns of text, and run.predict and run.adopt take files, data frames and dictionaries "
    "of columns"
)
LARGEST = 2**31 - 1  # of an integer among several inputs


def tensor_of(who: str, what: str, value: Any) -> Tensor:
    """Return an array of finite real numbers as a tensor."""
    try:
        # A copy: arrays may be read-only or run backwards, and the caller may write to theirs later.
        array = None if isinstance(value, Tensor) else np.array(value)
        if array is not None and _has_text(array):
            raise TypeError(f"it holds text: {TEXT}")
        found = value.detach() if array is None else torch.from_numpy(_native(array))
    except (TypeError, ValueError) as error:
        raise InputError(f"{who}: {what} is not an array of numbers ({error})") from None
    if found.is_complex():
        raise InputError(f"{who}: {what} holds complex numbers, only real ones are allowed")
    if found.is_floating_point() and not all(bool(torch.isfinite(rows).all()) for rows in blocks_of(found)):
        raise InputError(f"{who}: {what} holds NaN or infinite values, clean or drop those points")
    return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found


def _has_text(values: np.ndarray) -> bool:
    return values.dtype.kind == "U" or (values.dtype.kind == "O" and any(isinstance(one, str) for one in values.flat))


def _native(values: np.ndarray) -> np.ndarray:
    """Return arrays of types that torch lacks operations for, unsigned ones, as int64."""
    return values.astype(np.int64) if values.dtype in (np.uint16, np.uint32, np.uint64) else values


def given_inputs(who: str, x: Any, *, sequences: bool = False) -> Given:
    """Return what a user gives as x of a client; with `sequences` lists of equally long ones are such, too."""
    if isinstance(x, Mapping):
        if not x or any(not isinstance(key, str) or not key.isidentifier() for key in x):
            raise InputError(
                f"{who}: x has the keys {list(x)}, should be the names that the network's forward gives its inputs"
            )
        return {key: _value(who, f"x['{key}']", value, sequences) for key, value in x.items()}
    if isinstance(x, tuple):
        return {str(i): _value(who, f"x[{i}]", value, sequences) for i, value in enumerate(x)}
    found = _value(who, "x", MappedRows.of(x) if is_on_disk(x) else x, sequences)
    return found if isinstance(found, Tensor) else {"0": found}


def _value(who: str, what: str, value: Any, sequences: bool) -> Value:
    rows = value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind == "O" else value
    if not isinstance(rows, list) or not rows or not all(_is_sequence(row) for row in rows):
        return tensor_of(who, what, value)
    lengths = [len(row) for row in rows]
    if len(set(lengths)) == 1 and not sequences:
        return tensor_of(who, what, _stacked(rows))
    if not min(lengths):
        raise InputError(f"{who}: {what} of point {lengths.index(0)} is empty, drop that point")
    try:
        joined = [_array(row) for row in rows]
        pieces = tensor_of(who, what, np.concatenate(joined)).split(lengths)
    except ValueError as error:
        raise InputError(f"{who}: elements of the sequences in {what} differ in shape ({error})") from None
    return list(pieces)


def _is_sequence(row: Any) -> bool:
    return isinstance(row, list | tuple) or (isinstance(row, np.ndarray | Tensor) and row.ndim > 0)


def _array(row: Any) -> np.ndarray:
    return row.detach().cpu().numpy() if isinstance(row, Tensor) else np.asarray(row)


def _stacked(rows: Sequence[Any]) -> Any:
    return [_array(row) for row in rows] if isinstance(rows[0], Tensor) else rows


def collated(who: str, items: Sequence[Any]) -> Any:
    """Join the inputs of points into those of a client: by name or place where there are several, else as an array.

    Inputs whose first sides differ are sequences.
    """
    first = items[0]
    if isinstance(first, Mapping):
        if any(not isinstance(item, Mapping) or item.keys() != first.keys() for item in items):
            raise InputError(f"{who}: points of its data set differ in the names of their inputs")
        return {key: collated(who, [item[key] for item in items]) for key in first}
    if isinstance(first, tuple):
        if any(not isinstance(item, tuple) or len(item) != len(first) for item in items):
            raise InputError(f"{who}: points of its data set differ in the number of their inputs")
        return tuple(collated(who, [item[i] for item in items]) for i in range(len(first)))
    arrays = [_array(item) for item in items]
    if len({array.shape for array in arrays}) > 1 and len({array.shape[1:] for array in arrays if array.ndim}) == 1:
        return arrays
    try:
        return np.stack(arrays)
    except ValueError as error:
        raise InputError(f"{who}: inputs of its data set differ in shape ({error})") from None


# --- the same for all clients -----------------------------------------------------------------------------------------


def agreed_fields(names: Sequence[str], given: Sequence[Given], length: int | None) -> tuple[InputField, ...]:
    """Return the inputs that all clients have; none where each has a single array.

    `length`: the longest that a sequence may be; default: the longest that there is.
    """
    if all(isinstance(one, Tensor) for one in given):
        if length is not None:
            raise InputError(f"length = {length} is for sequences: x should be a list of them")
        return ()
    several = [by_name(one) for one in given]
    first = several[0]
    for name, one in zip(names, several, strict=True):
        if one.keys() != first.keys():
            raise InputError(
                f"client '{name}' has the inputs {_listed(one)}, but client '{names[0]}' has {_listed(first)}"
            )
    return tuple(_agreed(names, key, [one[key] for one in several], length) for key in first)


def by_name(given: Given) -> dict[str, Value]:
    """Return the inputs of a client by name; a single one is the first argument."""
    return {"0": given} if isinstance(given, Tensor) else given


def _listed(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"'{key}'" for key in keys)


def _agreed(names: Sequence[str], key: str, values: Sequence[Value], length: int | None) -> InputField:
    ragged = any(isinstance(value, list) for value in values)
    shapes, kinds, longest = [], [], 0
    for name, value in zip(names, values, strict=True):
        rows = value[0] if isinstance(value, list) else value
        sides = tuple(rows.shape[1:])
        if ragged and not isinstance(value, list):
            if not sides:
                raise InputError(f"client '{name}': {_what(key)} holds one number per point, others have sequences")
            longest, sides = max(longest, sides[0]), sides[1:]
        elif isinstance(value, list):
            longest = max(longest, max(map(len, value)))
        shapes.append(sides)
        kinds.append(_kind(rows.dtype))
        if shapes[-1] != shapes[0]:
            raise InputError(
                f"client '{name}': {_what(key)} of a point is {list(shapes[-1])}, "
                f"but that of client '{names[0]}' is {list(shapes[0])}"
            )
        if (kinds[-1] == "uint8") != (kinds[0] == "uint8"):
            raise InputError(f"client '{name}': {_what(key)} is {kinds[-1]}, but that of '{names[0]}' is {kinds[0]}")
    kind = kinds[0] if kinds[0] == "uint8" else max(kinds, key=RANKS.index)
    if not ragged:
        return InputField(key, kind, shapes[0])
    return InputField(key, kind, (longest if length is None else length, *shapes[0]), ragged=True)


def _kind(dtype: torch.dtype) -> Kind:
    if dtype in (torch.bool, torch.uint8, torch.float64):
        return {torch.bool: "bool", torch.uint8: "uint8", torch.float64: "float64"}[dtype]  # pyright: ignore[reportReturnType]
    return "float32" if dtype.is_floating_point else "int32"


def _what(key: str) -> str:
    return f"x[{key}]" if key.isdigit() else f"x['{key}']"


def packed(who: str, fields: Sequence[InputField], given: Given, points: int) -> Tensor:
    """Return the inputs of a client as `fields` say, checked; see `inputs.pack`."""
    several = by_name(given)
    if several.keys() != {one.name for one in fields}:
        wanted = {one.name: one for one in fields}
        raise InputError(f"{who} has the inputs {_listed(several)}, should have {_listed(wanted)}")
    return pack(fields, {one.name: _part(who, one, several[one.name], points) for one in fields})


def _part(who: str, field: InputField, value: Value, points: int) -> Part:
    what = f"{who}: {_what(field.name)}"
    if len(value) != points:
        raise InputError(f"{what} has {len(value)} points, y has {points}")
    if not field.ragged:
        if isinstance(value, list):
            raise InputError(f"{what} holds sequences of unequal length, should be arrays {list(field.shape)}")
        if value.shape[1:] != field.shape:
            raise InputError(f"{what} of a point is {list(value.shape[1:])}, should be {list(field.shape)}")
        return Part(_checked(what, field.kind, value))
    longest, *rest = field.shape
    if isinstance(value, list):
        lengths = torch.tensor([len(row) for row in value])
        values = pad_sequence(value, batch_first=True)
    else:
        lengths = torch.full((points,), value.shape[1] if value.ndim > 1 else 0)
        values = value
    if list(values.shape[2:]) != rest or values.ndim < 2:
        raise InputError(f"{what}: an element of a sequence is {list(values.shape[2:])}, should be {rest}")
    if not points:
        return Part(values.new_zeros(0, *field.shape), lengths)
    most = int(lengths.max())
    if not int(lengths.min()):
        raise InputError(f"{what} of point {int(lengths.argmin())} is empty, drop that point")
    if most > longest:
        where = int(lengths.argmax())
        raise InputError(
            f"{what} of point {where} has {most} elements, sequences should have at most {longest}: cut it, or give a "
            "larger length where the federation is made"
        )
    check_memory(f"{len(values)} sequences of {longest} elements", len(values) * field.bytes)
    padded = values.new_zeros(len(values), longest, *rest)
    padded[:, :most] = values[:, :most]
    return Part(_checked(what, field.kind, padded), lengths)


def _checked(what: str, kind: Kind, values: Tensor) -> Tensor:
    """Return numbers in the type that they are kept in; raise where they would not be the same."""
    if (kind == "uint8") != (values.dtype == torch.uint8):
        kept = "uint8 (images)" if kind == "uint8" else "numbers of another type than uint8"
        raise InputError(f"{what} is {str(values.dtype).removeprefix('torch.')}, should be {kept}")
    if kind == "int32" and values.dtype == torch.int64 and bool((values.abs() > LARGEST).any()):
        raise InputError(f"{what} holds {float(values.abs().max()):.0f}, integers should be below 2^31")
    found = values.to(DTYPES[kind])
    if kind in ("bool", "int32") and bool((found != values).any()):
        wrong = float(values[found != values][0])
        raise InputError(f"{what} holds {wrong:g}, should be {'true or false' if kind == 'bool' else 'whole numbers'}")
    return found
