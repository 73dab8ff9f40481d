"""leaderboard: all methods on all federations, every number with the run that it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsoft.cli.common import Commands, app, err, page, parse_seeds, print_json, say, unless_stopped
from fedsoft.cli.options import JsonOption
from fedsoft.errors import InputError

leaderboard = typer.Typer(
    cls=Commands, no_args_is_help=True,
    help="All methods on all federations: run cells, check them, take numbers of documents from them.",
)  # fmt: skip
app.add_typer(leaderboard, name="leaderboard", epilog="Example:  fedsoft leaderboard render README.md")

BoardOption = Annotated[Path, typer.Option("--board", metavar="FOLDER", help="Folder of the leaderboard.")]
FOLDER = Path("docs/leaderboard")


PlanOption = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE.toml", help="Federations, methods and seeds; default: ours.")
]
CellsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="FEDERATION[/METHOD[/BUDGET]]...", help="Which cells; default: all of the plan."),
]
SeedsOption = Annotated[str | None, typer.Option("--seeds", metavar="A..B", help="Default: those of the plan.")]


@leaderboard.command(epilog="Example:  fedsoft leaderboard ls synthetic-10-90")
def ls(
    cells: CellsArgument = None, plan: PlanOption = None, board: BoardOption = FOLDER, json_: JsonOption = False
) -> None:
    """List the cells: which are complete, and about how long what is missing would take on one core.

    Without names a line for each federation; with names a line for each cell.
    """
    from fedsoft.leaderboard.data import Board
    from fedsoft.leaderboard.listing import states
    from fedsoft.leaderboard.plan import read_plan
    from fedsoft.reports.numbers import duration
    from fedsoft.reports.tables import grid

    wanted = read_plan(plan)
    found = []
    for federation, methods, budgets in wanted.cells(cells or []):
        names = {f"{federation}/{method}/{budget}" for method in methods for budget in budgets}
        found += [one for one in states(Board(board), wanted, [federation], methods) if one.cell in names]
    if json_:
        print_json({"cells": [one.to_dict() for one in found], "seconds": sum(one.seconds for one in found)})
        return
    if cells:
        heads = ["cell", "state", "runs", "missing", "hash"]
        table = grid("Cells of the leaderboard", heads, left=["cell", "state", "hash"])
        for one in found:
            left = duration(one.seconds) if one.seconds else ""
            table.add_row(one.cell, one.state, f"{one.runs} of {one.wanted}", left, one.hash or one.why)
    else:
        kinds = ["complete", "partial", "not run", "not possible"]
        table = grid("Cells of the leaderboard", ["federation", *kinds, "missing"], left=["federation"])
        for federation in dict.fromkeys(one.cell.partition("/")[0] for one in found):
            here = [one for one in found if one.cell.startswith(f"{federation}/")]
            counts = [str(sum(one.state == kind for one in here)) for kind in kinds]
            seconds = sum(one.seconds for one in here)
            table.add_row(federation, *counts, duration(seconds) if seconds else "")
    page().print(table)
    say(f"What is missing takes about {duration(sum(one.seconds for one in found))} on one core.")
    if not cells:
        say("For the cells of one: fedsoft leaderboard ls FEDERATION")
    if not (board / "data").is_dir():
        say(f"There is no data in '{board}' (--board FOLDER).", err)


@leaderboard.command(epilog="Example:  fedsoft leaderboard run synthetic-10-90/ifca digits-2/fedsoft/bytes")
def run(
    cells: CellsArgument = None, seeds: SeedsOption = None,
    tune: Annotated[bool, typer.Option("--tune", help="Only tune; run no cell.")] = False,
    plan: PlanOption = None, board: BoardOption = FOLDER, json_: JsonOption = False,
) -> None:  # fmt: skip
    """Tune methods and run their cells, one run after the other. What is there is not run again; Ctrl-C stops.

    Methods are tuned on seeds that are not reported, by held-out points of clients, under the work of the federation's
    own run. Several federations can be filled at the same time, each by a process.
    """
    from fedsoft.leaderboard.data import Board
    from fedsoft.leaderboard.plan import read_plan
    from fedsoft.leaderboard.run import fill

    chosen = [] if tune else None if seeds is None else parse_seeds(seeds)
    done = unless_stopped(fill(Board(board), read_plan(plan), cells or [], chosen, say=lambda text: say(text, err)))
    if json_:
        print_json({"runs": done})
    else:
        say(f"{done} runs made. Next: fedsoft leaderboard build")


@leaderboard.command(epilog="Example:  fedsoft leaderboard build --out page.html")
def build(
    plan: PlanOption = None, board: BoardOption = FOLDER,
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="Default: board.html beside the data.")
    ] = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Write the page: HTML that needs no network, Markdown, and every table and figure as CSV and SVG."""
    from fedsoft.leaderboard.data import Board
    from fedsoft.leaderboard.page import board_page
    from fedsoft.leaderboard.plan import read_plan
    from fedsoft.reports.web_page import write_page

    written = write_page(board_page(Board(board), read_plan(plan)), file or board / "board.html")
    if json_:
        print_json({"files": [str(path) for path in written]})
    else:
        say(f"Saved: {', '.join(map(str, written))}. Next: fedsoft leaderboard render README.md docs/*.md")


@leaderboard.command(epilog="Example:  fedsoft leaderboard check synthetic-10-90/fedroute/work --seeds 9001")
def check(
    cell: Annotated[str, typer.Argument(metavar="FEDERATION/METHOD[/BUDGET]", help="Which cell.")],
    seeds: SeedsOption = None, plan: PlanOption = None, board: BoardOption = FOLDER, json_: JsonOption = False,
) -> None:  # fmt: skip
    """Make the runs of a cell again and compare them, to the bit, with the data. Exits with 1 where they differ."""
    from fedsoft.leaderboard.check import check as checked
    from fedsoft.leaderboard.data import Board, CellName
    from fedsoft.leaderboard.plan import read_plan
    from fedsoft.machine.resources import environment

    name, files = CellName.read(cell), Board(board)
    chosen = None if seeds is None else parse_seeds(seeds)
    found = checked(files, read_plan(plan), name, chosen, lambda text: say(text, err))
    same, data = all(one.same for one in found), files.read(name.federation)
    made = {} if data is None else data.environment
    if json_:
        print_json({"cell": str(name), "same": same, "runs": [vars(one) for one in found]})
    else:
        for one in found:
            say(one.sentence(name))
        here = environment()
        apart = [f"{key} {made.get(key)}" for key in ("python", "platform", "packages") if made.get(key) != here[key]]
        if not same and apart:
            say(f"The runs were made elsewhere ({', '.join(apart)}): last bits may differ.")
    if not same:
        raise typer.Exit(1)


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
