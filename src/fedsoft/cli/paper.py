"""paper: the tables and figures of the FedSoft paper, reproduced and reported beside the published values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from fedsoft.cli.common import Commands, app, err, page, print_json, say, unless_stopped
from fedsoft.cli.options import (
    JobsOption,
    JsonOption,
    OpenOption,
    OutOption,
    PageOption,
    PoolOptions,
    RunsOption,
    grouped,
)
from fedsoft.errors import InputError, unknown

paper = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Reproduce the paper: every table and figure, published and ours."
)
app.add_typer(paper, name="paper", epilog="Example:  fedsoft paper run table1-synthetic")


def _items(incomplete: str) -> list[str]:
    from fedsoft.paper.items import ITEMS

    return [name for name in ITEMS if name.startswith(incomplete)]


ItemsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="ITEM...", help="See 'fedsoft paper ls'; default: all.", autocompletion=_items),
]
ScaleOption = Annotated[
    str, typer.Option("--scale", help="paper, or fast for images with fewer rounds and smaller networks.")
]
SeedsOption = Annotated[int | None, typer.Option("--seeds", help="How many seeds; default: as many as each item has.")]


@paper.command(epilog="Example:  fedsoft paper ls")
def ls(
    items: ItemsArgument = None, seeds: SeedsOption = None, jobs: JobsOption = 0, out_dir: OutOption = Path("runs"),
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """List the items, how many runs are finished, and the time left at each scale, from measured step times."""
    from fedsoft.paper.item_kinds import SCALES
    from fedsoft.paper.library import Library
    from fedsoft.paper.run import chosen, seeds_of
    from fedsoft.paper.speed import core_seconds, forecast
    from fedsoft.reports.numbers import duration
    from fedsoft.studies.process_pool import processes

    library, many = Library(out_dir, looks=True), processes(jobs)
    found = chosen(items or [])
    rows = []
    for name, group in [*((item.id, [item]) for item in found), ("all", found)]:
        row: dict[str, object] = {"item": name, "title": group[0].title if len(group) == 1 else "runs are shared"}
        for scale in SCALES:
            expected = forecast(group, scale, lambda item, scale=scale: seeds_of(item, scale, _count(seeds)))
            wanted = {
                s.id: s for item in group for s in item.wanted(scale, seeds_of(item, scale, _count(seeds)), library)
            }
            row |= {
                f"{scale}_runs": sum(e.count for e in expected),
                f"{scale}_finished": sum(map(library.has, wanted.values())),
                f"{scale}_seconds": _known(core_seconds(expected, library) / many),
            }
        rows.append(row)
    if json_:
        print_json({"jobs": many, "items": rows})
        return
    table = Table(title=f"Time on this machine with {many} processes", title_justify="left", box=box.SIMPLE_HEAD)
    for head in ("item", "what", "paper: runs", "finished", "time", "fast: runs", "finished", "time"):
        table.add_column(head, justify="left" if head in ("item", "what") else "right")
    for row in rows:
        cells = [str(row[key]) for key in ("item", "title")]
        for scale in SCALES:
            time = row[f"{scale}_seconds"]
            text = duration(time) if isinstance(time, float) and time else "no data" if time is None else "-"
            cells += [str(row[f"{scale}_runs"]), str(row[f"{scale}_finished"]), text]
        table.add_row(*cells)
    page().print(table)


@paper.command(epilog="Example:  fedsoft paper run table1-synthetic table6 --jobs 2")
@grouped
def run(
    machine: PoolOptions, items: ItemsArgument = None, scale: ScaleOption = "fast", seeds: SeedsOption = None
) -> None:
    """Run what the items need and is not saved yet. Ctrl-C saves and stops; the same command resumes it."""
    from fedsoft.paper.run import carry_out, chosen

    with machine.pool("the paper") as pool:
        ended = carry_out(chosen(items or []), _scale(scale), _count(seeds), pool)
    done = unless_stopped(ended)
    for name, problem in done.failures.items():
        say(f"failed: {name}: {problem}", err)
    say(f"{done.runs} runs are saved. Next: fedsoft paper report --scale {scale}")


@paper.command(epilog="Example:  fedsoft paper report --out paper.html")
def report(
    items: ItemsArgument = None, scale: ScaleOption = "fast", seeds: SeedsOption = None,
    file: PageOption = Path("paper.html"), runs_dir: RunsOption = Path("runs"),
    findings: Annotated[
        Path | None, typer.Option("--findings", metavar="FILE.md", help="Also write the verdicts alone.")
    ] = None,
    open_: OpenOption = False, json_: JsonOption = False,
) -> None:  # fmt: skip
    """Write one page with every item: published, ours, the difference, and a verdict by a stated rule."""
    from fedsoft.paper.library import Library
    from fedsoft.paper.report import write
    from fedsoft.paper.run import chosen

    found = write(
        chosen(items or [], Library(runs_dir, looks=True)), _scale(scale), _count(seeds), runs_dir, file, findings
    )
    if json_:
        print_json({"path": str(file), "verdicts": found})
        return
    for name, sentence in found.items():
        say(f"{name}: {sentence}")
    say(f"Saved: {file}")
    if open_:
        typer.launch(file.resolve().as_uri())


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


def _scale(text: str):
    from fedsoft.paper.item_kinds import SCALES

    for scale in SCALES:
        if scale == text:
            return scale
    raise unknown("scale", text, SCALES)


def _count(seeds: int | None) -> int | None:
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds} is not allowed: should be at least 1")
    return seeds
