"""CSV files: how they are written, and what is wrong with those that cannot be read."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsoft.data.streams import bad
from fedsoft.errors import InputError

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}


@dataclass(frozen=True)
class CsvForm:
    """How CSV files are written: what separates their columns, the decimal point, and the encoding of their text."""

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"


USUAL = CsvForm()


def place(file: Path, row: int, form: CsvForm = USUAL) -> str:
    """Return where a point is, counted from 1: its line in a CSV file, with header and empty lines; else its row."""
    if file.suffix.lower() == ".csv":
        try:
            for line, at, _ in _lines(file, form):
                if at == row:
                    return f"line {line}"
        except (OSError, csv.Error):
            pass
    return f"row {row + 1}"


def _lines(file: Path, form: CsvForm = USUAL) -> Any:
    """Yield the line on which each point begins, its number from 0 (the header: -1), and its cells."""
    with file.open(newline="", encoding=form.encoding, errors="replace") as stream:
        reader, at, line = csv.reader(stream, delimiter=form.delimiter), -1, 1
        for cells in reader:
            if cells:  # not an empty line
                yield line, at, cells
                at += 1
            line = reader.line_num + 1


def read_csv(file: Path, form: CsvForm) -> Any:
    """Return the rows of a file as a table of pyarrow, without the spaces around names of columns and around text."""
    from pyarrow import csv

    # One block: the types of the columns are guessed from the first block alone, and later ones may not contradict it.
    block = min(max(file.stat().st_size, 2**20), 2**31 - 1)
    read = csv.read_csv(
        str(file),
        read_options=csv.ReadOptions(block_size=block, encoding=form.encoding),
        parse_options=csv.ParseOptions(delimiter=form.delimiter),
        convert_options=csv.ConvertOptions(strings_can_be_null=True, decimal_point=form.decimal),
    )
    return _trimmed(read.rename_columns([name.strip() for name in read.column_names]))


def _trimmed(rows: Any) -> Any:
    """Return text without the spaces around it, of which spreadsheets leave some; cells of spaces alone are empty."""
    from pyarrow import scalar, types
    from pyarrow.compute import call_function

    for place, field in enumerate(rows.schema):
        if types.is_string(field.type):
            text = call_function("utf8_trim_whitespace", [rows.column(place)])
            empty = call_function("equal", [text, scalar("", field.type)])
            rows = rows.set_column(place, field, call_function("if_else", [empty, scalar(None, field.type), text]))
    return rows


def ragged(file: Path, form: CsvForm) -> InputError | None:
    """Return an error about the first line of a CSV file without a value for each column, if there is one."""
    if file.suffix.lower() != ".csv":
        return None
    try:
        columns = 0
        for line, at, cells in _lines(file, form):
            columns = len(cells) if at < 0 else columns
            if len(cells) != columns:
                many = f"{len(cells)} value{'s' * (len(cells) != 1)}"
                return bad(file, f"has {many} in line {line}, should be {columns}, one for each column of line 1")
    except (OSError, csv.Error):
        pass
    return None


def foreign(file: Path, form: CsvForm) -> InputError | None:
    """Return an error about a CSV file in another encoding, or with other separators, than it is read with."""
    if file.suffix.lower() != ".csv":
        return None
    try:
        text = file.read_bytes().decode(form.encoding)
    except OSError:
        return None
    except LookupError:
        return bad(file, f"cannot be read with encoding = '{form.encoding}': no such encoding is known")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        shown = "UTF-8" if form.encoding == "utf-8" else form.encoding
        remedy = "save it as UTF-8, or give encoding = 'latin-1' or 'cp1252'"
        return bad(file, f"is not {shown} text (line {line}), likely Latin-1 or Windows-1252: {remedy}")
    head = next(iter(text.strip().splitlines()), "")
    for mark, name in SEPARATORS.items():
        if mark in head and form.delimiter not in head:
            given = "\\t" if mark == "\t" else mark
            remedy = f'save it with commas, or give delimiter = "{given}"'
            return bad(file, f"seems to separate its columns by {name}: {remedy}")
    return None
