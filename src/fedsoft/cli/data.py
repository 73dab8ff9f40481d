"""data: the files of published data sets."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedsoft.cli.common import Commands, app, err, out, print_json, say
from fedsoft.cli.options import JsonOption
from fedsoft.errors import InputError
from fedsoft.storage.toml import toml

data = typer.Typer(
    cls=Commands,
    help="Find, download, check and look at the files of data sets.",
    epilog="Example:  fedsoft data ls",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(data, name="data")


def _names(incomplete: str) -> list[str]:
    from fedsoft.data.registry import COLLECTIONS

    return [name for name in COLLECTIONS if name.startswith(incomplete)]


def _datasets(incomplete: str) -> list[str]:
    from fedsoft import plugins

    return [name for name in plugins.names("datasets") if name.startswith(incomplete)]


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Data set; see 'fedsoft data ls'.", autocompletion=_names)
]
DirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder with the files; default: FEDSOFT_DATA, then the cache.")
]


@data.command(epilog="Example:  fedsoft data ls")
def ls(data_dir: DirOption = None, json_: JsonOption = False) -> None:
    """List the data sets that need files, and where these are."""
    from fedsoft.data import registry

    rows = []
    for name, wanted in registry.COLLECTIONS.items():
        found = registry.locate(wanted, data_dir)
        folder = str(next(iter(found.values())).parent) if found else None
        looked = [str(place) for place in registry.places(wanted, data_dir)]
        rows.append({"name": name, "about": wanted.about, "folder": folder, "looked_in": looked})
    if json_:
        print_json(rows)
        return
    table = Table("name", "what it is")
    table.add_column("where", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, [row["name"], row["about"], row["folder"] or f"- (fedsoft data fetch {row['name']})"]))
    out.print(table)


@data.command(epilog="Example:  fedsoft data fetch letters")
def fetch(name: NameArgument, data_dir: DirOption = None, json_: JsonOption = False) -> None:
    """Download the files of a data set that are missing, and check all of them. A broken download is resumed."""
    from fedsoft.data import fetch as fetching
    from fedsoft.reports.bar import Bar

    with Bar(err, "bytes") as bar:

        def show(url: str, done: int, total: int | None) -> None:
            if url not in bar.tasks:
                say(f"Downloading {url} ...", err)
            bar.show(url, done, total)

        report = fetching.fetch(name, data_dir, show)
    _print(report, json_)


@data.command(epilog="Example:  fedsoft data check letters --data-dir ~/data")
def check(name: NameArgument, data_dir: DirOption = None, json_: JsonOption = False) -> None:
    """Read all files of a data set; compare counts and checksums with the published ones."""
    from fedsoft.data import fetch as fetching

    _print(fetching.check(name, data_dir), json_)


def _print(report: Any, json_: bool) -> None:
    if json_:
        keys = ("name", "folder", "train", "test", "complete", "checksums", "verdict")
        print_json({key: getattr(report, key) for key in keys})
        return
    images = f"{report.train} training and {report.test} test images"
    count = f"{report.train} rows" if report.unit == "rows" else images
    text = f"{report.name}: {count} in {report.folder}: {report.verdict}"
    say(text)


@data.command(epilog="Example:  fedsoft data show letters --set 'rotations=[0, 90]' --out letters.png")
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Data set of images; see 'fedsoft list datasets'.",
                            autocompletion=_datasets)
    ],
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE.png", help="Where to write the picture.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of it; may be repeated.")
    ] = None,
    data_dir: DirOption = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Draw examples of every source with their labels."""
    from fedsoft import plugins
    from fedsoft.reports.contact_sheet import contact_sheet
    from fedsoft.storage.atomic import write_folder

    if out_file.suffix.lower() != ".png":
        raise InputError(f"--out '{out_file}' is not allowed: should end in .png")
    known = plugins.parameters(plugins.find("datasets", name, [name]))
    # One client with one point is enough, as the test images are drawn. Any number of sources should be possible.
    least = {"partition": "random", "clients": 1, "points": [1, 1], "held_out": 0.0}
    settings = {key: value for key, value in least.items() if key in known} | dict(map(_setting, set_ or []))
    if data_dir is not None:
        settings["data_dir"] = str(data_dir)
    fed = plugins.build("datasets", name, settings, [name])
    picture = contact_sheet(fed, _labels(name, fed.shape.outputs), name)
    write_folder(out_file.parent, {out_file.name: picture})
    if json_:
        print_json({"name": name, "file": str(out_file), "sources": list(fed.truth.names) if fed.truth else None})
        return
    say(f"Saved {out_file}")


def _setting(text: str) -> tuple[str, Any]:
    """Split `key=value`, with the value in TOML; a bare word is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set '{text}' is not allowed: should be key=value, for instance rotations=[0, 90]")
    try:
        return key.strip(), toml(f"x = {value}")["x"]
    except ValueError:
        return key.strip(), value.strip()


def _labels(name: str, classes: int) -> list[str]:
    """Return the names of the labels where they have names, else their numbers."""
    from fedsoft.data.registry import COLLECTIONS

    if name == "letters":
        return list(string.ascii_lowercase)
    known = COLLECTIONS[name].classes if name in COLLECTIONS else ()
    return list(known) if len(known) == classes else [str(label) for label in range(classes)]
