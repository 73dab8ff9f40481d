"""report: runs as a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsoft.cli.common import app, say
from fedsoft.cli.options import AllowOption, OpenOption, PageOption, RunsOption, run_names


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
    file: PageOption = Path("report.html"),
    runs_dir: RunsOption = Path("runs"),
    allow: AllowOption = None,
    open_: OpenOption = False,
) -> None:  # fmt: skip
    """Write one or several runs, or a comparison, as a web page that needs no network.

    Several seeds of the same run become one page of means and standard deviations; different runs are shown side by
    side.
    """
    from fedsoft import __version__
    from fedsoft.reports.web_page import report as write

    made_by = f"Made by fedsoft {__version__}."
    page, text, data = write(names, runs_dir, file, made_by=made_by, allow=allow or ())
    say(f"Saved: {page} ({text.name}, {data.name})")
    if open_:
        typer.launch(page.resolve().as_uri())
