"""Progress: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich import filesize, progress
from rich.console import Console

from fedsoft.reports.numbers import duration
from fedsoft.runs.spec import RunSpec
from fedsoft.training.callbacks.scalars import headline
from fedsoft.training.notices import SILENT, STANDS, Kind, collapse, drift, exclusions, members, silence
from fedsoft.training.records import RoundRecord

LOG_EVERY = 5.0  # seconds between lines in a log


class Bar:
    """Bars on a terminal, one for each title; in a log a line now and then, and one at the end where there were any."""

    def __init__(self, console: Console, unit: str) -> None:
        self.console, self.unit = console, unit
        self.tasks: dict[str, progress.TaskID] = {}
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.fields[text]}", markup=False),
            progress.TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.logged, self.unlogged, self.has_logged = time.monotonic(), "", False

    def show(self, title: str, done: int, total: int | None, note: str = "", left: float | None = None) -> None:
        """Show how much is done. Seconds `left`; default: estimated from the speed so far."""
        if title not in self.tasks:
            self.tasks[title] = self.bar.add_task(title, total=total, completed=done, text="")
        task = self.tasks[title]
        self.bar.update(task, completed=done, total=total)
        left = self.bar.tasks[task].time_remaining if left is None else left
        ahead = f"{duration(left)} left" if left and (total is None or done < total) else ""
        text = ", ".join(part for part in (self._amount(done, total), note, ahead) if part)
        self.bar.update(task, text=text)
        self.unlogged = f"{title}: {text}"
        if time.monotonic() - self.logged >= LOG_EVERY:
            self._log()

    def _amount(self, done: int, total: int | None) -> str:
        if self.unit == "bytes":
            return filesize.decimal(done) + ("" if total is None else f" of {filesize.decimal(total)}")
        return f"{done} {self.unit}" if total is None else f"{done} of {total} {self.unit}"

    def _log(self) -> None:
        if not self.console.is_terminal and self.unlogged:
            self.console.print(self.unlogged, markup=False, highlight=False, soft_wrap=True)
            self.has_logged = True
        self.logged, self.unlogged = time.monotonic(), ""

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.has_logged:
            self._log()
        self.bar.stop()


class Progress(Bar):
    """Rounds of one run with the current errors, and warnings."""

    def __init__(self, console: Console, spec: RunSpec, done: int) -> None:
        super().__init__(console, "rounds")
        self.spec, self.done, self.errors = spec, done, ""
        self.recent: list[RoundRecord] = []
        self.told: set[tuple[Kind, str]] = set()
        self.show(spec.title, done, spec.rounds)

    def update(self, record: RoundRecord) -> None:
        """Show the round that was played."""
        self.done = record.round
        self.errors = headline(record) or self.errors  # not every round is scored
        self.show(self.spec.title, self.done, self.spec.rounds, self.errors)
        self._warn(record)

    def _warn(self, record: RoundRecord) -> None:
        """Say once what is wrong with a center, when it has been so for some rounds; and whose mixture changed."""
        for notice in [*members([record]), *drift([record])]:
            self.console.print(notice.text, markup=False, soft_wrap=True)
        self.recent = [*self.recent, record][-max(STANDS, SILENT) :]
        for notice in [*exclusions([record]), *collapse(self.recent), *silence(self.recent)]:
            if notice.key not in self.told:
                self.told.add(notice.key)
                self.console.print(f"warning: after round {self.done} {notice.text}", markup=False, soft_wrap=True)
