"""The project folder that `fedsoft flower init` writes. Its files are beside this one."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedsoft.errors import InputError

ADDRESS = "127.0.0.1:8000"  # of the SuperLink in server/superlink.service


def write_project(folder: Path) -> list[Path]:
    """Copy the project to a new folder; return the files that were written."""
    from fedsoft.flower.local_cluster.files import ClusterFiles, ClusterSettings

    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"'{folder}' is not empty: choose a new folder")
    shutil.copytree(Path(__file__).parent, folder, dirs_exist_ok=True, ignore=_ignored)
    (folder / "certificates.sh").chmod(0o755)
    ClusterFiles(folder).write_settings(ClusterSettings(ADDRESS, nodes=0))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _ignored(folder: str, names: list[str]) -> set[str]:
    """Return Python's own files: this one, and what it compiles."""
    mine = {"__init__.py"} if Path(folder) == Path(__file__).parent else set()
    return {name for name in names if name == "__pycache__" or name in mine}
