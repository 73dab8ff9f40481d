"""Progress of a run, for people who watch and for logs."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich import progress
from rich.console import Console

from fedsoft.centers.collapse import STANDS, standing
from fedsoft.centers.drift import changes
from fedsoft.reports.tables import duration
from fedsoft.runs.spec import RunSpec
from fedsoft.trust.guards import SILENT, exclusions, silence

LOG_EVERY = 5.0  # seconds between lines where nobody watches


class Progress:
    """A bar with the current errors on a terminal; a line now and then in a log file."""

    def __init__(self, console: Console, spec: RunSpec, done: int) -> None:
        self.console, self.spec, self.done = console, spec, done
        self.last, self.errors = time.monotonic(), ""
        self.recent: list[dict[str, Any]] = []
        self.told: set[str] = set()
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[errors]}", markup=False),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(spec.title, total=spec.rounds, completed=done, errors="")

    def update(self, record: dict[str, Any]) -> None:
        """A round was played."""
        self.done = record["round"] + 1
        self.errors = _errors(record) or self.errors  # not every round is scored
        self.bar.update(self.task, completed=self.done, errors=self.errors)
        self._warn(record)
        if not self.console.is_terminal and time.monotonic() - self.last >= LOG_EVERY:
            self.last = time.monotonic()
            where = f"round {self.done} of {self.spec.rounds}"
            self.console.print(f"{self.spec.title}: {where} {self.errors}", markup=False)

    def _warn(self, record: dict[str, Any]) -> None:
        """Say once what is wrong with a center, when it has been so for some rounds; and whose mixture changed."""
        for text in changes([record]):
            self.console.print(text, markup=False, soft_wrap=True)
        self.recent = [*self.recent, record][-max(STANDS, SILENT) :]
        for text in [*exclusions([record]), *standing(self.recent), *silence(self.recent)]:
            what = text.partition(" in ")[0] if text.startswith("client ") else text.partition(":")[0]
            if " excluded, such as " in what:  # the same reason in every round, with other names
                what = text.partition(": ")[2]
            if text.startswith("nobody answered"):
                what = "nobody answered"
            if what not in self.told:
                self.told.add(what)
                self.console.print(f"warning: after round {self.done} {text}", markup=False, soft_wrap=True)

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()


def _errors(record: dict[str, Any]) -> str:
    """The best center of every source, or each center on its clients where sources are not known, in a few words."""
    if not record.get("best"):
        own = [use["on_own"] for use in record.get("served", [])[:4]]
        return "centers " + " ".join("-" if value is None else f"{value:.3g}" for value in own) if own else ""
    return "best " + " ".join(f"{value:.3g}" for value in record["best"][:4])


class FarmProgress:
    """One bar for all runs of a comparison, a tuning or a table, with the time that is left."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.last = console, time.monotonic()
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.completed}/{task.total} runs, {task.fields[rounds]} rounds"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(title, total=None, rounds=0, left="")

    def update(self, now: Any) -> None:
        """Some runs have ended, some rounds were played."""
        left = f"{duration(now.left)} left" if now.left is not None and now.finished < now.total else ""
        self.bar.update(self.task, completed=now.finished, total=now.total, rounds=now.rounds, left=left)
        if not self.console.is_terminal and time.monotonic() - self.last >= LOG_EVERY:
            self.last = time.monotonic()
            told = f"{now.finished} of {now.total} runs finished, {now.rounds} rounds"
            self.console.print(f"{told}, {left}" if left else told, markup=False)

    def __enter__(self) -> FarmProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()


class Steps:
    """A bar for anything that comes in steps; a line now and then in a log file."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title, self.last = console, title, time.monotonic()
        self.bar = progress.Progress(console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task(title, total=None)

    def update(self, done: int, total: int) -> None:
        """So many of so many are done."""
        self.bar.update(self.task, completed=done, total=total)
        if not self.console.is_terminal and time.monotonic() - self.last >= LOG_EVERY:
            self.last = time.monotonic()
            self.console.print(f"{self.title}: {done} of {total}", markup=False)

    def __enter__(self) -> Steps:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()


class DownloadProgress:
    """A bar for each address that is downloaded from, with speed and time left; one line each in a log file."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, progress.TaskID] = {}

    def update(self, url: str, done: int, total: int | None) -> None:
        """So many bytes of an address are there."""
        if url not in self.tasks:
            self.tasks[url] = self.bar.add_task(url.rpartition("/")[2], total=total)
            self.console.print(f"Downloading {url} ...", soft_wrap=True, highlight=False, markup=False)
        self.bar.update(self.tasks[url], completed=done, total=total)

    def __enter__(self) -> DownloadProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
