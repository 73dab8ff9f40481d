"""A page as Markdown, and its numbers as CSV."""

from __future__ import annotations

import csv as csv_files
import io
import re
from collections.abc import Iterable

from fedsoft.escape import csv_cell, plain
from fedsoft.reports.page.blocks import Block, Cell, Code, Column, Figure, Page, Table, Text, Verdict, missing

VERDICTS = {True: "holds", False: "does not hold", None: ""}


def markdown(page: Page, files: str = "") -> str:
    """The page as Markdown. `files` is the folder, seen from there, that holds pictures and CSV files."""
    parts = [f"# {plain(page.title)}", plain(page.lead)]
    for section in page.closed:
        parts.append(f"## {plain(section.title)}")
        for block in section.blocks:
            parts += _block(block, files)
    if page.made_by:
        parts.append(f"*{plain(page.made_by)}*")
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block, files: str) -> Iterable[str]:
    if isinstance(block, Text):
        yield from (plain(paragraph) for paragraph in block.paragraphs)
    elif isinstance(block, Verdict):
        word = f" **({VERDICTS[block.holds]})**" if VERDICTS[block.holds] else ""
        yield f"> {plain(block.sentence)}{word}\n>\n> Rule: {plain(block.rule)}"
    elif isinstance(block, Code):
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", block.text)), default=0))
        yield f"{plain(block.title)}:\n\n{fence}\n{block.text.rstrip()}\n{fence}"
    elif isinstance(block, Table):
        yield f"**{plain(block.caption)}**"
        yield _rows(block)
        yield from (plain(note) for note in block.notes)
    else:
        yield f"**{plain(block.caption)}**"
        if files:
            yield f"![{plain(block.alt)}]({files}/{block.id}.svg)"
            yield f"Data: [{block.id}.csv]({files}/{block.id}.csv)"
        else:
            yield plain(block.alt)
        yield from (plain(note) for note in block.notes)


def _rows(table: Table) -> str:
    heads = [plain(column.title) for column in table.columns]
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("| " + " | ".join("--:" if column.numeric else "---" for column in table.columns) + " |")
    for row in table.rows:
        cells = [f"**{plain(cell.text)}**" if cell.best and cell.text else plain(cell.text) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def csv(page: Page) -> dict[str, str]:
    """Every table and every figure as a CSV file, by name; numbers in full."""
    blocks = [block for section in page.closed for block in section.blocks if isinstance(block, Table | Figure)]
    return {f"{block.id}.csv": _csv(block if isinstance(block, Table) else data_of(block)) for block in blocks}


def _csv(table: Table) -> str:
    """Means and standard deviations in columns of their own, and in the last one the runs of the row."""
    deviating = [any(row[i].std is not None for row in table.rows) for i in range(len(table.columns))]
    traced = any(cell.runs for row in table.rows for cell in row)
    heads: list[str | float] = []
    for column, deviates in zip(table.columns, deviating, strict=True):
        heads += [column.title, f"{column.title}, std"] if deviates else [column.title]
    lines = [heads + ["runs"] * traced]
    for row in table.rows:
        line: list[str | float] = []
        for cell, column, deviates in zip(row, table.columns, deviating, strict=True):
            line.append(raw(cell, column))
            if deviates:
                line.append("" if cell.std is None else cell.std)
        runs = dict.fromkeys(run.name for cell in row for run in cell.runs)
        lines.append(line + [" ".join(runs)] * traced)
    return csv_text(lines)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as the text of a CSV file."""
    text = io.StringIO()
    csv_files.writer(text, lineterminator="\n").writerows(map(csv_cell, row) for row in rows)
    return text.getvalue()


def raw(cell: Cell, column: Column) -> str | float:
    """The value of a cell in full; nothing where there is none."""
    if isinstance(cell.value, float | int):
        return "" if missing(cell.value) else cell.value
    if cell.value is not None:
        return cell.value
    return "" if column.numeric and cell.text in ("-", "") else cell.text


def data_of(figure: Figure) -> Table:
    """The values of a figure as a table, one row for each."""
    panels, spread, labels = len(figure.panels) > 1, False, False
    for series in (s for panel in figure.panels for s in panel.series):
        spread, labels = spread or bool(len(series.low)), labels or bool(len(series.labels))
    bars = any(panel.y.names for panel in figure.panels)
    first = figure.panels[0]
    heads = [Column("panel", numeric=False)] * panels + [Column("series", numeric=False)]
    heads += [Column("name", numeric=False)] * (labels or bars)
    axes = [first.x.label] if bars else [first.x.label, first.y.label if _same(figure) else "value"]
    heads += [Column(title) for title in axes] + [Column("low"), Column("high")] * spread
    rows = []
    for panel in figure.panels:
        title = [Cell(panel.title)] * panels
        for series in panel.series:
            for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
                name = panel.y.names[int(y)] if panel.y.names else series.labels[i] if len(series.labels) else ""
                values = [x] if bars else [x, y]
                if spread:
                    values += [series.low[i], series.high[i]] if len(series.low) else [float("nan")] * 2
                rows.append((*title, Cell(series.name), *[Cell(name)] * (labels or bars), *map(number_cell, values)))
        for level in panel.levels:
            values = [float("nan"), level.at, *[float("nan")] * (2 * spread)]
            rows.append((*title, Cell(level.name), *[Cell("")] * labels, *map(number_cell, values)))
    return Table(figure.id, figure.caption, tuple(heads), tuple(rows))


def _same(figure: Figure) -> bool:
    return len({panel.y.label for panel in figure.panels}) == 1


def number_cell(value: float) -> Cell:
    """A bare number, six digits shown."""
    return Cell("") if missing(value) else Cell(f"{value:.6g}", float(value))
