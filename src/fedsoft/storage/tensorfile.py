"""Named tensors in one file, read and written a few rows at a time.

Reads and writes have positions, so that several threads may work on one file, and only a block of rows is in memory.
The safetensors library maps whole files or writes whole tensors; this reads and writes the same format, byte for byte:
the length of a header, the header as JSON, the numbers.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fedsoft.storage import files

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK_BYTES = 8 * 2**20  # in memory at once when all rows are read
LONGEST_HEADER = 10**7  # the safetensors library takes ten times as much

MOST_ROWS = 2**31  # of a tensor without bytes

# In the order of the library, which puts the last kinds first in a file, so that all numbers are aligned.
# A header is read without torch, which knows these types by their second names; the third are bytes.
_KINDS = (
    ("BOOL", "bool", 1), ("U8", "uint8", 1), ("I8", "int8", 1), ("I16", "int16", 2), ("U16", "uint16", 2),
    ("F16", "float16", 2), ("BF16", "bfloat16", 2), ("I32", "int32", 4), ("U32", "uint32", 4), ("F32", "float32", 4),
    ("F64", "float64", 8), ("I64", "int64", 8), ("U64", "uint64", 8),
)  # fmt: skip
TYPES = {kind: name for kind, name, _ in _KINDS}
BYTES = {kind: count for kind, _, count in _KINDS}
KINDS = {name: kind for kind, name, _ in _KINDS}


@dataclass(frozen=True)
class Form:
    """The type (`F32`) and shape of a tensor, whose rows lie along the first axis; a single number is one row."""

    kind: str
    shape: tuple[int, ...]

    @staticmethod
    def of(tensor: Tensor, rows: int | None = None) -> Form:
        """Return the form of a tensor, or of one like it with this many rows."""
        shape = tuple(tensor.shape) if rows is None else (rows, *tensor.shape[1:])
        return Form(KINDS[str(tensor.dtype).removeprefix("torch.")], shape)

    @property
    def dtype(self) -> torch.dtype:
        import torch

        return getattr(torch, TYPES[self.kind])

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return math.prod(self.shape[1:]) * BYTES[self.kind]

    @property
    def bytes(self) -> int:
        """The bytes of all rows."""
        return self.rows * self.row_bytes

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of blocks of rows, whose number depends on the bytes of a row only."""
        step = max(1, BLOCK_BYTES // self.row_bytes if self.row_bytes else self.rows)
        for begin in range(0, self.rows, step):
            yield begin, min(begin + step, self.rows)


@dataclass(frozen=True)
class TensorFile:
    """Tensors at given places of an open file."""

    handle: int
    places: Mapping[str, tuple[int, Form]]

    def read(self, name: str, begin: int, into: Tensor) -> None:
        """Fill a tensor with the rows from `begin` on."""
        place, form = self.places[name]
        left, position = as_bytes(into), place + begin * form.row_bytes
        while len(left):
            count = os.preadv(self.handle, [left], position)
            if count == 0:
                raise ValueError(f"the file ends within '{name}'")
            left, position = left[count:], position + count

    def write(self, name: str, begin: int, rows: Tensor) -> None:
        """Write rows, the first as row `begin`."""
        place, form = self.places[name]
        write_at(self.handle, as_bytes(rows), place + begin * form.row_bytes)

    def blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """Yield all rows in their order, a block at a time, with the number of the first."""
        import torch

        form = self.places[name][1]
        for begin, end in form.spans():
            rows = torch.empty((end - begin, *form.shape[1:]), dtype=form.dtype)
            self.read(name, begin, rows)
            yield begin, rows

    def whole(self, name: str) -> Tensor:
        import torch

        form = self.places[name][1]
        tensor = torch.empty(form.shape, dtype=form.dtype)
        self.read(name, 0, tensor)
        return tensor


def as_bytes(rows: Tensor) -> memoryview:
    """Return the bytes of a tensor, without a copy where it is contiguous."""
    import torch

    rows = rows.detach().cpu().contiguous()
    return rows.view(-1).view(torch.uint8).numpy().data if rows.numel() else memoryview(b"")


def write_at(handle: int, content: bytes | memoryview, position: int) -> None:
    """Write all of it: the system may accept a part at a time."""
    left = memoryview(content)
    while len(left):
        count = os.pwrite(handle, left, position)
        left, position = left[count:], position + count


def consecutive(forms: Mapping[str, Form], begin: int = 0) -> dict[str, tuple[int, Form]]:
    """Return a place for each tensor, one after the other."""
    ends = itertools.accumulate((form.bytes for form in forms.values()), initial=begin)
    return {name: (place, form) for place, (name, form) in zip(ends, forms.items(), strict=False)}


def arrange(forms: Mapping[str, Form], notes: str) -> tuple[bytes, dict[str, tuple[int, Form]]]:
    """Return the header of a safetensors file with these tensors and notes, and the places of the tensors in it."""
    kinds = list(TYPES)
    rank = {name: -kinds.index(form.kind) for name, form in forms.items()}
    ordered = {name: forms[name] for name in sorted(forms, key=lambda name: (rank[name], name.encode()))}
    header: dict[str, object] = {"__metadata__": {"fedsoft": notes}}
    for name, (place, form) in consecutive(ordered).items():
        header[name] = {
            "dtype": form.kind, "shape": form.shape, "data_offsets": [place, place + form.bytes]
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, consecutive(ordered, 8 + len(text))


def open_tensors(path: Path) -> tuple[str, TensorFile]:
    """Return the notes and the tensors of a safetensors file; raise ValueError unless it is whole.

    The file stays open as long as what is returned is in use, whatever is renamed over it meanwhile.
    """
    handle = files.open_regular(path)
    try:
        notes, places = _read_header(handle)
    except BaseException:
        os.close(handle)
        raise
    file = TensorFile(handle, places)
    weakref.finalize(file, os.close, handle)
    return notes, file


def _read_header(handle: int) -> tuple[str, dict[str, tuple[int, Form]]]:
    size = os.fstat(handle).st_size
    length = int.from_bytes(os.pread(handle, 8, 0), "little")
    if not 2 <= length <= min(LONGEST_HEADER, size - 8):
        raise ValueError("it has no header")
    text = os.pread(handle, length, 8)
    if files.memory_needed(text) > files.MOST_MEMORY:
        raise ValueError("its header is too long")
    header = files.parse_json(text)
    places: dict[str, tuple[int, Form]] = {}
    try:
        notes = header.pop("__metadata__")["fedsoft"]
        for name, entry in header.items():
            (begin, end), shape = entry["data_offsets"], tuple(entry["shape"])
            form = Form(entry["dtype"], shape)
            if any(type(n) is not int or n < 0 for n in (begin, end, *shape)) or end - begin != form.bytes:
                raise ValueError(f"{name!r} has no place")
            if not form.bytes and max(shape, default=0) > MOST_ROWS:  # the length of the file limits all others
                raise ValueError(f"{name!r} is too long")
            places[name] = (8 + length + begin, form)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its header lacks {error}") from None
    end = 8 + length
    for place, form in sorted(places.values(), key=lambda found: (found[0], found[1].bytes)):
        if place != end:
            raise ValueError("it has gaps")
        end += form.bytes
    if end != size or not isinstance(notes, str):
        raise ValueError("its length is wrong")
    return notes, places


@runtime_checkable
class Blocks(Protocol):
    """Named tensors that can be read a block of rows at a time."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """Their names, types and shapes."""
        ...

    def blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """Yield all rows of one of them in their order, a block at a time, with the number of the first."""
        ...


def in_blocks(tensors: Mapping[str, Tensor]) -> Blocks:
    """Return the same tensors as `Blocks`."""
    return tensors if isinstance(tensors, Blocks) else _InMemory(tensors)


class _InMemory:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.forms = {name: Form.of(tensor) for name, tensor in tensors.items()}

    def blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        rows = self.tensors[name].view(self.forms[name].rows, *self.forms[name].shape[1:])
        for begin, end in self.forms[name].spans():
            yield begin, rows[begin:end]


class Saved(Mapping[str, "Tensor"]):
    """The tensors of a file whose names begin with a prefix, by the rest of the names. Read when used."""

    def __init__(self, file: TensorFile, prefix: str) -> None:
        self.file, self.prefix = file, prefix
        self.forms = {
            name.removeprefix(prefix): form for name, (_, form) in file.places.items() if name.startswith(prefix)
        }

    def blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        return self.file.blocks(self.prefix + name)

    def __getitem__(self, name: str) -> Tensor:
        return self.file.whole(self.prefix + name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.forms)

    def __len__(self) -> int:
        return len(self.forms)
