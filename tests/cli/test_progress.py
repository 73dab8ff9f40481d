"""Progress on a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedsoft.reports import bar as progress
from fedsoft.reports.bar import Bar


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=120, legacy_windows=False), text


def test_downloads_have_a_bar_each() -> None:
    shown, text = console(terminal=True)
    with Bar(shown, "bytes") as bar:
        bar.show("https://somewhere/a.zip", 0, None)
        bar.show("https://somewhere/a.zip", 500_000, 2_000_000)
        bar.show("https://somewhere/b.zip", 7, 7)
        assert [(task.completed, task.total) for task in bar.bar.tasks] == [(500_000, 2_000_000), (7, 7)]
    assert "500.0 kB of 2.0 MB" in text.getvalue()


def test_the_first_frame_has_no_count_that_is_not_known() -> None:
    shown, text = console(terminal=True)
    with Bar(shown, "runs") as bar:
        bar.bar.refresh()
        bar.show("comparing", 0, 6, "0 rounds", 90.0)
        bar.bar.refresh()
    assert "None" not in text.getvalue()
    assert "0 of 6 runs, 0 rounds, 90 s left" in text.getvalue()


def test_a_log_ends_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, text = console(terminal=False)
    with Bar(shown, "runs") as bar:
        bar.show("comparing", 1, 6)  # too soon for a line
        monkeypatch.setattr(progress, "LOG_EVERY", 0.0)
        bar.show("comparing", 2, 6, left=30.0)
        monkeypatch.setattr(progress, "LOG_EVERY", 60.0)
        bar.show("comparing", 5, 6)
        bar.show("comparing", 6, 6, left=0.0)
    assert text.getvalue().splitlines() == ["comparing: 2 of 6 runs, 30 s left", "comparing: 6 of 6 runs"]


def test_what_ends_at_once_leaves_no_line_in_a_log() -> None:
    shown, text = console(terminal=False)
    with Bar(shown, "steps") as bar:
        bar.show("exporting", 1, 1)
    assert text.getvalue() == ""
