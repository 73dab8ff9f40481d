"""paper: the tables and figures of the FedSoft paper, run again and reported beside the published values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from fedsoft.cli.common import DeviceOption, JsonOption, MemoryOption, OutOption, app, err, out, page, print_json
from fedsoft.errors import InputError, unknown

paper = typer.Typer(no_args_is_help=True, help="Reproduce the paper: every table and figure, published and obtained.")
app.add_typer(paper, name="paper", epilog="Example:  fedsoft paper run table1-synthetic")


def _items(incomplete: str) -> list[str]:
    from fedsoft.paper.items import ITEMS

    return [name for name in ITEMS if name.startswith(incomplete)]


ItemsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="ITEM...", help="See 'fedsoft paper ls'; all unless told.", autocompletion=_items),
]
ScaleOption = Annotated[
    str, typer.Option("--scale", help="paper, or fast for images with fewer rounds and smaller networks.")
]
SeedsOption = Annotated[int | None, typer.Option("--seeds", help="How many seeds; as each item has it unless told.")]
JobsOption = Annotated[int, typer.Option("--jobs", "-j", help="Processes; 0 for one per core.")]


@paper.command(epilog="Example:  fedsoft paper ls")
def ls(
    items: ItemsArgument = None, seeds: SeedsOption = None, jobs: JobsOption = 0, out_dir: OutOption = Path("runs"),
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """List the items, how many runs are finished, and what they take here at each scale, from measured step times."""
    from fedsoft.paper.items import SCALES
    from fedsoft.paper.library import Library
    from fedsoft.paper.run import chosen, seeds_of
    from fedsoft.paper.speed import core_seconds, forecast
    from fedsoft.reports.tables import duration
    from fedsoft.studies.farm import processes

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
            told = duration(time) if isinstance(time, float) and time else "no data" if time is None else "-"
            cells += [str(row[f"{scale}_runs"]), str(row[f"{scale}_finished"]), told]
        table.add_row(*cells)
    page().print(table)


@paper.command(epilog="Example:  fedsoft paper run table1-synthetic table6 --jobs 2")
def run(
    items: ItemsArgument = None, scale: ScaleOption = "fast", seeds: SeedsOption = None, jobs: JobsOption = 0,
    memory: MemoryOption = None, device: DeviceOption = "cpu", out_dir: OutOption = Path("runs"),
) -> None:  # fmt: skip
    """Run what the items need and is not saved already. Ctrl-C saves and stops; the same command goes on."""
    from fedsoft.paper.run import carry_out, chosen
    from fedsoft.progress import FarmProgress
    from fedsoft.studies.farm import even_share, processes

    many = processes(jobs)
    with FarmProgress(err, "the paper") as progress:
        done = carry_out(
            chosen(items or []),
            _scale(scale),
            _count(seeds),
            out_dir,
            jobs=many,
            share=even_share(many, device, None, memory),
            on_progress=progress.update,
        )
    if done is None:
        err.print("stopped and saved: the same command goes on from here")
        raise typer.Exit(130)
    for name, problem in done.failures.items():
        err.print(f"failed: {name}: {problem}", markup=False, highlight=False, soft_wrap=True)
    told = f"{done.runs} runs are there. Next: fedsoft paper report --scale {scale}"
    out.print(told, markup=False, highlight=False, soft_wrap=True)


@paper.command(epilog="Example:  fedsoft paper report --out paper.html")
def report(
    items: ItemsArgument = None, scale: ScaleOption = "fast", seeds: SeedsOption = None,
    file: Annotated[
        Path, typer.Option("--out", metavar="FILE.html", help="Where to write; .md and -data go beside it.")
    ] = Path("paper.html"),
    runs_dir: Annotated[
        Path, typer.Option("--runs", help="Folder that holds the runs.", envvar="FEDSOFT_RUNS")
    ] = Path("runs"),
    findings: Annotated[
        Path | None, typer.Option("--findings", metavar="FILE.md", help="Also write the verdicts alone.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Write one page with every item: published, ours, the difference, and a verdict by a stated rule."""
    from fedsoft.paper.report import write
    from fedsoft.paper.run import chosen

    found = write(chosen(items or []), _scale(scale), _count(seeds), runs_dir, file, findings)
    if json_:
        print_json({"path": str(file), "verdicts": found})
        return
    for name, sentence in found.items():
        out.print(f"{name}: {sentence}", markup=False, highlight=False, soft_wrap=True)
    out.print(f"Saved: {file}", markup=False, highlight=False, soft_wrap=True)
    if open_:
        typer.launch(file.resolve().as_uri())


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


def _scale(text: str):
    from fedsoft.paper.items import SCALES

    for scale in SCALES:
        if scale == text:
            return scale
    raise unknown("scale", text, SCALES)


def _count(seeds: int | None) -> int | None:
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds} is not allowed: should be at least 1")
    return seeds
