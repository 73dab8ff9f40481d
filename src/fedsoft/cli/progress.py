"""Progress: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

from rich.console import Console

from fedsoft.reports.bar import Bar
from fedsoft.runs.spec import RunSpec
from fedsoft.training.callbacks.scalars import headline
from fedsoft.training.notices import SILENT, STANDS, Kind, collapse, drift, exclusions, members, silence
from fedsoft.training.records import RoundRecord


class Progress(Bar):
    """Rounds of one run with the current errors, and warnings."""

    def __init__(self, console: Console, spec: RunSpec, done: int) -> None:
        super().__init__(console, "rounds")
        self.spec, self.done, self.errors = spec, done, ""
        self.recent: list[RoundRecord] = []
        self.shown: set[tuple[Kind, str]] = set()
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
            if notice.key not in self.shown:
                self.shown.add(notice.key)
                self.console.print(f"warning: after round {self.done} {notice.text}", markup=False, soft_wrap=True)
