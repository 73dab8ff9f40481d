"""Several inputs of a network, side by side in one row of numbers for each point.

Tokens and a mask, an image and a few numbers, sequences of unequal length: all of that is kept as one tensor of 32-bit
words `[points, words]`, so that batches, shards, held-out points and messages need to know nothing of it. Bits are
copied, never converted: what a network reads is what a user gave. `DataShape.fields` says where each input lies, and
`unpack` gives them back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsoft.seeds import generator

Kind = Literal["bool", "uint8", "int32", "float32", "float64"]
DTYPES: dict[Kind, torch.dtype] = {
    "bool": torch.bool, "uint8": torch.uint8, "int32": torch.int32, "float32": torch.float32, "float64": torch.float64,
}  # fmt: skip
WORD = 4  # bytes


@dataclass(frozen=True)
class InputField:
    """One of several inputs.

    Arguments:
        name: what a network's `forward` calls it; a number for the place of an argument without a name.
        kind: the type that it is kept in. Networks get integers as int64, and floats in the type of their parameters.
        shape: of one point.
        ragged: the first side is the longest that a sequence may have: shorter ones are padded with zeros, and their
            lengths are kept beside them.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    ragged: bool = False

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.kind].itemsize

    @property
    def words(self) -> int:
        """How many words it takes, with the length of a sequence."""
        return -(-self.bytes // WORD) + self.ragged

    def agrees(self, other: InputField) -> bool:
        """Whether it is the same input, floats of any size."""
        floats = {self.kind, other.kind} <= {"float32", "float64"}
        same = (self.name, self.shape, self.ragged) == (other.name, other.shape, other.ragged)
        return same and (floats or self.kind == other.kind)

    @property
    def about(self) -> str:
        """Its name, type and shape, in a few words."""
        kinds = {"bool": "true or false", "uint8": "bytes", "int32": "integers"}
        sides = "x".join(map(str, self.shape)) or "one"
        name = f"'{self.name}' " if not self.name.isdigit() else ""
        return f"{name}{'up to ' * self.ragged}{sides} ({kinds.get(self.kind, 'floats')})"


@dataclass(frozen=True)
class Part:
    """One input of many points: `values[..., *shape]` in the type that it is kept in, `lengths[...]` of sequences."""

    values: Tensor
    lengths: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """True where there is an element of a sequence, False where it is padded."""
        assert self.lengths is not None
        longest = self.values.shape[self.lengths.ndim]
        return torch.arange(longest, device=self.values.device) < self.lengths[..., None]


def words(fields: Sequence[InputField]) -> int:
    """Return the length of a packed point."""
    return sum(one.words for one in fields)


def pack(fields: Sequence[InputField], parts: Mapping[str, Part]) -> Tensor:
    """Return points as words, `[points, words]`."""
    rows = []
    for one in fields:
        part = parts[one.name]
        flat = part.values.to(DTYPES[one.kind]).flatten(1) if one.shape else part.values.to(DTYPES[one.kind])[:, None]
        bytes_ = flat.contiguous().view(torch.uint8)
        rows.append(pad(bytes_, (0, -one.bytes % WORD)).view(torch.int32))
        if part.lengths is not None:
            rows.append(part.lengths.to(torch.int32)[:, None])
    return torch.cat(rows, 1)


def unpack(fields: Sequence[InputField], x: Tensor) -> dict[str, Part]:
    """Return the inputs of packed points `x[..., words]` by name."""
    return {one.name: _part(one, x[..., place]) for one, place in places(fields)}


def _part(one: InputField, row: Tensor) -> Part:
    row, lengths = (row[..., :-1], row[..., -1].long()) if one.ragged else (row, None)
    values = row.clone(memory_format=torch.contiguous_format)  # at an address that suits every type
    if DTYPES[one.kind].itemsize != WORD:
        values = values.view(torch.uint8)[..., : one.bytes].contiguous()
    return Part(values.view(DTYPES[one.kind]).reshape(*row.shape[:-1], *one.shape), lengths)


def as_read(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an input as networks read it: integers as int64, bytes from 0 to 1, floats in `dtype`."""
    if values.dtype == torch.bool:
        return values
    if values.dtype == torch.uint8:
        return values.to(dtype).div_(255)
    return values.to(dtype) if values.is_floating_point() else values.long()


def made_up(shape: Sequence[int], fields: Sequence[InputField], dtype: torch.dtype, points: int) -> Tensor:
    """Return points that have the form of a client's: draws for floats and bytes, 0 for integers.

    For where clients' points are elsewhere. 0 is a token that every network has.
    """
    rng = generator(0, "made up")
    if not fields:
        return _drawn(dtype, (points, *shape), rng)
    parts = {}
    for one in fields:
        lengths = one.shape[0] - torch.arange(points) % one.shape[0] if one.ragged else None
        parts[one.name] = Part(_drawn(DTYPES[one.kind], (points, *one.shape), rng), lengths)
    return pack(fields, parts)


def extremes(x: Tensor, fields: Sequence[InputField]) -> list[int]:
    """Return the points that have the smallest and the largest integer of each input of integers."""
    if fields:
        integers = [_part(one, x[..., place]).values for one, place in places(fields) if one.kind == "int32"]
    else:
        integers = [x] if x.dtype in (torch.int32, torch.int64) else []
    found = set()
    for values in integers:
        if values.numel():
            each = values.numel() // len(values)
            found |= {int(values.argmin()) // each, int(values.argmax()) // each}
    return sorted(found)


def _drawn(dtype: torch.dtype, sides: Sequence[int], rng: np.random.Generator) -> Tensor:
    if dtype == torch.uint8:
        return torch.from_numpy(rng.integers(0, 256, sides, dtype=np.uint8))
    if dtype.is_floating_point:
        return torch.from_numpy(rng.standard_normal(sides)).to(dtype)
    return torch.zeros(sides, dtype=dtype)


def places(fields: Sequence[InputField]) -> Iterator[tuple[InputField, slice]]:
    """Return each input with its words in a packed point."""
    begin = 0
    for one in fields:
        yield one, slice(begin, begin + one.words)
        begin += one.words
