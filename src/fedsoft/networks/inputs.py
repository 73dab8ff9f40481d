"""What a network's `forward` is called with: one tensor, or several by place and by name.

Beside sequences that were padded a network is given, by name, what its `forward` asks for: `mask` (True where there is
an element), `padding_mask` (True where there is none, as torch's own layers want it) and `lengths`; where there are
several such inputs, `<name>_mask` and so on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsoft.core.client_data import DataShape
from fedsoft.core.inputs import InputField, Part, as_read, made_up, unpack
from fedsoft.core.model import as_numbers
from fedsoft.errors import InputError

Inputs = Tensor | dict[str, Tensor]
"""One tensor, or several by name; names that are numbers are places."""

BESIDE: dict[str, Callable[[Part], Tensor | None]] = {
    "mask": lambda part: part.mask, "padding_mask": lambda part: ~part.mask, "lengths": lambda part: part.lengths,
}  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """From inputs as they are kept to those that a network is called with.

    Arguments:
        fields: of several inputs, see `core.inputs`.
        beside: what the network asks for beside each sequence: its keyword, the field and the key of `BESIDE`.
        tokens: a single input is of integers.
        shape: of a point as it is kept.
    """

    fields: tuple[InputField, ...] = ()
    beside: tuple[tuple[str, str, str], ...] = ()
    tokens: bool = False
    shape: tuple[int, ...] = ()

    @staticmethod
    def of(net: nn.Module, shape: DataShape, tokens: bool) -> Reader:
        """Return the reader for a network; raise InputError for inputs that its `forward` has no place for."""
        if not shape.fields:
            return Reader(tokens=tokens, shape=shape.input)
        taken = _parameters(net)
        for one in shape.fields:
            if not one.name.isdigit() and one.name not in taken and not _takes_any(net):
                known = ", ".join(f"'{name}'" for name in taken)
                raise InputError(f"module: forward of the network has no input '{one.name}', it has {known}")
        ragged = [one.name for one in shape.fields if one.ragged]
        given = {one.name for one in shape.fields}
        beside = [
            (keyword, name, what)
            for name in ragged
            for what in BESIDE
            if (keyword := what if len(ragged) == 1 else f"{_called(name, taken)}_{what}") in taken
            and keyword not in given
        ]
        return Reader(shape.fields, tuple(beside), shape=shape.input)

    @property
    def plain(self) -> bool:
        """Whether a network gets a single tensor of floats."""
        return not self.fields and not self.tokens

    def about(self, points: Tensor) -> str:
        """Return inputs in a few words."""
        if self.fields:
            return f"the inputs {', '.join(one.about for one in self.fields)}"
        integers = "" if not self.tokens else f" (integers from {int(points.min())} to {int(points.max())})"
        return f"shape {list(points.shape[1:])}{integers}"

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Model.inputs`: what has to be read stays as it is until a network does."""
        if self.plain:
            return as_numbers(x, dtype)
        if x.is_floating_point() or x.dtype == torch.uint8:
            raise InputError(
                f"x holds numbers of type {str(x.dtype).removeprefix('torch.')}, this network takes integers"
            )
        return x

    def some_points(self, x: Tensor, like: Tensor) -> Tensor:
        """Return inputs `[m, points, ...]`; for no points a made-up one, since networks may fail on none."""
        if x.shape[1]:
            return x
        one = made_up(self.shape, self.fields, x.dtype, 1).to(like.device)
        return one.expand(len(x), *one.shape)

    def read(self, x: Tensor, dtype: torch.dtype) -> Inputs:
        """Return what a network is called with, for inputs `x[..., points, ...]` beside parameters of a type."""
        if not self.fields:
            return x.long() if self.tokens else x
        return self.beside_each(unpack(self.fields, x), dtype)

    def beside_each(self, parts: Mapping[str, Part], dtype: torch.dtype) -> dict[str, Tensor]:
        """Return several inputs as a network reads them, with masks and lengths where it asks for these."""
        found = {name: as_read(part.values, dtype) for name, part in parts.items()}
        for keyword, name, what in self.beside:
            value = BESIDE[what](parts[name])
            assert value is not None
            found[keyword] = value
        return found


@contextmanager
def token_errors(x: Tensor) -> Iterator[None]:
    """Report an index that a network has no row for, such as a token beyond its vocabulary."""
    try:
        yield
    except IndexError as error:
        span = "" if x.ndim > 3 or not x.numel() else f" (integers from {int(x.min())} to {int(x.max())})"
        raise InputError(f"module: the network fails on these points{span}: {error}") from None


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the arguments by place and by name that a network is called with."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    places = sorted((name for name in inputs if name.isdigit()), key=int)
    return tuple(inputs[name] for name in places), {k: v for k, v in inputs.items() if not k.isdigit()}


def _parameters(net: nn.Module) -> Mapping[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: one for name, one in inspect.signature(net.forward).parameters.items() if one.kind in kinds}


def _takes_any(net: nn.Module) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(net.forward).parameters.values())


def _called(name: str, taken: Mapping[str, Any]) -> str:
    """Return what a network calls an input that is given by its place."""
    return list(taken)[int(name)] if name.isdigit() and int(name) < len(taken) else name


def called(net: nn.Module, fields: tuple[InputField, ...]) -> list[str]:
    """Return a name for each of several inputs: its own, or what the network calls it."""
    taken = _parameters(net)
    return [name if (name := _called(one.name, taken)).isidentifier() else f"x{one.name}" for one in fields]
