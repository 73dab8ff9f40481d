"""Columns of tokens: whole numbers that are names, not amounts, one in each column or a sequence in each cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsoft.data.streams import bad
from fedsoft.data.tables import Table, value

LARGEST = 2**31


def tokens(table: Table, names: tuple[str, ...]) -> Any:
    """Return the tokens of columns: an array `[points, columns]`, or a sequence for each point of a single column."""
    several = [name for name in names if table.has_text(name) or table.has_lists(name)]
    if several and len(names) > 1:
        others = ", ".join(f"'{name}'" for name in names if name != several[0])
        raise bad(
            table.file, f"has sequences of tokens in column '{several[0]}', beside which {others} cannot be tokens, too"
        )
    if several:
        return _sequences(table, several[0])
    return np.column_stack([_whole(table, name) for name in names])


def _whole(table: Table, name: str) -> np.ndarray:
    found = table.numbers(name)
    wrong = (found != np.round(found)) | (np.abs(found) >= LARGEST)
    if len(rows := np.flatnonzero(wrong)):
        raise _no_token(table, name, int(rows[0]), str(found[rows[0]]))
    return found.astype(np.int64)


def _sequences(table: Table, name: str) -> np.ndarray:
    """Return the cells of a column, lists or text such as `12 7 3`, as an array of arrays."""
    cells = table.values(name)
    found = np.empty(len(cells), dtype=object)
    for row, cell in enumerate(cells.tolist()):
        parts = cell.split() if isinstance(cell, str) else cell
        try:
            read = np.array([int(part) for part in parts], dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            raise _no_token(table, name, row, value(cell)) from None
        if not len(read) or any(not isinstance(part, str) and part != int(part) for part in parts):
            raise _no_token(table, name, row, value(cell))
        found[row] = read
    return found


def _no_token(table: Table, name: str, row: int, cell: str) -> Exception:
    allowed = "tokens are whole numbers, such as 17 in a column or '12 7 3' in a cell"
    return bad(table.file, f"has {cell} in {table.place(row)}, column '{name}', should be tokens: {allowed}")
