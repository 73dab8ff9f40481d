"""Finished runs by what was run, and their values over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.evaluation.scores import align
from fedsoft.reports.run_loader import Finished
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec
from fedsoft.storage.atomic import write_folder
from fedsoft.storage.files import read_json

NOTES, FAILURES = "paper-notes", "failures.json"


class Library:
    """The runs in a folder. A run is found by its spec, because folders are named after their content.

    Arguments:
        out: the folder.
        looks: only look at it: what is computed is kept in memory where no folder for it is there.
    """

    def __init__(self, out: Path, *, looks: bool = False) -> None:
        self.out, self.looks = out, looks
        self.notes: dict[str, Any] = {}
        self.known: dict[str, Finished] = {}
        self.memo: dict[tuple[str, ...], Any] = {}  # what is computed from finished runs, and does not change
        self.failures: dict[str, str] = self._read(FAILURES) or {}

    def has(self, spec: RunSpec) -> bool:
        return spec.id in self.known or (self.out / spec.id / "scores.json").exists()

    def get(self, spec: RunSpec) -> Finished | None:
        """A finished run; None where there is none yet."""
        if spec.id not in self.known and self.has(spec):
            folder = RunFolder.open(self.out / spec.id)
            scores = folder.scores()
            assert scores is not None
            self.known[spec.id] = Finished(folder, spec, scores, folder.records(), folder.info)
        return self.known.get(spec.id)

    def over(self, spec: RunSpec, seeds: Sequence[int]) -> list[Finished]:
        found = [self.get(spec.with_seed(seed)) for seed in seeds]
        return [run for run in found if run is not None]

    # --- runs that failed ---------------------------------------------------------------------------------------------

    def ended(self, spec: RunSpec) -> bool:
        """Whether that run is finished, or failed when it was tried last."""
        return self.has(spec) or spec.id in self.failures

    def forget_failures(self) -> None:
        """Failed runs are to be tried again."""
        self.failures = {}

    def add_failures(self, problems: dict[str, str]) -> None:
        """Runs that failed, with a sentence about each."""
        if problems:
            self.failures |= problems
            self._write(FAILURES, self.failures)

    # --- what is computed from runs and kept beside them --------------------------------------------------------------

    def note(self, kind: str, name: str, make: Callable[[], Any]) -> Any:
        """A plain value that takes a while to compute: made once, then read."""
        value = self.peek(kind, name)
        if value is None:
            value = make()
            self._write(f"{kind}-{name}.json", value)
        return value

    def peek(self, kind: str, name: str) -> Any:
        """Such a value if it was made; else None."""
        file = f"{kind}-{name}.json"
        return self.notes[file] if file in self.notes else self._read(file)

    def _read(self, name: str) -> Any:
        try:
            return read_json(self.out / NOTES / name)
        except (OSError, ValueError):
            return None

    def _write(self, name: str, value: Any) -> None:
        if self.looks and not (self.out / NOTES).is_dir():
            self.notes[name] = value
            return
        write_folder(self.out / NOTES, {name: (json.dumps(value) + "\n").encode()})


def aligned(centers: Sequence[Sequence[float]], higher_is_better: bool) -> list[list[float]]:
    """From `[center][source]` to `[source][center]`, the center that stands for source i in column i.

    >>> aligned([[68.4, 21.8], [29.5, 58.6]], higher_is_better=False)
    [[29.5, 68.4], [58.6, 21.8]]
    """
    table = np.asarray(centers, dtype=float)
    sources = align(table, higher_is_better)
    order = np.argsort(np.asarray(sources), kind="stable")
    return table[order].T.tolist()
