"""Your own data: one long table with a column that says whose point a row is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsoft.core.federation import Federation
from fedsoft.data.client_files import check_readable, one_table
from fedsoft.data.dataset_settings import dataset
from fedsoft.data.table_clients import federate
from fedsoft.data.table_settings import TableSettings
from fedsoft.data.tables import Table as Rows
from fedsoft.settings import settings

__all__ = ["table"]


@settings
class Table(TableSettings):
    """One table, `.csv` or `.parquet`, with a column that names the client of each row.

    Arguments:
        path: of the file; in Python also a data frame of pandas, or a table of pyarrow.
        client: the column with the names of clients.
    """

    path: Any
    client: str

    def federation(self) -> Federation:
        """Read the table."""
        if not isinstance(self.path, str | Path):
            return federate([Rows.of(self.path)], self, self.client)
        file = one_table(Path(self.path))
        check_readable(file)
        return federate([Rows.read(file, self.form)], self, self.client)


table = dataset(Table)
