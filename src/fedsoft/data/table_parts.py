"""The points of one file: inputs, labels and the value to split by of every row, and whose row it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.core.columns import Columns
from fedsoft.data.client_files import check_readable, read_npz
from fedsoft.data.coding import encoded
from fedsoft.data.streams import bad
from fedsoft.data.table_settings import TableSettings
from fedsoft.data.tables import Table
from fedsoft.errors import unknown


@dataclass(frozen=True)
class Part:
    """The points of one file."""

    file: Path
    x: Any  # an array, or several by name
    y: np.ndarray | None
    split_by: np.ndarray | None  # the value of each point that held-out ones are chosen by
    clients: Sequence[tuple[str, np.ndarray | slice]]  # names, and the rows of each
    table: Table | None = None  # None for arrays

    @property
    def targets(self) -> np.ndarray:
        """The labels of a part that has them."""
        assert self.y is not None
        return self.y

    def inputs(self, rows: np.ndarray | slice) -> Any:
        """Return the inputs of some points."""
        return {name: value[rows] for name, value in self.x.items()} if isinstance(self.x, dict) else self.x[rows]

    def place(self, row: int) -> str:
        return f"row {row + 1}" if self.table is None else self.table.place(row)


def read_part(file: Path, options: TableSettings) -> Table | Part:
    check_readable(file)
    if file.suffix.lower() != ".npz":
        return Table.read(file, options.form)
    return array_part(file, options, labelled=True)


def array_part(file: Path, options: TableSettings, *, labelled: bool) -> Part:
    by = options.split_column if labelled else None
    x, y, by = read_npz(file, options.targets[0], by, options.features, labelled=labelled)
    return Part(file, x, y, by, [(file.stem, slice(None))])


def part_of(
    table: Table, columns: Columns, options: TableSettings, client: str | None, *, labelled: bool = True
) -> Part:
    """Return the points of a table."""
    by, y = options.split_column, None
    if labelled and isinstance(options.target, str):
        y = table.labels(options.target)
    elif labelled:
        y = np.column_stack([table.numbers(name) for name in options.targets])
    split_by = None if by is None else table.values(by)
    clients = [(table.file.stem, slice(None))] if client is None else _clients(table, client)
    return Part(table.file, encoded(table, columns), y, split_by, clients, table)


def _clients(table: Table, client: str) -> list[tuple[str, np.ndarray | slice]]:
    """Return the clients that a column names, in sorted order, with their rows."""
    names, code = np.unique(table.values(client), return_inverse=True)
    order = np.argsort(code, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(code))[:-1])
    shown = [str(name) for name in names.tolist()]
    for name, own in zip(shown, rows, strict=True):
        if not name.isprintable():
            where = f"{table.place(int(own[0]))}, column '{client}'"
            raise bad(table.file, f"has a client name with unprintable characters in {where}: rename it")
    return list(zip(shown, rows, strict=True))


# --- columns --------------------------------------------------------------------------------------------------------


def checked_names(table: Table, options: TableSettings, *, labelled: bool = True) -> list[str]:
    """Return the names of columns; raise InputError where these cannot be used or lack the targets."""
    names = table.names
    for name in names:
        if (not name or name.startswith("__index_level_")) and name not in options.drop:
            what = f"column '{name}'" if name else "a column without a name"
            raise bad(table.file, f"has {what}, likely the row numbers of a data frame: save it without its index")
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise bad(table.file, f"has {count} columns '{name}', should be one of each name")
    for target in options.targets if labelled else ():
        if target not in names:
            raise bad(table.file, f"lacks the labels: {unknown('column', target, names)}")
    return names


def check_same(
    file: Path, features: Sequence[str], first: str, expected: Sequence[str], *, dropping: bool = False
) -> None:
    """Raise InputError unless the features are those that are expected, in any order.

    `first`: what has these. `dropping`: whether columns can be left out of all files.
    """
    here, there = set(features), set(expected)
    if here != there:
        missing = [name for name in expected if name not in here]
        extra = [name for name in features if name not in there]
        parts = [f"{word} {_quoted(names)}" for word, names in (("lacks", missing), ("adds", extra)) if names]
        remedy = f": leave out what is not in all files by drop = {[*extra, *missing]}" if dropping else ""
        raise bad(file, f"should have the columns of {first}, but {' and '.join(parts)}{remedy}")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
