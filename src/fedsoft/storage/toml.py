"""TOML text, read with limits on its length and depth."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from fedsoft.storage.files import LONGEST_TEXT

MOST_DIGITS = 1000  # of a number in a TOML file
MOST_KEYS = 16  # parts of a key such as a.b.c
MOST_BRACKETS = 16  # nested
# Text and comments. Those that are not closed end with the line or the file, so that nothing is scanned twice.
QUOTED = re.compile(
    r'"{3}(?:\\.|[^\\])*?(?:"{3,5}|\\?\Z)|"(?:\\[^\n]|[^"\\\n])*"?'
    r"|'{3}.*?(?:'{3,5}|\Z)|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)


def toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; raise ValueError if it is not TOML."""
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"it has more than {LONGEST_TEXT} characters")
    if any(len(word) >= MOST_DIGITS for word in re.findall(r"[0-9A-Fa-f_]+", text)):
        raise ValueError(f"it holds a number of more than {MOST_DIGITS} digits")  # Python cannot print long ones
    _check_depth(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check_depth(text: str) -> None:
    """Refuse TOML that is nested too deeply before it is read: the time and memory of that grow with the square."""
    marks = re.sub(r"[^\[\]{}.,=\n]+", "", QUOTED.sub("", text))  # adjacent dots are those of one key
    if "." * MOST_KEYS in marks:
        raise ValueError(f"it has a key of more than {MOST_KEYS} parts")
    depth = 0
    for mark in re.findall(r"[\[\]{}]", marks):
        depth = depth + 1 if mark in "[{" else max(depth - 1, 0)
        if depth > MOST_BRACKETS:
            raise ValueError(f"it has more than {MOST_BRACKETS} brackets inside each other")
