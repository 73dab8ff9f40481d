"""export: write the models of a finished run for other programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedsoft.cli.common import app, err, print_json, say
from fedsoft.cli.options import JsonOption, grouped
from fedsoft.cli.saved import FormatOption, SavedRun, client_of
from fedsoft.errors import InputError


@app.command(epilog="Example:  fedsoft export synthetic-10-90-s0 --what client 3 --format onnx --out client-3")
@grouped
def export(
    saved: SavedRun,
    client: Annotated[str | None, typer.Argument(metavar="[K]", help="Which client, for --what client.")] = None,
    what: Annotated[str, typer.Option("--what", metavar="centers|clients|client K", help="What to write.")] = "centers",
    format_: FormatOption = "safetensors",
    out_dir: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write; default: exported/RUN/WHAT.")
    ] = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Write centers, or models of clients, as files that other programs read, with a model card. No pickles."""
    if what not in ("centers", "client", "clients"):
        raise InputError(f"--what '{what}' is not allowed: should be centers, clients, or client K")
    if what == "client" and client is None:
        raise InputError("--what client needs the number or name of a client after it")
    if what != "client" and client is not None:
        raise InputError(f"--what {what} '{client}' is not allowed: should be --what client '{client}'")
    from fedsoft.exports.export import export as write
    from fedsoft.exports.export import export_clients
    from fedsoft.reports.bar import Bar

    loaded = saved.load()
    run, about = loaded.run, {"format": format_, "spec": loaded.spec, "name": loaded.name}
    file = Path("exported") / loaded.name / what if out_dir is None else out_dir  # each run with its own scale and card
    if what == "clients":
        with Bar(err, "clients") as bar:
            each = export_clients(run, file, **about, on_step=partial(bar.show, "exporting"))
        models = [model for one in each for model in one.models]
        files = [f"{one.folder.name}/{part}" for one in each for part in one.files]
        some = ", ".join(models if len(models) <= 4 else [*models[:2], "...", models[-1]])
        listed = f"{len(models)} folder{'s' * (len(models) != 1)}: {some}"
    else:
        with err.status("exporting ..."):
            written = write(run, file, client=None if client is None else client_of(run, client), **about)
        models, files = written.models, written.files
        listed = ", ".join(files)
    if json_:
        print_json({"run": loaded.name, "path": str(file), "format": format_, "models": models, "files": files})
        return
    say(f"Saved: {file} ({listed})")
