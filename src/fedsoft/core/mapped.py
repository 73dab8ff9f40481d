"""Inputs that stay on disk: a tensor whose rows are read from memory-mapped arrays when they are asked for.

`MappedRows` has the shape, type and device of the tensor that it stands for, and no memory. Picking rows by index reads
them; a slice, a conversion, a concatenation and `pick` only note what is to be done with rows once they are read. Any
other operation reads all rows that it is given, unless these would not fit into memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsoft.machine.resources import check_memory

aten = torch.ops.aten
BLOCK = 2**22  # bytes that are read at once where all rows are looked at
WINDOW = 2**24  # bytes of a file that may stay mapped before its pages are given back
NEIGHBOURS = 2**20  # bytes that the kernel maps around each one that is read, about

Change = Callable[[Tensor], Tensor]


class _File:
    """A mapped file. Its pages count as this process's memory until they are given back to the kernel's cache."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self.mapped, self.touched = mapped, 0

    def count(self, size: int) -> None:
        """Count bytes as mapped; from time to time give the pages back."""
        self.touched += size
        if self.touched > WINDOW:
            self.touched = 0
            with contextlib.suppress(OSError, ValueError):  # where there is no such call, the kernel decides
                self.mapped.madvise(mmap.MADV_DONTNEED)


_files: weakref.WeakValueDictionary[int, _File] = weakref.WeakValueDictionary()  # by the id of what they map


