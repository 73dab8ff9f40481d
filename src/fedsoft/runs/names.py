"""Runs by name. Nothing heavy is imported here, so that a name that means none, or several, is reported at once."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedsoft.errors import InputError


def run_paths(root: Path) -> list[Path]:
    """Return the folders of the runs in a folder, newest last."""
    if not root.is_dir():
        return []
    found = [path.parent for path in root.glob("*/run.json") if not path.parent.name.startswith(".")]
    return sorted(found, key=lambda path: (path / "run.json").stat().st_mtime)


def match_run(root: Path, name: str) -> Path:
    """Return the folder of a run by its path, its name, or the beginning of its name."""
    if (Path(name) / "run.json").exists() or Path(name).is_absolute() or os.sep in name:
        return Path(name)
    runs = run_paths(root)
    of_preset = re.compile(rf"{re.escape(name)}-s\d+-[0-9a-f]{{12}}")  # and not of another algorithm on it
    matches = (
        [run for run in runs if run.name == name]
        or [run for run in runs if of_preset.fullmatch(run.name)]
        or [run for run in runs if run.name.startswith(name)]
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        several = ", ".join(run.name for run in matches)
        raise InputError(f"'{name}' could be {several}: give more of the name (the newest is {matches[-1].name})")
    there = (
        f"it holds {', '.join(run.name for run in runs[-5:])}"
        if runs
        else "it holds none: start one with 'fedsoft run'"
    )
    raise InputError(f"there is no run '{name}' in '{root}': {there}")
