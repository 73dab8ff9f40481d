"""How far `fit` is: a bar in a terminal or a notebook."""

from __future__ import annotations

import html
import sys
import threading
import time
from typing import Any

from rich import progress
from rich.console import Console

from fedsoft.training.callbacks.base import Callback
from fedsoft.training.callbacks.scalars import headline
from fedsoft.training.records import RoundRecord
from fedsoft.training.run import Run

AFTER = 2.0  # seconds: what is shorter shows no bar


class Progress(Callback):
    """Show the rounds that are played, the current errors and the time left, for runs that take more than two seconds.

    `fit` has one by itself in a terminal and in a notebook; `FitOptions(progress=False)` has none.

    Arguments:
        after: seconds before it is shown.
        console: of rich, to show it on; default: standard error.
    """

    def __init__(self, after: float = AFTER, console: Console | None = None) -> None:
        self.after, self.console = after, console
        self.bar: _Terminal | _Notebook | None = None
        self.timer: threading.Timer | None = None
        self.lock = threading.Lock()

    @staticmethod
    def is_wanted() -> bool:
        """Whether somebody looks on: in a notebook, or at a terminal."""
        return in_notebook() or sys.stderr.isatty()

    def on_start(self, run: Run, rounds: int) -> None:
        self.close()
        bar = _Notebook() if self.console is None and in_notebook() else _Terminal(self.console)
        bar.title, bar.done, bar.total, bar.began = type(run.engine.algorithm).__name__, run.rounds, rounds, run.rounds
        self.bar = bar
        self.timer = threading.Timer(self.after, self._show)  # a single round may take longer than that
        self.timer.daemon = True
        self.timer.start()

    def on_round(self, run: Run, record: RoundRecord) -> None:
        with self.lock:
            if self.bar is not None:
                self.bar.done, self.bar.note = record.round, headline(record) or self.bar.note
                self.bar.update()

    def _show(self) -> None:
        with self.lock:
            if self.bar is not None:
                self.bar.show()

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        with self.lock:
            if self.bar is not None:
                self.bar.close()
            self.bar = self.timer = None


class _Bar:
    """What is shown."""

    def __init__(self) -> None:
        self.title, self.note, self.done, self.total, self.began = "", "", 0, 0, 0
        self.since = time.monotonic()

    @property
    def text(self) -> str:
        return ", ".join(part for part in (f"{self.done} of {self.total} rounds", self.note) if part)

    @property
    def left(self) -> float | None:
        """Seconds left, by the speed so far."""
        played = self.done - self.began
        return (time.monotonic() - self.since) / played * (self.total - self.done) if played else None


class _Terminal(_Bar):
    def __init__(self, console: Console | None) -> None:
        super().__init__()
        columns = (progress.TextColumn("{task.description}", markup=False), progress.BarColumn(bar_width=24),
                   progress.TextColumn("{task.fields[text]}", markup=False), progress.TimeElapsedColumn(),
                   progress.TimeRemainingColumn())  # fmt: skip
        self.bar = progress.Progress(*columns, console=console or Console(stderr=True))
        self.task: progress.TaskID | None = None

    def show(self) -> None:
        self.task = self.bar.add_task(self.title, total=self.total, completed=self.done, text=self.text)
        self.bar.start()

    def update(self) -> None:
        if self.task is not None:
            self.bar.update(self.task, completed=self.done, text=self.text)

    def close(self) -> None:
        if self.task is not None:
            self.bar.stop()


class _Notebook(_Bar):
    """One output of a cell that is replaced: IPython's own, so that nothing else has to be installed."""

    def __init__(self) -> None:
        super().__init__()
        self.handle: Any = None
        self.is_due = False

    def show(self) -> None:
        self.is_due = True  # a thread has no cell of its own: shown after the next round

    def update(self) -> None:
        from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

        if self.handle is not None:
            self.handle.update(HTML(self._html()))
        elif self.is_due:
            self.handle = display(HTML(self._html()), display_id=True)

    def close(self) -> None:
        pass

    def _html(self) -> str:
        left = self.left
        ahead = f", {left:.0f} s left" if left and self.done < self.total else ""
        bar = f'<progress value="{self.done}" max="{self.total}"></progress>'
        return f"<div>{html.escape(self.title)} {bar} {html.escape(self.text)}{ahead}</div>"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")
