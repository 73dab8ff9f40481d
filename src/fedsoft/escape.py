"""Text from elsewhere, such as names of clients and labels, made harmless for where it is shown.

For web pages see `reports.page.html`, whose templates escape by themselves.
"""

from __future__ import annotations

import re


def shown(text: str, *, lines: bool = False) -> str:
    """For a terminal or a log: what would move the cursor, colour or turn the text is spelt out.

    With `lines` line ends and tabs stay, else they are spaces.

    >>> shown("a\\x1b[31mb\\u202ec\\nd") == "a\\\\x1b[31mb\\\\u202ec d"
    True
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c in "\n\t") else _spelt(c) for c in text)


def _spelt(sign: str) -> str:
    return " " if sign.isspace() else sign.encode("unicode_escape", "backslashreplace").decode("ascii")


def plain(text: object) -> str:
    """For Markdown: text that means nothing to it, whatever is in it, in one line.

    >>> print(plain("a|b <i> *c*"))
    a\\|b &lt;i&gt; \\*c\\*
    """
    line = shown(" ".join(str(text).split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", line)
    return re.sub(r"^([-+]|\d+\.)(?=\s)", r"\\\1", line)


def file_name(text: str) -> str:
    """For a file: letters, digits and `._-`; all else becomes `-`.

    >>> file_name("../ward 3 <b>")
    '..-ward-3--b-'
    """
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)
