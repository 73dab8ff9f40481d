"""Reports as pages: building blocks, and the same page as HTML, Markdown, CSV and pictures."""

from typing import TYPE_CHECKING

from fedsoft.plugins import on_first_use
from fedsoft.reports.page.blocks import (
    Axis,
    Block,
    Cell,
    Code,
    Column,
    Figure,
    Level,
    Page,
    Panel,
    RunRef,
    Section,
    Series,
    Table,
    Text,
    Verdict,
    heads,
)
from fedsoft.reports.page.text import csv, csv_text, markdown

if TYPE_CHECKING:
    from fedsoft.reports.page.html import html, pictures

__all__ = [
    "Axis",
    "Block",
    "Cell",
    "Code",
    "Column",
    "Figure",
    "Level",
    "Page",
    "Panel",
    "RunRef",
    "Section",
    "Series",
    "Table",
    "Text",
    "Verdict",
    "csv",
    "csv_text",
    "heads",
    "html",
    "markdown",
    "pictures",
]

# Tables in the terminal need no templates.
__getattr__ = on_first_use(__name__, {"html": "html", "pictures": "html"})
