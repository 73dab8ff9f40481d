"""compare: several algorithms on the same federations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsoft.cli.common import (
    AddressOption,
    DeviceOption,
    EngineOption,
    FastOption,
    JsonOption,
    MemoryOption,
    OutOption,
    RoundsOption,
    SetOption,
    SourceArgument,
    app,
    changes,
    err,
    out,
    page,
    parse_seeds,
    print_json,
)
from fedsoft.errors import unknown


@app.command(epilog="Example:  fedsoft compare synthetic-10-90 -a fedsoft,ifca,fedem --seeds 0..4 --budget work")
def compare(
    source: SourceArgument,
    algorithms: Annotated[
        str,
        typer.Option(
            "--algorithms", "-a", metavar="A,B,...", help="Names, settings in brackets: ifca(S=3); or a file of 'tune'."
        ),
    ],
    seeds: Annotated[str, typer.Option("--seeds", metavar="A..B", help="Seeds: 0..4 or 0,1,7.")] = "0..2",
    budget: Annotated[
        str, typer.Option("--budget", help="What is the same for all: rounds, or the first one's client work or bytes.")
    ] = "rounds",
    fast: FastOption = False,
    set_: SetOption = None,
    rounds: RoundsOption = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes; 0 for one per core.")] = 0,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Cores for each process; an even share unless told.")
    ] = None,
    memory: MemoryOption = None,
    device: DeviceOption = "cpu",
    engine: EngineOption = "local",
    address: AddressOption = None,
    out_dir: OutOption = Path("runs"),
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Compare algorithms on the same federations with the same first values. What is saved already is not run again."""
    from fedsoft.progress import FarmProgress
    from fedsoft.reports import comparison as report
    from fedsoft.runs import spec as specs
    from fedsoft.runs.disk import write_folder
    from fedsoft.studies import compare as comparing
    from fedsoft.studies.farm import processes

    if budget not in comparing.BUDGETS:
        raise unknown("budget", budget, comparing.BUDGETS)
    base = specs.read(source, changes(set_, rounds), fast=fast)
    with FarmProgress(err, "comparing") as progress:
        found = comparing.compare(
            base,
            comparing.read_algorithms(algorithms),
            parse_seeds(seeds),
            out_dir,
            budget=budget,
            jobs=processes(jobs),
            device=device,
            workers=workers,
            memory=memory,
            engine=engine,
            address=address,
            on_progress=progress.update,
        )
    if found is None:
        err.print("stopped and saved: the same command goes on from here")
        raise typer.Exit(130)
    folder = out_dir / found.name
    write_folder(folder, {"comparison.csv": report.to_csv(found).encode(), "figure.png": report.figure(found)})
    if json_:
        lost = [{"algorithm": label, "diverged": seeds} for label, seeds in report.failed(found).items()]
        rows, worse = [*report.rows(found), *lost], report.worse_than_first(found)
        print_json({"budget": budget, "path": str(folder), "algorithms": rows, "worse": worse})
        return
    wide = page()
    for table in report.tables(found, wide.width):
        wide.print(table)
    for text in (*report.divergences(found), *report.worse_than_first(found)):
        out.print(text, markup=False, highlight=False, soft_wrap=True)
    out.print(f"Saved: {folder} (comparison.csv, figure.png)", markup=False, highlight=False, soft_wrap=True)
