"""What many clients keep or have answered, one row each: in memory as far as the budget allows, else in a file."""

from __future__ import annotations

import abc
import contextlib
import functools
import math
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsoft.errors import InputError, StoreError
from fedsoft.secure.coding import Coded
from fedsoft.secure.weighing import Weighing
from fedsoft.storage.tensorfile import Blocks, Form, TensorFile, consecutive


class Budget:
    """The bytes of memory that all stores may use together. Those of a store are returned when it is deleted."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.lock = threading.RLock()  # a store may be deleted while another one asks, on the same thread

    def grant(self, size: int, to: object) -> bool:
        """Take `size` bytes if there are as many; return whether there are."""
        with self.lock:
            if size > self.left:
                return False
            self.left -= size
        weakref.finalize(to, self._return, size).atexit = False
        return True

    def _return(self, size: int) -> None:
        with self.lock:
            self.left += size


class ClientRows(Mapping[str, Tensor]):
    """Named tensors with one row for each client. As a mapping it gives whole tensors."""

    forms: Mapping[str, Form]

    @abc.abstractmethod
    def take(self, rows: np.ndarray, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Return the rows of some clients, as copies."""

    @abc.abstractmethod
    def blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """Yield all rows of an entry in their order, a block at a time, with the number of the first."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.forms)

    def __len__(self) -> int:
        return len(self.forms)


class ClientStore(ClientRows):
    """Named tensors with one row for each of `count` clients. Several threads may use it, each for rows of its own.

    Short entries are kept in memory first. Those that exceed the budget are kept in a scratch file, which has no
    name and so is gone when the store or the process is.

    Arguments:
        count: the number of rows.
        budget: of memory.
        folder: of the scratch file, default: the system's folder for such files.
        device: of rows that are returned or kept in memory.
    """

    def __init__(
        self, count: int, budget: Budget, *, folder: Path | None = None, device: str | torch.device = "cpu"
    ) -> None:
        self.count, self.budget, self.folder, self.device = count, budget, folder, device
        self.forms: Mapping[str, Form] = {}
        self.held: dict[str, Tensor] = {}
        self.scratch: TensorFile | None = None
        self.lock = threading.Lock()
        self.ready = False

    def put(self, rows: np.ndarray, values: Mapping[str, Tensor]) -> None:
        """Set the rows of some clients. The first call decides which entries there are."""
        self.lay_out({name: Form.of(v, self.count) for name, v in values.items()})
        for name, value in values.items():
            form = self.forms.get(name)
            if form is None or (form.dtype, form.shape[1:]) != (value.dtype, tuple(value.shape[1:])):
                raise InputError(
                    f"'{name}' of some clients is {list(value.shape[1:])} of {value.dtype}, of others it is not there "
                    "or another: should be the same for all"
                )
            if name in self.held:
                self.held[name].index_copy_(0, torch.as_tensor(rows, device=self.device), value.to(self.device))
            elif self.scratch is not None:
                with self._store_errors():
                    for begin, end in _runs(rows):
                        self.scratch.write(name, int(rows[begin]), value[begin:end])

    def lay_out(self, forms: Mapping[str, Form]) -> None:
        """Find a place for every entry, once."""
        with self.lock:
            if not self.ready:
                self._find_places(forms)
                self.forms, self.ready = forms, True

    def fill(self, source: Blocks) -> None:
        """Set all rows, a block at a time."""
        self.lay_out(source.forms)
        for name in source.forms:
            for begin, rows in source.blocks(name):
                self.put(np.arange(begin, begin + len(rows)), {name: rows})

    def take(self, rows: np.ndarray, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        return {name: self._rows(name, rows) for name in (self if names is None else names)}

    def blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        for begin, end in self.forms[name].spans():
            yield begin, self.held[name][begin:end] if name in self.held else self._rows(name, np.arange(begin, end))

    def column(self, name: str) -> Column:
        """Return one entry, as an answer holds it."""
        return Column(self, name)

    def __getitem__(self, name: str) -> Tensor:
        return self.held[name] if name in self.held else self._rows(name, np.arange(self.forms[name].rows))

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.put(np.arange(self.count), {name: value})

    def _find_places(self, forms: Mapping[str, Form]) -> None:
        away = {}
        for name in sorted(forms, key=lambda name: (forms[name].bytes, name)):
            if self.budget.grant(forms[name].bytes, self):
                self.held[name] = torch.empty(forms[name].shape, dtype=forms[name].dtype, device=self.device)
            else:
                away[name] = forms[name]
        if away:
            with self._store_errors():
                file = tempfile.TemporaryFile(prefix=".memory-", dir=self.folder, buffering=0)  # noqa: SIM115
            weakref.finalize(self, file.close)
            self.scratch = TensorFile(file.fileno(), consecutive(away))

    def _rows(self, name: str, rows: np.ndarray) -> Tensor:
        if name in self.held or self.scratch is None:
            return self.held[name][torch.as_tensor(rows, device=self.device)]
        form = self.forms[name]
        found = torch.empty((len(rows), *form.shape[1:]), dtype=form.dtype)
        for begin, end in _runs(rows):
            self.scratch.read(name, int(rows[begin]), found[begin:end])
        return found.to(self.device)

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self.folder or tempfile.gettempdir()
            raise StoreError(
                f"cannot keep client state in '{where}': {error.strerror or error} (free some space there, or allow "
                "more memory with --memory)"
            ) from None


@dataclass(frozen=True)
class Column:
    """One entry of a store: the replies of all clients under one name. See `replies.Rows`."""

    store: ClientStore
    name: str

    def gather(self) -> Tensor:
        return self.store[self.name]

    def weighted(self, weights: Tensor) -> Tensor:
        """Return `weights[S, m] @ rows[m, ...]` in float64, block by block, in the order of the rows."""
        weights = weights.to(self.store.device, torch.float64)
        shape = self.store.forms[self.name].shape[1:]
        total = weights.new_zeros((len(weights), size := math.prod(shape)))
        for begin, block in self.store.blocks(self.name):
            total.addmm_(weights[:, begin : begin + len(block)], block.double().view(len(block), size))
        return total.view(len(weights), *shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.store.forms[self.name].shape[1:])

    def coded(self, what: Weighing) -> Coded:
        """Return the sum of what clients code for themselves, block by block; see `secure.sums.Codes`."""
        what, size = what.to(self.store.device), math.prod(self.shape)
        parts = [
            what.of(slice(begin, begin + len(block))).sum(block.view(len(block), size))
            for begin, block in self.store.blocks(self.name)
        ]
        return functools.reduce(Coded.plus, parts)


def _runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """Return begin and end of each run of consecutive `rows`."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return list(zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True)) if len(rows) else []
