"""Empty cells of tables: rows that have some are left out, or the cells are filled; either is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedsoft.core.columns import Columns
from fedsoft.data.streams import bad
from fedsoft.data.table_settings import TableSettings, matches
from fedsoft.data.tables import Table

SHOWN = 4  # columns that a notice names


def without_empty(
    tables: Sequence[Table], columns: Columns, options: TableSettings, client: str | None
) -> tuple[list[Table], Columns, tuple[str, ...]]:
    """Return tables without empty cells, as `missing` says, what cells are filled by, and sentences about them."""
    used = options.used(columns, client)
    if options.missing == "drop":
        whole = [table.complete(used) for table in tables]
        return whole, columns, _left_out(tables, whole, used)
    needed = [name for name in used if name not in (columns.features or ())]
    whole = [table.complete(needed) for table in tables]
    said = _left_out(tables, whole, needed)
    columns = replace(columns, fills=_means(whole, columns, options))
    counts = sum((_empty(table, columns) for table in whole), Counter[str]())
    if counts:
        many = f"{sum(counts.values())} empty cells of {sum(map(len, whole))} rows are"
        many = many if sum(counts.values()) > 1 else many.replace("cells", "cell").replace("are", "is")
        said += (f"{many} filled by missing = 'fill': {_most(counts)}",)
    return [filled(table, columns, options.categorical) for table in whole], columns, said


def filled(table: Table, columns: Columns, categorical: Sequence[str] = ()) -> Table:
    """Return a table with its empty inputs filled: numbers by what `columns.fills` has, text by none.

    `categorical`: columns that are text although they hold numbers, before categories are known.
    """
    for name in _empty(table, columns):
        if name in columns.fills:
            if not (table.is_number(name) or table.is_empty(name)):
                table.complete([name]).numbers(name)  # says where there is text
            values = table.rows.column(name).to_pylist()
            numbers = np.array([np.nan if one is None else one for one in values], dtype=np.float64)
            table = table.with_column(name, np.where(table.empty(name), columns.fills[name], numbers))
        elif table.has_text(name) or table.is_empty(name) or name in columns.categories or matches(name, categorical):
            cells = table.rows.column(name).to_pylist()
            table = table.with_column(name, _text("" if cell is None else str(cell) for cell in cells))
    return table


def _text(cells: object) -> object:
    import pyarrow as pa

    return pa.array(cells, pa.large_string())


def empty_cells(table: Table, columns: Columns) -> int:
    """Return how many cells of inputs are empty."""
    return sum(_empty(table, columns).values())


def _empty(table: Table, columns: Columns) -> Counter[str]:
    """Return how many cells of each input are empty; tokens are no such inputs."""
    plain = [name for name in columns.features or () if name not in columns.tokens and name in table.names]
    return +Counter({name: int(table.empty(name).sum()) for name in plain})


def _means(tables: Sequence[Table], columns: Columns, options: TableSettings) -> Mapping[str, float]:
    """Return the mean of each column of numbers over the rows of all tables."""
    found = {}
    for name in columns.features or ():
        if name in columns.tokens or matches(name, options.categorical):
            continue
        typed = [table for table in tables if not table.is_empty(name)]
        if not typed:
            raise bad(tables[0].file, f"has no value in column '{name}', nor has any other: drop = ['{name}']")
        if all(table.is_number(name) for table in typed):
            values = np.concatenate([table.rows.column(name).to_numpy().astype(np.float64) for table in typed])
            values = values[np.isfinite(values)]
            found[name] = float(values.mean()) if len(values) else 0.0
    return found


def _left_out(before: Sequence[Table], after: Sequence[Table], names: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence about the rows that were left out for an empty cell in one of these columns, if any."""
    lost = {one.file.name: len(one) - len(two) for one, two in zip(before, after, strict=True) if len(two) < len(one)}
    if not lost:
        return ()
    count, points, most = sum(lost.values()), sum(map(len, before)), max(lost, key=lost.__getitem__)
    where = f"in {most}" if len(lost) == 1 else f"in {len(lost)} files, most of them ({lost[most]}) in {most}"
    rows = (
        f"{count} of {points} rows {'has' if count == 1 else 'have'} an empty cell and {'is' if count == 1 else 'are'}"
    )
    cells = Counter({name: sum(int(table.empty(name).sum()) for table in before) for name in names})
    return (f"{rows} left out, {where}: {_most(+cells)}",)


def _most(counts: Counter[str]) -> str:
    """Return the columns with the most empty cells."""
    shown = [f"{count} in column '{name}'" for name, count in counts.most_common(SHOWN)]
    return ", ".join([*shown, *(["..."] if len(counts) > SHOWN else [])])
