"""From tables to clients: inputs, labels and the value to split by of every row, and whose row it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsoft.core.columns import Columns
from fedsoft.core.federation import Federation
from fedsoft.data.coding import id_notices, with_categories
from fedsoft.data.empty_cells import without_empty
from fedsoft.data.new_points import read_new_clients
from fedsoft.data.table_labels import number_classes
from fedsoft.data.table_parts import Part, check_same, checked_names, part_of, read_part
from fedsoft.data.table_settings import TableSettings
from fedsoft.data.tables import Table


def federate(files: Sequence[Path | Table], options: TableSettings, client: str | None = None) -> Federation:
    """Make a federation of files: one client each, or those that a column names."""
    parts, columns, notices = _parts(files, options, client)
    parts, classes = number_classes(parts, options)
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
    columns = replace(columns, classes=classes or made.columns.classes, whole=made.columns.whole)
    made = replace(
        made, columns=replace(columns, reading=options.reading(client)), notices=made.notices + notices
    )  # fmt: skip
    if split is not None and tested:
        said: list[str] = []
        made = made.with_test(read_new_clients(split.test, made, say=said.append))
        made = replace(made, notices=(*made.notices, *said))
    return made.standardized() if options.standardize else made


def _parts(
    files: Sequence[Path | Table], options: TableSettings, client: str | None
) -> tuple[list[Part], Columns, tuple[str, ...]]:
    """Read all files; the first table decides on the order of the inputs."""
    read = [file if isinstance(file, Table) else read_part(file, options) for file in files]
    columns = _columns([table for table in read if isinstance(table, Table)], options, client)
    notices: tuple[str, ...] = ()
    tables = [table for table in read if isinstance(table, Table)]
    if options.missing is not None and tables:
        tables, columns, notices = without_empty(tables, columns, options, client)
        left = iter(tables)
        read = [next(left) if isinstance(one, Table) else one for one in read]
    columns = with_categories(columns, tables, options)
    parts = [part_of(one, columns, options, client) if isinstance(one, Table) else one for one in read]
    if tables:
        owners = _owners(parts)
        notices += id_notices(columns, tables, owners)
        count, points = 1 + max(int(owner.max()) for owner in owners), sum(map(len, tables))
        if client is not None and 2 * count > points > 10:
            notices += (f"Column '{client}' makes {count} clients of {points} rows: is it that of clients?",)
    return parts, columns, notices


def _columns(tables: Sequence[Table], options: TableSettings, client: str | None) -> Columns:
    """Return what the columns of all tables are for; raise InputError where tables differ in their inputs."""
    columns, ignored = Columns(), dict[str, None]()
    everywhere = {name for table in tables for name in table.names}
    for table in tables:
        own = options.choose(table.file, checked_names(table, options), client, everywhere)
        columns = own if columns.features is None else columns
        ignored |= dict.fromkeys(own.ignored)
        first = f"'{tables[0].file.name}'"
        check_same(table.file, own.features or (), first, columns.features or (), dropping=True)
    return replace(columns, ignored=tuple(ignored))


def _owners(parts: Sequence[Part]) -> list[np.ndarray]:
    """Return the number of the client of each row, for each table."""
    owners, count = [], 0
    for part in parts:
        if part.table is not None:
            owner = np.empty(len(part.table), dtype=np.int64)
            for k, (_, rows) in enumerate(part.clients):
                owner[rows] = count + k
            owners.append(owner)
            count += len(part.clients)
    return owners
