"""List the runs of a folder, and find one by name."""

from __future__ import annotations

import os
from pathlib import Path

from fedsoft.errors import InputError
from fedsoft.runs.folder import RunFolder


def list_runs(root: Path) -> list[RunFolder]:
    """Return the runs in a folder, newest last."""
    if not root.is_dir():
        return []
    found = [RunFolder(path.parent) for path in root.glob("*/run.json") if not path.parent.name.startswith(".")]
    return sorted(found, key=lambda run: (run.path / "run.json").stat().st_mtime)


def find_run(root: Path, name: str) -> RunFolder:
    """Open a run by path, by name, or by the beginning of its name."""
    if (Path(name) / "run.json").exists() or Path(name).is_absolute() or os.sep in name:
        return RunFolder.open(Path(name))
    runs = list_runs(root)
    matches = [run for run in runs if run.name == name] or [run for run in runs if run.name.startswith(name)]
    if len(matches) == 1:
        return RunFolder.open(matches[0].path)
    if matches:
        raise InputError(f"'{name}' could be {', '.join(run.name for run in matches)}: give more of the name")
    there = (
        f"it holds {', '.join(run.name for run in runs[-5:])}"
        if runs
        else "it holds none: start one with 'fedsoft run'"
    )
    raise InputError(f"there is no run '{name}' in '{root}': {there}")
