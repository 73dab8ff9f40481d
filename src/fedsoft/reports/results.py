"""What studies return in Python and save on the command line: tables, rows, CSV and a figure."""

from __future__ import annotations

import abc
import io
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedsoft.errors import InputError
from fedsoft.escape import shown
from fedsoft.reports.page import csv_text
from fedsoft.storage.atomic import write_folder

WIDTH = 110  # characters of a table in text


class StudyResult(abc.ABC):
    """The result of a study. `print` shows its tables; rows are plain values."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """A name made from the content."""

    @property
    @abc.abstractmethod
    def sentences(self) -> list[str]:
        """What there is to say about the tables."""

    @abc.abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return plain values, a dictionary for each row."""

    @abc.abstractmethod
    def tables(self, width: int = WIDTH) -> list[Table]:
        """Return tables for a terminal of this width."""

    @abc.abstractmethod
    def files(self) -> dict[str, bytes]:
        """Return the files that are saved, by name."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""

    @abc.abstractmethod
    def png(self) -> bytes:
        """Return a figure."""

    def to_csv(self, file: str | Path | None = None) -> str:
        """Return the rows as CSV, and write them where a file is given."""
        rows = self.rows()
        heads = list(dict.fromkeys(key for row in rows for key in row))
        text = csv_text([heads, *([row.get(key, "") for key in heads] for row in rows)])
        _write(file, text.encode())
        return text

    def to_pandas(self) -> Any:
        """Return the rows as a data frame; needs pandas."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_pandas needs the package 'pandas': pip install pandas") from None
        return pandas.DataFrame(self.rows())

    def figure(self, file: str | Path | None = None) -> bytes:
        """Return a figure as PNG, and write it where a file is given."""
        content = self.png()
        _write(file, content)
        return content

    def save(self, folder: str | Path) -> Path:
        """Write everything into a folder of the result's own name; return it."""
        place = Path(folder) / self.name
        write_folder(place, self.files())
        return place

    def __str__(self) -> str:
        with io.StringIO() as text:
            console = Console(file=text, width=WIDTH, color_system=None)
            for table in self.tables():
                console.print(table)
            return shown("\n".join([text.getvalue().rstrip("\n"), *self.sentences]), lines=True)

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        console = Console(file=io.StringIO(), width=WIDTH, record=True, force_jupyter=False)
        for table in self.tables():
            console.print(table)
        for sentence in self.sentences:
            console.print(shown(sentence), markup=False, highlight=False, soft_wrap=True)
        return console.export_html(inline_styles=True, code_format="<pre style='line-height:1.2'>{code}</pre>")


def _write(file: str | Path | None, content: bytes) -> None:
    if file is not None:
        write_folder(Path(file).parent, {Path(file).name: content})
