"""Text from elsewhere, such as names of clients and labels, escaped for where it is shown.

For web pages see `reports.page.html`, whose templates escape by themselves.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
import warnings
from types import TracebackType
from typing import Any

FORMULA = ("=", "+", "-", "@")  # what a formula in a spreadsheet begins with


def shown(text: str, *, lines: bool = False) -> str:
    """For a terminal or a log: what would move the cursor, color or reverse the text is escaped.

    With `lines`, line ends and tabs stay; else they become spaces.

    >>> shown("a\\x1b[31mb\\u202ec\\nd") == "a\\\\x1b[31mb\\\\u202ec d"
    True
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c in "\n\t") else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return " " if character.isspace() else character.encode("unicode_escape", "backslashreplace").decode("ascii")


def guard_terminal() -> None:
    """Let what Python itself prints of libraries pass `shown`, too: warnings, last-resort logs, and tracebacks.

    They quote text from elsewhere: a label, the name of a file, a message of other code.
    """
    warned, thread = warnings.formatwarning, threading.excepthook
    if warned.__module__ == __name__:
        return

    def formatwarning(*args: Any, **kwargs: Any) -> str:
        return shown(warned(*args, **kwargs), lines=True)

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(shown("".join(traceback.format_exception(kind, error, trace)), lines=True))

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or issubclass(args.exc_type, SystemExit):
            thread(args)
        else:
            excepthook(args.exc_type, args.exc_value, args.exc_traceback)

    warnings.formatwarning, sys.excepthook, threading.excepthook = formatwarning, excepthook, in_thread
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Shown())


class _Shown(logging.Formatter):
    """Log lines of libraries as text."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record), lines=True)


def without_controls(text: str) -> str:
    """For a file that is more than text: control characters escaped, except line ends and tabs.

    >>> without_controls("a\\x1bb\\nc") == "a\\\\x1bb\\nc"
    True
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: _escaped(found[0]), text)


def plain(text: object) -> str:
    """For Markdown: the text in one line, without any markup.

    >>> print(plain("a|b <i> *c*"))
    a\\|b &lt;i&gt; \\*c\\*
    """
    line = shown(" ".join(str(text).split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", line)
    return re.sub(r"^([-+]|\d+\.)(?=\s)", r"\\\1", line)


def csv_cell(value: object) -> object:
    """For a CSV file: text that a spreadsheet would take for a formula has an apostrophe before it; numbers stay.

    >>> csv_cell("=HYPERLINK(A1)"), csv_cell("-1.5"), csv_cell("ward 3"), csv_cell(-2.0)
    ("'=HYPERLINK(A1)", '-1.5', 'ward 3', -2.0)
    """
    if not isinstance(value, str):
        return value
    text = shown(value)
    return f"'{text}" if text.lstrip()[:1] in FORMULA and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def file_name(text: str) -> str:
    """For a file: letters, digits and `._-`; all else becomes `-`.

    >>> file_name("../ward 3 <b>")
    '..-ward-3--b-'
    """
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)
