"""List the runs of a folder, and find one by name."""

from __future__ import annotations

from pathlib import Path

from fedsoft.runs.folder import RunFolder
from fedsoft.runs.names import match_run, run_paths


def list_runs(root: Path) -> list[RunFolder]:
    """Return the runs in a folder, newest last."""
    return [RunFolder(path) for path in run_paths(root)]


def find_run(root: Path, name: str) -> RunFolder:
    """Open a run by path, by name, or by the beginning of its name."""
    return RunFolder.open(match_run(root, name))
