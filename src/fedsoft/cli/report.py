"""report: runs as a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsoft.cli.common import app, out, run_names


@app.command(epilog="Example:  fedsoft report runs/synthetic-10-90-s* --out report.html")
def report(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Names, beginnings of names, or paths of finished runs and comparisons.",
            autocompletion=run_names,
        ),
    ],
    file: Annotated[
        Path, typer.Option("--out", metavar="FILE.html", help="Where to write; .md and -data go beside it.")
    ] = Path("report.html"),
    runs_dir: Annotated[
        Path, typer.Option("--runs", help="Folder that holds the runs.", envvar="FEDSOFT_RUNS")
    ] = Path("runs"),
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:  # fmt: skip
    """Write one or several runs, or a comparison, as a web page that needs no network.

    The same run with several seeds becomes one page of means and deviations; different runs are set side by side.
    """
    from fedsoft import __version__
    from fedsoft.reports.webpage import report as write

    written = write(names, runs_dir, file, made_by=f"Made by fedsoft {__version__}.")
    page, text, data = written
    out.print(f"Saved: {page} ({text.name}, {data.name})", markup=False, highlight=False, soft_wrap=True)
    if open_:
        typer.launch(page.resolve().as_uri())
