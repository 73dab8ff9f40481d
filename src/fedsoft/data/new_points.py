"""Points that come after training, from files and tables: columns, categories and classes are those of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedsoft.core.federation import Federation
from fedsoft.data.client_files import check_readable, files_in, one_file
from fedsoft.data.coding import unseen
from fedsoft.data.empty_cells import empty_cells, filled
from fedsoft.data.table_labels import known_labels
from fedsoft.data.table_parts import Part, array_part, check_same, checked_names, part_of
from fedsoft.data.table_settings import TableSettings
from fedsoft.data.tables import Table

Pair = tuple[Any, np.ndarray | None]
Say = Callable[[str], object]
LOG = logging.getLogger("fedsoft")


def is_rows(source: Any, federation: Federation) -> bool:
    """Whether points are given as files, or as a table with names of columns, in place of arrays."""
    if isinstance(source, str | Path):
        return True
    if federation.columns.features is None:  # the clients have arrays: a data frame is one, too
        return False
    if isinstance(source, Mapping):
        return source.keys() != {one.name for one in federation.shape.fields}
    return hasattr(source, "columns")


def seen_inputs(federation: Federation, source: Any) -> Tensor:
    """Return inputs as models see them: arrays, or the rows of a file, a data frame or a dictionary of columns."""
    if is_rows(source, federation):
        ((source, _),) = read_new_clients(source, federation, labelled=False).values()
    return federation.new_inputs(source)


def read_new_clients(
    source: Any, federation: Federation, target: str | None = None, *, labelled: bool = True, say: Say = LOG.warning
) -> dict[str, Pair]:
    """Return the points of new clients by name: of a file, a folder of them, a data frame or a dictionary of columns.

    They are read as the federation's were. `target`: another name of that column. Without `labelled` all points are of
    one client and the label may be missing: y is None then. `say` is called with what looks wrong.
    """
    options = TableSettings.like(federation.columns.reading, target, federation.columns.ignored)
    found: dict[str, Pair] = {}
    for one in _sources(source):
        part, left_out, filled_in = _known_part(one, federation, options, labelled=labelled)
        if left_out:
            say(f"{part.file.name}: {left_out} rows with an empty cell are left out, as in training")
        if filled_in:
            say(f"{part.file.name}: {filled_in} empty cells are filled, as in training")
        if part.table is not None:
            for notice in unseen(part.table, federation.columns):
                say(notice)
        y = None if part.y is None else known_labels(part, options, federation)
        for name, rows in part.clients:
            found[name] = part.inputs(rows), None if y is None else y[rows]
    return found


def _sources(source: Any) -> Iterable[Path | Table]:
    if not isinstance(source, str | Path):
        return [Table.of(source, "new client")]
    path = Path(source)
    return files_in(path) if path.is_dir() else [one_file(path)]


def _known_part(
    source: Path | Table, federation: Federation, options: TableSettings, *, labelled: bool
) -> tuple[Part, int, int]:
    """Read a table by the columns and categories that the federation has, or arrays.

    Also count the rows that were left out and the cells that were filled.
    """
    if isinstance(source, Path):
        check_readable(source)
        if source.suffix.lower() == ".npz":
            return array_part(source, options, labelled=labelled), 0, 0
        source = Table.read(source, options.form)
    columns, client = federation.columns, federation.columns.reading.client
    names = checked_names(source, options, labelled=labelled)
    if columns.features is None:  # of a run on arrays
        columns = replace(columns, features=tuple(name for name in names if name not in options.targets))
    ignored = {*columns.ignored} - {*(columns.features or ())}
    here = [name for name in names if name not in options.targets and name not in ignored]
    check_same(source.file, here, "the run's data", columns.features or ())
    known = client if labelled and client in names else None
    whole, empty = source, 0
    if labelled and options.missing is not None:  # predictions are one for each row of the file
        inputs = () if options.missing == "drop" else columns.features or ()
        whole = source.complete([name for name in options.used(columns, known) if name not in inputs])
    if options.missing == "fill":
        empty, whole = empty_cells(whole, columns), filled(whole, columns)
    told = labelled or all(name in names and not whole.empty(name).any() for name in options.targets)
    part = part_of(whole, columns, options, known, labelled=told)
    return part, len(source) - len(whole), empty
