"""Tables in files, CSV or parquet: what cannot be used is named by file, line, column and value."""

from __future__ import annotations

import csv
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.errors import InputError
from fedsoft.images.formats import check_table
from fedsoft.machine import available

LONGEST = 40  # signs of a value in an error


def bad(file: Path, what: str) -> InputError:
    """An error about a file: one line of bounded length, whatever characters come from inside the file."""
    text = "".join(c if c.isprintable() else " " for c in f"file '{file.name}' {what}")
    return InputError(textwrap.shorten(text, 500, placeholder=" ..."))


def place(file: Path, row: int) -> str:
    """Where a point is, as people count: its line in a CSV file, under header and empty lines; else its row."""
    if file.suffix.lower() == ".csv":
        try:
            for line, at, _ in _lines(file):
                if at == row:
                    return f"line {line}"
        except (OSError, csv.Error):
            pass
    return f"row {row + 1}"


def _lines(file: Path) -> Any:
    """The line on which each point begins, its number from 0 (the header: -1), and its cells."""
    with file.open(newline="", encoding="utf-8", errors="replace") as stream:
        reader, at, line = csv.reader(stream), -1, 1
        for cells in reader:
            if cells:  # not an empty line
                yield line, at, cells
                at += 1
            line = reader.line_num + 1


def value(found: Any) -> str:
    """A value for an error: text in quotes, and not too long."""
    text = repr(found) if isinstance(found, str) else str(found)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


# --- reading ----------------------------------------------------------------------------------------------------------


def read_table(file: Path) -> Any:
    """A table with at least one row, its columns in the simplest types that hold them."""
    import pyarrow as pa

    read = _read_csv if file.suffix.lower() == ".csv" else _read_parquet
    try:
        table = read(file)
        table.validate(full=True)
        table = table.cast(pa.schema([(field.name, _plain(field.type)) for field in table.schema]))
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names that are not UTF-8
        raise _ragged(file, str(error)) or bad(file, f"is damaged or not a {file.suffix} file ({error})") from None
    if table.num_rows == 0:
        raise bad(file, "has no points, leave it out")
    return table


def _read_csv(file: Path) -> Any:
    from pyarrow import csv

    # One block: the types of the columns are guessed from the first block alone, and later ones may not contradict it.
    block = min(max(file.stat().st_size, 2**20), 2**31 - 1)
    return csv.read_csv(
        str(file),
        read_options=csv.ReadOptions(block_size=block),
        convert_options=csv.ConvertOptions(strings_can_be_null=True),
    )


def _read_parquet(file: Path) -> Any:
    from pyarrow import parquet

    # Not read_table: it would make further columns out of folders that are called like `year=2020`.
    with parquet.ParquetFile(str(file)) as opened:
        check_table(opened, file, available())
        return opened.read()


def _ragged(file: Path, problem: str) -> InputError | None:
    """The first line that has not a value for each column, where that is the problem."""
    if file.suffix.lower() != ".csv" or "Expected" not in problem:
        return None
    try:
        columns = 0
        for line, at, cells in _lines(file):
            columns = len(cells) if at < 0 else columns
            if len(cells) != columns:
                many = f"{len(cells)} value{'s' * (len(cells) != 1)}"
                return bad(file, f"has {many} in line {line}, should be {columns}, one for each column of line 1")
    except (OSError, csv.Error):
        pass
    return None


def _plain(type_: Any) -> Any:
    """The type to read a column as: categories as their values, decimals as floats, true and false as 1 and 0."""
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        return _plain(type_.value_type)
    if pa.types.is_decimal(type_):
        return pa.float64()
    if pa.types.is_boolean(type_):
        return pa.int64()
    # By name, since older versions of pyarrow do not know all of them.
    return pa.large_string() if str(type_) in ("string", "large_string", "string_view") else type_


# --- columns ----------------------------------------------------------------------------------------------------------


def numbers(file: Path, table: Any, name: str) -> np.ndarray:
    """A column of numbers, all of them finite."""
    column = _filled(file, table, name)
    if not _is_number(column.type):
        raise _no_numbers(file, column, name, "a number")
    return _finite(file, column.to_numpy(), name)


def labels(file: Path, table: Any, name: str) -> np.ndarray:
    """A column of numbers, or of text as an array of Python strings."""
    from pyarrow import types

    column = _filled(file, table, name)
    if not (_is_number(column.type) or types.is_large_string(column.type)):
        raise _no_numbers(file, column, name, "a number or text")
    found = np.array(column.to_numpy())  # a copy: the memory of a table is read-only, which torch does not like
    return found if found.dtype.kind == "O" else _finite(file, found, name)


def first_word(values: np.ndarray) -> int:
    """The first of some texts that is no number; the first of all where all are."""
    return next((row for row, text in enumerate(values.ravel().tolist()) if not _reads_as_number(text)), 0)


def type_name(type_: Any) -> str:
    """What numpy or pyarrow calls a type, but text in plain words."""
    return "text" if str(type_) == "large_string" or str(type_).startswith("<U") else str(type_)


def _filled(file: Path, table: Any, name: str) -> Any:
    """A column without empty cells."""
    column = table.column(name)
    if count := column.null_count:
        where = place(file, int(np.flatnonzero(column.is_null().to_numpy())[0]))
        if count == 1:
            raise bad(file, f"has 1 empty cell (nothing, NA or null) in column '{name}', {where}: fill it or drop it")
        cells = f"{count} empty cells (nothing, NA or null)"
        raise bad(file, f"has {cells} in column '{name}', the first in {where}: fill them or drop those rows")
    return column


def _is_number(type_: Any) -> bool:
    from pyarrow import types

    return types.is_integer(type_) or types.is_floating(type_)


def _no_numbers(file: Path, column: Any, name: str, wanted: str) -> InputError:
    from pyarrow import types

    row = first_word(np.array(column.to_numpy())) if types.is_large_string(column.type) else 0
    kind = type_name(column.type)
    found = f"{kind} {value(column[row].as_py())}" if kind == "text" else f"{value(str(column[row].as_py()))} ({kind})"
    return bad(file, f"has {found} in {place(file, row)}, column '{name}', should be {wanted}")


def _finite(file: Path, found: np.ndarray, name: str) -> np.ndarray:
    if found.dtype.kind == "f" and len(rows := np.flatnonzero(~np.isfinite(found))):
        row = int(rows[0])
        number = "NaN" if np.isnan(found[row]) else str(found[row])
        raise bad(file, f"has {number} in {place(file, row)}, column '{name}', should be a finite number")
    return found


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
