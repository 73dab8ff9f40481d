"""leaderboard: all methods on all federations, every number with the run that it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsoft.cli.common import Commands, JsonOption, app, print_json, say
from fedsoft.errors import InputError

leaderboard = typer.Typer(
    cls=Commands, no_args_is_help=True,
    help="All methods on all federations: run cells, check them, take numbers of documents from them.",
)  # fmt: skip
app.add_typer(leaderboard, name="leaderboard", epilog="Example:  fedsoft leaderboard render README.md")

BoardOption = Annotated[Path, typer.Option("--board", metavar="FOLDER", help="Folder of the leaderboard.")]
FOLDER = Path("docs/leaderboard")


@leaderboard.command(epilog="Example:  fedsoft leaderboard render README.md docs/comparison.md")
def render(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Markdown or HTML files with markers.")],
    board: BoardOption = FOLDER,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 where a file is stale.")] = False,
    json_: JsonOption = False,
) -> None:
    """Fill in the numbers and tables that markers in documents ask for, from the data of the leaderboard.

    A marker is <!-- board: FEDERATION/METHOD QUANTITY --> ... <!-- /board -->; docs/leaderboard.md has all forms.
    """
    from fedsoft.leaderboard.data import Board
    from fedsoft.leaderboard.markers import stale
    from fedsoft.storage.atomic import write_folder

    for file in files:
        if not file.is_file():
            raise InputError(f"'{file}' is not a file: give documents with markers")
    found = stale(files, Board(board))
    for path, text in () if check else found.items():
        write_folder(path.parent, {path.name: text.encode()})
    if json_:
        print_json({"stale": [str(path) for path in found], "written": not check})
    else:
        for path in found:
            say(f"{'stale' if check else 'written'}: {path}")
        if not found:
            say("every number is what the data says")
    if check and found:
        raise typer.Exit(1)
