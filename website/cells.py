"""Text in cells of Markdown tables."""

from __future__ import annotations


def cell(text: object) -> str:
    """Return text on one line, for the cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def code(value: object) -> str:
    """Return a value as code in a cell; nothing for nothing."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{' '.join(text.split())}`".replace("|", "\\|") if text else ""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)
