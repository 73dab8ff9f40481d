"""Columns of tables as inputs: numbers as they are, text as categories; columns that look like ids are pointed out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedsoft.core.columns import Columns
from fedsoft.data.streams import bad
from fedsoft.data.table_settings import TableSettings, matches
from fedsoft.data.tables import Table, reads_as_number, value
from fedsoft.data.token_columns import tokens

FEW, MANY = 11, 100  # points of which nothing is said; points that measured whole numbers hardly tell apart
ID_NAME = re.compile(r"(?:^|[^a-z])(?:id|no|nr|number|key|index|code)$", re.IGNORECASE)


def with_categories(columns: Columns, tables: Sequence[Table], options: TableSettings) -> Columns:
    """Return the columns with the categories of those that are text, over all tables, in sorted order."""
    found = {name: known for name in _plain(columns) if (known := _categories(name, tables, options))}
    return replace(columns, categories=found)


def _categories(name: str, tables: Sequence[Table], options: TableSettings) -> tuple[str, ...]:
    """Return the categories of a column; none for one of numbers."""
    forced = matches(name, options.categorical)
    texts = [table for table in tables if table.has_text(name)]
    if not forced:
        if not texts:
            return ()
        # Not guessed: one cell that was mistyped would make categories of everyone's numbers.
        if len(texts) < len(tables) or not options.categories:
            texts[0].numbers(name)
        for table in texts:
            if any(map(reads_as_number, table.labels(name).tolist())):
                table.numbers(name)
    values = sorted({str(value) for table in tables for value in table.values(name).tolist()})
    if options.missing == "fill":  # an empty cell is no category
        values = [value for value in values if value]
    if len(values) > options.categories:
        raise bad(
            tables[0].file,
            f"has {len(values)} different values in column '{name}', more than categories = {options.categories}: "
            f"leave it out by drop = ['{name}'], or raise categories",
        )
    return tuple(values)


def _plain(columns: Columns) -> list[str]:
    """Return the inputs that are no tokens."""
    return [name for name in columns.features or () if name not in columns.tokens]


def encoded(table: Table, columns: Columns) -> Any:
    """Return the inputs of a table: numbers, tokens, or both by name."""
    if not columns.tokens:
        return _numbers(table, columns)
    found = tokens(table, columns.tokens)
    return {"tokens": found, "numbers": _numbers(table, columns)} if _plain(columns) else found


def _numbers(table: Table, columns: Columns) -> np.ndarray:
    """Return an element for each number and each category, in floating point."""
    parts = []
    for name in _plain(columns):
        if name in columns.categories:
            parts.append(_texts(table, name)[:, None] == np.array(columns.categories[name], dtype=np.str_))
        else:
            parts.append(table.numbers(name)[:, None])
    x = np.concatenate(parts, axis=1)
    return x if x.dtype.kind == "f" else x.astype(np.float32)


def _texts(table: Table, name: str) -> np.ndarray:
    return np.array([str(value) for value in table.values(name).tolist()], dtype=np.str_)


def unseen(table: Table, columns: Columns) -> list[str]:
    """Return a sentence about each column with values that are none of its categories."""
    said = []
    for name, known in columns.categories.items():
        values = _texts(table, name)
        filled = columns.reading.missing == "fill"
        if len(rows := np.flatnonzero(~np.isin(values, [*known, ""] if filled else known))):
            first = f"the first is {value(str(values[rows[0]]))} in {table.place(int(rows[0]))}"
            said.append(
                f"{table.file.name}: {len(rows)} of {len(values)} points have a value of column '{name}' that no "
                f"client had in training ({first}): they are coded as none of its categories"
            )
    return said


def id_notices(columns: Columns, tables: Sequence[Table], clients: Sequence[np.ndarray]) -> tuple[str, ...]:
    """Return a sentence about each input that tells clients or points apart, as an id does.

    `clients`: the number of the client of each row, for each table.
    """
    owner = np.concatenate(clients)
    sizes = np.bincount(owner)
    if len(sizes) < 2 or not (sizes > 1).any():
        return ()
    said = []
    for name in _plain(columns):
        values = np.concatenate([np.asarray(table.values(name)).astype(str) for table in tables])
        known, code = np.unique(values, return_inverse=True)
        pairs = len(np.unique(owner * len(known) + code))
        remedy = f"leave it out by drop = ['{name}'] if it is one"
        if len(known) > 1 and pairs == len(sizes):
            what = "another one in each" if len(known) == len(sizes) else f"{len(known)} over all"
            said.append(f"Column '{name}' has one value in each client, {what}, as an id has: {remedy}")
        elif len(values) > FEW and name in columns.categories and len(known) > len(values) / 2:
            what = f"{len(known)} categories for {len(values)} points, as names, dates and notes have"
            said.append(f"Column '{name}' has {what}: leave it out by drop = ['{name}'] if it is of that kind")
        elif len(values) > FEW and name not in columns.categories and _numbers_points(tables, name, len(known)):
            said.append(f"Column '{name}' numbers the points, as an id does: {remedy}")
    return tuple(said)


def _numbers_points(tables: Sequence[Table], name: str, known: int) -> bool:
    """Whether a column holds whole numbers, each once or nearly so, as ids do."""
    values = np.concatenate([table.values(name) for table in tables])
    if (values != np.round(values)).any():
        return False
    if known == len(values):
        return float(values.max() - values.min()) == known - 1 or known > MANY or ID_NAME.search(name) is not None
    return known > 0.9 * len(values) and ID_NAME.search(name) is not None
