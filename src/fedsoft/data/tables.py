"""Tables in files, CSV or parquet: what cannot be used is named by file, line, column and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.data.csv_files import USUAL, CsvForm, foreign, place, ragged, read_csv
from fedsoft.data.parquet import read_parquet
from fedsoft.data.streams import bad
from fedsoft.errors import InputError
from fedsoft.machine.resources import available

LONGEST = 40  # characters of a value in an error


def value(found: Any) -> str:
    """Return a value for an error: text in quotes, and not too long."""
    text = repr(found) if isinstance(found, str) else str(found)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


@dataclass(frozen=True)
class Table:
    """A table with at least one row, its columns in the simplest types that hold them, and the file that it is from."""

    file: Path
    rows: Any  # a table of pyarrow
    form: CsvForm = USUAL
    origin: np.ndarray | None = None  # where each row was in the file, if some were left out

    @staticmethod
    def read(file: Path, form: CsvForm = USUAL) -> Table:
        import pyarrow as pa

        try:
            rows = read_csv(file, form) if file.suffix.lower() == ".csv" else read_parquet(file, room=available())
            rows = _simplest(rows)
        except InputError:
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:  # ValueError: names that are not UTF-8
            found = foreign(file, form) or ragged(file, form)
            raise found or bad(file, f"is damaged or not a {file.suffix} file ({error})") from None
        suspicious = len(rows.column_names) == 1 or any("binary" in str(field.type) for field in rows.schema)
        if suspicious and (found := foreign(file, form)):
            raise found
        return Table(file, rows, form)._checked()

    @staticmethod
    def of(rows: Any, name: str = "table") -> Table:
        """Return a table in memory: one of pyarrow, a data frame of pandas, or a dictionary of columns."""
        import pyarrow as pa

        try:
            if isinstance(rows, Mapping):
                plain = {str(key): own if isinstance(own, list) else np.asarray(own) for key, own in rows.items()}
                rows = pa.table({key: pa.array(own) for key, own in plain.items()})
            elif not isinstance(rows, pa.Table):
                rows = pa.Table.from_pandas(rows, preserve_index=False)
            return Table(Path(name), _simplest(rows))._checked()
        except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
            raise (
                error if isinstance(error, InputError) else InputError(f"{name}: it cannot be read ({error})")
            ) from None

    def _checked(self) -> Table:
        if self.rows.num_rows == 0:
            raise bad(self.file, "has no points, leave it out")
        return self

    def __len__(self) -> int:
        return self.rows.num_rows

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return self.rows.column_names

    def place(self, row: int) -> str:
        """Return where a point is, counted from 1: its line in a CSV file, else its row."""
        return place(self.file, row if self.origin is None else int(self.origin[row]), self.form)

    def complete(self, names: Sequence[str]) -> Table:
        """Return the rows that have a value in each of these columns; raise InputError where there is none."""
        empty = np.zeros(len(self), dtype=bool)
        for name in names:
            empty |= self.empty(name)
        if empty.all():
            raise bad(self.file, "has an empty cell in every row, so that no points are left: leave it out")
        kept = np.flatnonzero(~empty)
        return self if len(kept) == len(self) else Table(self.file, self.rows.take(kept), self.form, kept)

    def empty(self, name: str) -> np.ndarray:
        """Return which cells of a column are empty."""
        return self.rows.column(name).is_null(nan_is_null=True).to_numpy()

    def is_empty(self, name: str) -> bool:
        """Whether a column has no value at all, so that its type is unknown."""
        from pyarrow import types

        return types.is_null(self.rows.column(name).type)

    def with_column(self, name: str, values: Any) -> Table:
        """Return the same with other values in a column."""
        place = self.names.index(name)
        return replace(self, rows=self.rows.set_column(place, name, [values]))

    def has_text(self, name: str) -> bool:
        """Whether a column holds text."""
        from pyarrow import types

        return types.is_large_string(self.rows.column(name).type)

    def is_number(self, name: str) -> bool:
        """Whether a column holds numbers."""
        return _is_number(self.rows.column(name).type)

    def has_lists(self, name: str) -> bool:
        """Whether a column holds a list in each cell."""
        from pyarrow import types

        kind = self.rows.column(name).type
        return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)

    def numbers(self, name: str) -> np.ndarray:
        """Return a column of numbers, all of them finite."""
        if not (self.is_number(name) or self.has_text(name) or self.is_empty(name)):
            raise self._no_numbers(name, "a number")  # dates and the like, which nothing fills
        column = self._filled(name)
        if not _is_number(column.type):
            raise self._no_numbers(name, "a number")
        return self._finite(column.to_numpy(), name)

    def labels(self, name: str) -> np.ndarray:
        """Return a column of numbers, or of text as an array of Python strings."""
        column = self._filled(name)
        if not (_is_number(column.type) or self.has_text(name)):
            raise self._no_numbers(name, "a number or text")
        found = np.array(column.to_numpy())  # a copy: the memory of a table is read-only, which torch does not like
        return found if found.dtype.kind == "O" else self._finite(found, name)

    def values(self, name: str) -> np.ndarray:
        """Return a column of any type, without empty cells."""
        return np.asarray(self._filled(name).to_numpy())

    def _filled(self, name: str) -> Any:
        """Return a column; raise InputError for empty cells."""
        column = self.rows.column(name)
        if count := column.null_count:
            where = self.place(int(np.flatnonzero(column.is_null().to_numpy())[0]))
            cells, first = ("1 empty cell", "") if count == 1 else (f"{count} empty cells", "the first in ")
            remedy = f"fill {'it' if count == 1 else 'them'}, or train with missing = 'fill' or missing = 'drop'"
            raise bad(self.file, f"has {cells} (nothing, NA or null) in column '{name}', {first}{where}: {remedy}")
        return column

    def _no_numbers(self, name: str, wanted: str) -> InputError:
        column, text = self.rows.column(name), self.has_text(name)
        row = first_word(np.array(column.to_numpy())) if text else int(np.argmin(self.empty(name)))
        cell = column[row].as_py()
        found = f"text {value(cell)}" if text else f"{value(str(cell))} ({column.type})"
        remedy = ""
        if _is_time(column.type):
            remedy = f": leave it out by drop = ['{name}'], or hold the last points out by split = {{time = '{name}'}}"
        return bad(self.file, f"has {found} in {self.place(row)}, column '{name}', should be {wanted}{remedy}")

    def _finite(self, found: np.ndarray, name: str) -> np.ndarray:
        if found.dtype.kind == "f" and len(rows := np.flatnonzero(~np.isfinite(found))):
            row = int(rows[0])
            number = "NaN" if np.isnan(found[row]) else str(found[row])
            raise bad(self.file, f"has {number} in {self.place(row)}, column '{name}', should be a finite number")
        return found


def first_word(values: np.ndarray) -> int:
    """Return the row of the first text that is not a number; 0 where all are. Cells that were filled have none."""
    return next((row for row, text in enumerate(values.ravel().tolist()) if text and not reads_as_number(text)), 0)


def reads_as_number(text: str) -> bool:
    """Whether text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_number(type_: Any) -> bool:
    from pyarrow import types

    return types.is_integer(type_) or types.is_floating(type_)


def _is_time(type_: Any) -> bool:
    from pyarrow import types

    return types.is_temporal(type_)


def _simplest(rows: Any) -> Any:
    """Return the same rows with values for categories, floats for decimals, and 1 and 0 for true and false."""
    import pyarrow as pa

    rows.validate(full=True)
    return rows.cast(pa.schema([(field.name, _plain(field.type)) for field in rows.schema]))


def _plain(type_: Any) -> Any:
    """Return the type to read a column as: values for categories, floats for decimals, 1 and 0 for true and false."""
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        return _plain(type_.value_type)
    if pa.types.is_decimal(type_):
        return pa.float64()
    if pa.types.is_boolean(type_):
        return pa.int64()
    # By name, since older versions of pyarrow do not know all of them.
    return pa.large_string() if str(type_) in ("string", "large_string", "string_view") else type_
