"""Runs as a report on disk: one HTML file, the same as Markdown, and a folder of CSV files and pictures beside them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from fedsoft.errors import InputError
from fedsoft.reports.compare_page import comparison_page
from fedsoft.reports.page import Page, csv, html, markdown, pictures
from fedsoft.reports.run_loader import Group, read
from fedsoft.reports.run_page import run_page
from fedsoft.storage.atomic import write_folder


def page_of(groups: Sequence[Group], made_by: str = "") -> Page:
    """The page of one run over its seeds, or of a comparison."""
    return run_page(groups[0], made_by) if len(groups) == 1 else comparison_page(groups, made_by)


def write_page(page: Page, out: Path) -> list[Path]:
    """Write `NAME.html`, `NAME.md` and the folder `NAME-data`, each file whole or not at all; return their paths."""
    if out.suffix != ".html" or out.is_dir():
        raise InputError(f"--out '{out}' is not allowed: should be the name of a file that ends in .html")
    data = out.with_name(f"{out.stem}-data")
    files = csv(page) | pictures(page)
    write_folder(data, {name: text.encode() for name, text in files.items()})
    note = {out.with_suffix(".md").name: markdown(page, data.name).encode(), out.name: html(page).encode()}
    write_folder(out.parent, note)
    return [out, out.with_suffix(".md"), data]


def report(names: Sequence[str], root: Path, out: Path, made_by: str = "", allow: Collection[str] = ()) -> list[Path]:
    """Report the runs and comparisons of these names; code that their folders name must be in `allow`."""
    return write_page(page_of(read(names, root, allow), made_by), out)
