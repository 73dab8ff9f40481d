"""From tables to clients: inputs, labels and the value to split by of every row, and whose row it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.core.client_arrays import stray_label
from fedsoft.core.federation import Columns, Federation
from fedsoft.data.client_files import check_readable, files_in, one_file, read_npz
from fedsoft.data.coding import encoded, id_notices, with_categories
from fedsoft.data.streams import bad
from fedsoft.data.table_settings import TableSettings
from fedsoft.data.tables import Table, first_word, value
from fedsoft.errors import unknown

Pair = tuple[Any, np.ndarray | None]


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


def federate(files: Sequence[Path | Table], options: TableSettings, client: str | None = None) -> Federation:
    """Make a federation of files: one client each, or those that a column names."""
    parts, columns, notices = _parts(files, options, client)
    parts, classes = _classes(parts, options)
    columns = replace(columns, classes=classes)
    owners = [(part, name, rows) for part in parts for name, rows in part.clients]
    names = [name for _, name, _ in owners]
    split = options.split
    tested = split is not None and split.kind == "test"
    if options.split_column is not None and split is not None:
        values = [part.split_by[rows] for part, _, rows in owners if part.split_by is not None]
        split = replace(split, **{split.kind: values})
    made = Federation.from_clients(
        [(part.inputs(rows), part.targets[rows]) for part, _, rows in owners],
        names=names,
        held_out=0 if tested else options.held_out,  # points of a test set are not taken from these
        split=None if tested else split,
        task=options.task,
        length=options.length,
        seed=options.seed,
    )
    made = replace(made, columns=columns, notices=made.notices + notices)
    if split is not None and tested:
        made = made.with_test(read_new_clients(split.test, made, options, client=client))
    return made.standardized() if options.standardize else made


def read_new_clients(
    path: str | Path,
    federation: Federation,
    options: TableSettings,
    *,
    client: str | None = None,
    labelled: bool = True,
) -> dict[str, Pair]:
    """Return the points of new clients: one file, or a folder of them, by name.

    Columns, categories and classes are those of the federation. `client`: the column with their names, where a file has
    it. Without `labelled` the label may be missing: y is None then.
    """
    path = Path(path)
    found: dict[str, Pair] = {}
    for file in files_in(path) if path.is_dir() else [one_file(path)]:
        part = _known_part(file, federation, options, client, labelled=labelled)
        y = None if part.y is None else _known_classes(part, options, federation)
        for name, rows in part.clients:
            found[name] = part.inputs(rows), None if y is None else y[rows]
    return found


# --- reading ----------------------------------------------------------------------------------------------------------


def _parts(
    files: Sequence[Path | Table], options: TableSettings, client: str | None
) -> tuple[list[Part], Columns, tuple[str, ...]]:
    """Read all files; the first table decides on the order of the inputs."""
    read = [file if isinstance(file, Table) else _read(file, options) for file in files]
    tables = [table for table in read if isinstance(table, Table)]
    columns, notices = Columns(), ()
    for table in tables:
        own = options.choose(table.file, _checked(table, options), client)
        columns = own if columns.features is None else columns
        _check_same(table.file, own.features or (), tables[0].file.name, columns.features or ())
    columns = with_categories(columns, tables, options)
    parts = [_part(table, columns, options, client) if isinstance(table, Table) else table for table in read]
    if tables:
        owners, count = [], 0
        for part in parts:
            if part.table is not None:
                owner = np.empty(len(part.table), dtype=np.int64)
                for k, (_, rows) in enumerate(part.clients):
                    owner[rows] = count + k
                owners.append(owner)
                count += len(part.clients)
        notices = id_notices(columns, tables, owners)
        if client is not None and 2 * count > sum(map(len, tables)) > 10:
            notices += (
                f"Column '{client}' makes {count} clients of {sum(map(len, tables))} rows: is it that of clients?",
            )
    return parts, columns, notices


def _read(file: Path, options: TableSettings) -> Table | Part:
    check_readable(file)
    if file.suffix.lower() != ".npz":
        return Table.read(file, options.form)
    return _array_part(file, options, labelled=True)


def _array_part(file: Path, options: TableSettings, *, labelled: bool) -> Part:
    by = options.split_column if labelled else None
    x, y, by = read_npz(file, options.targets[0], by, options.features, labelled=labelled)
    return Part(file, x, y, by, [(file.stem, slice(None))])


def _known_part(
    file: Path, federation: Federation, options: TableSettings, client: str | None, *, labelled: bool
) -> Part:
    """Read a file by the columns and categories that the federation has."""
    check_readable(file)
    if file.suffix.lower() == ".npz":
        return _array_part(file, replace(options, split=None), labelled=labelled)
    table, columns = Table.read(file, options.form), federation.columns
    names = _checked(table, options, labelled=labelled)
    if columns.features is None:  # of a run on arrays
        columns = replace(columns, features=tuple(name for name in names if name not in options.targets))
    ignored = {*columns.ignored} - {*(columns.features or ())}
    here = [name for name in names if name not in options.targets and name not in ignored]
    _check_same(file, here, "the run's data", columns.features or ())
    known = client if client is not None and client in names else None
    return _part(table, columns, replace(options, split=None), known, labelled=labelled or options.targets[0] in names)


def _part(table: Table, columns: Columns, options: TableSettings, client: str | None, *, labelled: bool = True) -> Part:
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


# --- columns ----------------------------------------------------------------------------------------------------------


def _checked(table: Table, options: TableSettings, *, labelled: bool = True) -> list[str]:
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


def _check_same(file: Path, features: Sequence[str], first: str, expected: Sequence[str]) -> None:
    """Raise InputError unless the features are those of the first table, in any order."""
    here, there = set(features), set(expected)
    if here != there:
        missing = [name for name in expected if name not in here]
        extra = [name for name in features if name not in there]
        parts = [f"{word} {_quoted(names)}" for word, names in (("lacks", missing), ("adds", extra)) if names]
        raise bad(file, f"should have the columns of '{first}', but {' and '.join(parts)}")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# --- labels -----------------------------------------------------------------------------------------------------------


def _classes(parts: list[Part], options: TableSettings) -> tuple[list[Part], tuple[str, ...] | None]:
    """Return the labels as numbers, and the classes that are text: 0, 1, ... in sorted order over all clients."""
    text = [part.targets.dtype.kind in "UO" for part in parts]
    if not any(text):
        _check_numbers(parts, options)
        return parts, None
    example = parts[text.index(True)]
    where = _example(example, options)
    if options.task in ("regression", "multilabel"):
        raise bad(example.file, f"has text as labels ({where}), should be numbers for task = '{options.task}'")
    if not all(text):
        # Not guessed: a typing error in one file would make classes of everyone's numbers.
        number = parts[text.index(False)]
        mixed = f"has numbers as labels, but '{example.file.name}' has text ({where})"
        raise bad(number.file, f"{mixed}: should be the same in all files")
    classes = tuple(sorted({name for part in parts for name in part.targets.ravel().tolist()}))
    return [replace(part, y=_numbered(part.targets, classes)) for part in parts], classes


def _numbered(y: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    known = {name: i for i, name in enumerate(classes)}
    return np.array([known[name] for name in y.ravel().tolist()], dtype=np.int64).reshape(y.shape)


def _check_numbers(parts: Sequence[Part], options: TableSettings) -> None:
    """Raise InputError for classes that are no whole numbers from 0, and for a stray number among classes."""
    targets = [part.targets for part in parts]
    guessed = options.task == "auto"
    if options.task == "classification" or (guessed and not any(y.dtype.kind == "f" for y in targets)):
        for part in parts:
            _check_numbered(part, options)
    elif guessed and (stray := stray_label(targets)):
        k, row = stray
        where = f"label {targets[k][row]} in {parts[k].place(row)}, column '{options.targets[0]}'"
        raise bad(
            parts[k].file,
            f"has {where}, but nearly all labels are whole: correct it if they are classes, or give "
            "task = 'regression'",
        )


def _example(part: Part, options: TableSettings) -> str:
    """Return a label that is text, and where it is: the first that does not look like a number."""
    row = first_word(part.targets)
    return f"{value(part.targets.ravel().tolist()[row])} in {part.place(row)}, column '{options.targets[0]}'"


def _check_numbered(part: Part, options: TableSettings, classes: int | None = None) -> None:
    """Raise InputError unless classes are whole numbers from 0, below their number where that is known."""
    y = part.targets
    if y.ndim != 1:
        return
    wrong = (y < 0) | (y != np.round(y)) | (False if classes is None else y >= classes)
    if len(rows := np.flatnonzero(wrong)):
        row = int(rows[0])
        allowed = "0, 1, 2, ..." if classes is None else f"0 to {classes - 1}"
        where = f"{part.place(row)}, column '{options.targets[0]}'"
        raise bad(part.file, f"has {y[row]} in {where}, but classes should be {allowed}")


def _known_classes(part: Part, options: TableSettings, federation: Federation) -> np.ndarray:
    """Return the labels of a new client as the numbers of the clients' classes."""
    y, classes = part.targets, federation.columns.classes
    text = y.dtype.kind in "UO"
    if text and classes is None:
        raise bad(part.file, f"has text as labels ({_example(part, options)}), but the run's data has numbers")
    if not text and classes is not None:
        raise bad(part.file, "has numbers as labels, but the run's data has text: should be the same")
    if classes is None:
        if federation.shape.task == "classification":
            _check_numbered(part, options, federation.shape.outputs)
        return y
    for row, name in enumerate(y.ravel().tolist()):
        if name not in classes:
            where = f"{part.place(row)}, column '{options.targets[0]}'"
            raise bad(
                part.file, f"has a label in {where} that the run does not know: {unknown('class', name, classes)}"
            )
    return _numbered(y, classes)
