"""The reference: pages made from the code that they describe."""

from __future__ import annotations

from pathlib import Path

from website import commands, errors_page, public, settings_page

INDEX = """\
# Reference

Everything here is made from the code of this version: from its docstrings, its signatures and the texts of its errors.

| page | what it has |
| --- | --- |
| [Python](python.md) | every public name, with its arguments |
| [Commands](commands.md) | every command of `fedsoft` with all its options |
| [Settings](settings.md) | every key of a run's file, and the settings of every part, with defaults |
| [Errors](errors.md) | every sentence that fedsoft refuses something with: its cause and what to do |

What may change from one version to the next is on [stability](../stability.md).
"""


def write(target: Path) -> list[str]:
    """Write all pages under `target`; return their names."""
    folder = target / "reference"
    folder.mkdir()
    pages = {
        "index": INDEX, "python": public.page(), "commands": commands.page(), "settings": settings_page.page(),
        "errors": errors_page.page(),
    }  # fmt: skip
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, "utf-8")
    return [f"reference/{name}.md" for name in pages]