@dataclass(frozen=True)
class _Source:
    """An array, and how its rows are changed once they are read."""

    array: np.ndarray
    changes: tuple[Change, ...] = ()
    file: _File | None = None

    @staticmethod
    def of(array: np.ndarray) -> _Source:
        mapped: Any = getattr(array, "_mmap", None)
        # What was written to a private copy of a file (mode 'c') would be lost with its pages.
        if mapped is None or getattr(array, "mode", None) != "r" or not hasattr(mapped, "madvise"):
            return _Source(np.asarray(array))
        return _Source(np.asarray(array), (), _files.setdefault(id(mapped), _File(mapped)))  # clients may share a file

    def read(self, rows: np.ndarray) -> Tensor:
        found = self.array.take(rows, axis=0) if self.file is None else self._from(self.file, rows)
        # torch lacks operations for other unsigned types than bytes.
        kind = np.int64 if found.dtype.kind == "u" and found.itemsize > 1 else found.dtype.newbyteorder("=")
        tensor = torch.from_numpy(found.astype(kind, copy=False))
        for change in self.changes:
            tensor = change(tensor)
        return tensor

    def _from(self, file: _File, rows: np.ndarray) -> np.ndarray:
        """Copy rows out of a file, as many at a time as may stay mapped."""
        row = self.array.itemsize * int(np.prod(self.array.shape[1:], dtype=int))
        span = int(rows.max() - rows.min() + 1) * row + NEIGHBOURS if len(rows) else 0
        apart = max(row, NEIGHBOURS)
        if span <= WINDOW:
            file.count(min(span, len(rows) * apart))
            return self.array.take(rows, axis=0)
        found = np.empty((len(rows), *self.array.shape[1:]), self.array.dtype)
        step = max(1, WINDOW // apart)
        for begin in range(0, len(rows), step):
            some = rows[begin : begin + step]
            file.count(len(some) * apart)
            found[begin : begin + step] = self.array.take(some, axis=0)
        return found


class MappedRows(Tensor):
    """Rows of arrays on disk as one tensor `[rows, ...]`."""

    sources: tuple[_Source, ...]
    ends: np.ndarray  # [sources]: rows of this source and those before it
    rows: np.ndarray | None  # which rows of all sources these are; None: all
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(cls, sources: Sequence[_Source], rows: np.ndarray | None, like: Tensor) -> MappedRows:
        """`like`: an empty tensor of the same type, device and shape of a row."""
        ends = np.cumsum([len(source.array) for source in sources])
        shape = (int(ends[-1]) if rows is None else len(rows), *like.shape[1:])
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)  # pyright: ignore[reportAttributeAccessIssue]
        made.sources, made.ends, made.rows = tuple(sources), ends, rows
        return made

    def __init__(self, *_: Any) -> None:
        """All is done in `__new__`, as torch asks for."""

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"<rows on disk: {list(self.shape)} of {self.dtype}>"

    @staticmethod
    def of(array: np.ndarray) -> MappedRows:
        """Return the rows of an array, which is not copied."""
        source = _Source.of(array)
        return MappedRows([source], None, source.read(np.arange(0)))

    @property
    def _none(self) -> Tensor:
        return torch.empty((0, *self.shape[1:]), dtype=self.dtype, device=self.device)

    def _at(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.rows is None else self.rows[rows]

    def pick(self, rows: Tensor | np.ndarray) -> MappedRows:
        """Return some rows, in this order; nothing is read."""
        return MappedRows(self.sources, self._at(np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows)),
                          self._none)  # fmt: skip

    def changed(self, change: Change) -> MappedRows:
        """Return rows to which a function is applied each time they are read."""
        sources = [replace(source, changes=(*source.changes, change)) for source in self.sources]
        return MappedRows(sources, self.rows, change(self._none))

    def read(self, index: Tensor) -> Tensor:
        """Return the rows at `index`, of any shape."""
        flat = index.cpu().numpy().reshape(-1)
        flat = np.where(flat < 0, flat + len(self), flat)
        if len(flat) and not (0 <= int(flat.min()) and int(flat.max()) < len(self)):
            raise IndexError(f"index out of range: there are {len(self)} rows on disk")
        places = self._at(flat)
        owner = np.searchsorted(self.ends, places, side="right")
        owners = np.unique(owner).tolist()
        if len(owners) == 1:
            found = self._of_source(owners[0], places)
        else:
            found = self._none.new_empty((len(places), *self.shape[1:]))
            for number in owners:
                mine = np.flatnonzero(owner == number)
                found[torch.from_numpy(mine).to(self.device)] = self._of_source(number, places[mine])
        return found.view(*index.shape, *self.shape[1:])

    def _of_source(self, number: int, places: np.ndarray) -> Tensor:
        source = self.sources[number]
        return source.read(places - (int(self.ends[number]) - len(source.array)))

    def blocks(self) -> Iterator[Tensor]:
        """Yield all rows in order, a few at a time."""
        row = max(1, self.element_size() * int(np.prod(self.shape[1:], dtype=int)))
        for part in torch.arange(len(self)).split(max(1, BLOCK // row)):
            yield self.read(part)

    def in_memory(self) -> Tensor:
        """Read all rows; raise InputError where they do not fit."""
        check_memory(f"reading {list(self.shape)} from disk at once", self.numel() * self.element_size())
        return self.read(torch.arange(len(self)))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what needs no reading, or reads a few rows; hand everything else to torch with its rows read."""
        kwargs = kwargs or {}
        if (known := _KNOWN.get(func)) is not None and (made := known(*args, **kwargs)) is not None:
            return made
        if func._schema.is_mutable and any(isinstance(arg, cls) for arg in args[:1]):
            raise TypeError(f"{func}: rows on disk cannot be written to")
        first = args[0]._none if func in _METADATA else None
        if first is not None:
            return func(first, *args[1:], **kwargs)
        return func(*_read_all(args), **_read_all(kwargs))


def _read_all(given: Any) -> Any:
    if isinstance(given, MappedRows):
        return given.in_memory()
    if isinstance(given, list | tuple):
        return type(given)(map(_read_all, given))
    return {key: _read_all(value) for key, value in given.items()} if isinstance(given, dict) else given


def _index_select(x: MappedRows, dim: int, index: Tensor) -> Tensor | None:
    return x.read(index) if dim == 0 else None


def _index(x: Any, indices: Sequence[Tensor | None]) -> Tensor | None:
    (index, *more) = indices
    if not isinstance(x, MappedRows) or more or index is None:
        return None
    return x.read(torch.nonzero(index)[:, 0] if index.dtype == torch.bool else index)


def _slice(x: MappedRows, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    return x.pick(np.arange(len(x))[start:end:step]) if dim == 0 else None


@dataclass(frozen=True)
class _Convert:
    """Rows in another type or on another device."""

    dtype: torch.dtype | None
    device: torch.device | None

    def __call__(self, rows: Tensor) -> Tensor:
        return rows.to(self.device or rows.device, self.dtype or rows.dtype)


def _convert(x: MappedRows, dtype: Any = None, device: Any = None, **_: Any) -> MappedRows:
    return x.changed(_Convert(dtype, device))


def _concat(tensors: Sequence[Tensor], dim: int = 0) -> MappedRows | None:
    """Return the rows of all tensors, those in memory among them."""
    if dim != 0 or len({(t.dtype, t.device, t.shape[1:]) for t in tensors}) > 1:
        return None
    known: dict[Any, tuple[int, _Source]] = {}  # where the rows of each source begin; clients may share one
    rows, total = [], 0
    for tensor in tensors:
        mapped = tensor if isinstance(tensor, MappedRows) else MappedRows.of(tensor.cpu().numpy())
        begins = []
        for source in mapped.sources:
            key = (id(source.array), source.changes)
            if key not in known:
                known[key] = total, source
                total += len(source.array)
            begins.append(known[key][0])
        picked = np.arange(len(mapped)) if mapped.rows is None else mapped.rows
        owner = np.searchsorted(mapped.ends, picked, side="right")
        shift = np.array(begins) - mapped.ends + [len(source.array) for source in mapped.sources]
        rows.append(picked + shift[owner])
    like = next(tensor for tensor in tensors if isinstance(tensor, MappedRows))._none
    return MappedRows([source for _, source in known.values()], np.concatenate(rows), like)


_KNOWN: dict[Any, Callable[..., Any]] = {
    aten.index_select.default: _index_select,
    aten.index.Tensor: _index,
    aten.slice.Tensor: _slice,
    aten._to_copy.default: _convert,
    aten.cat.default: _concat,
    aten.detach.default: lambda x: x.pick(np.arange(len(x))),
}
_METADATA = (aten.new_zeros.default, aten.new_empty.default, aten.new_ones.default, aten.new_full.default)


class Scratch:
    """Rows that are written to a file without a name, and are then read from there."""

    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.row = self.dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        self.file = tempfile.TemporaryFile(prefix=".points-", buffering=0)  # noqa: SIM115

    def write(self, begin: int, rows: np.ndarray) -> None:
        """Set rows from `begin` on; several threads may do so."""
        left, at = memoryview(np.ascontiguousarray(rows, self.dtype).tobytes()), begin * self.row
        while len(left):
            done = os.pwrite(self.file.fileno(), left, at)
            left, at = left[done:], at + done

    def tensor(self) -> MappedRows:
        """Return all rows, on disk. To be called once: the file lives as long as what is mapped of it."""
        with self.file:
            return MappedRows.of(np.memmap(self.file, self.dtype, "r", shape=self.shape))


def pick(x: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of a tensor; of a tensor on disk they stay there."""
    return x.pick(rows) if isinstance(x, MappedRows) else x[rows]


def in_memory(x: Tensor) -> Tensor:
    """Return a tensor with all its rows in memory."""
    return x.in_memory() if isinstance(x, MappedRows) else x


def is_on_disk(array: Any) -> bool:
    """Whether this is an array that numpy maps from a file."""
    return isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None and array.ndim > 1


def blocks_of(x: Tensor) -> Iterator[Tensor]:
    """Yield all rows of a tensor: at once, or from disk a few at a time."""
    yield from x.blocks() if isinstance(x, MappedRows) else (x,)
