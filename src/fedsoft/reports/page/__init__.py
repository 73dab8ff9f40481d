"""Reports as pages: building blocks, and the same page as HTML, Markdown, CSV and pictures."""

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
from fedsoft.reports.page.html import html, pictures
from fedsoft.reports.page.text import csv, csv_text, markdown

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
