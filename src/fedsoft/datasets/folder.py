"""Your own data: a folder with one file for each client."""

from __future__ import annotations

from pathlib import Path

from fedsoft.core.federation import Federation
from fedsoft.data.client_files import files_in
from fedsoft.data.dataset_settings import dataset
from fedsoft.data.table_clients import federate
from fedsoft.data.table_settings import TableSettings
from fedsoft.settings import settings

__all__ = ["folder"]


@settings
class Folder(TableSettings):
    """One client for each `.npz`, `.csv` or `.parquet` file in a folder, named like the file without its ending.

    Arguments:
        path: of the folder; hidden files, folders inside it and files with other endings are ignored.
    """

    path: str | Path

    def federation(self) -> Federation:
        """Read the files."""
        return federate(files_in(Path(self.path)), self)


folder = dataset(Folder)
