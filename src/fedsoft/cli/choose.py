"""choose: how many sources there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsoft.cli.common import (
    DeviceOption,
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
    parse_seeds,
    print_json,
)


@app.command(epilog="Example:  fedsoft choose synthetic-10-90 --S 1..6 --seeds 0..2 --jobs 2")
def choose(
    source: SourceArgument,
    counts: Annotated[str, typer.Option("--S", metavar="A..B", help="Numbers of centers: 1..8 or 1,2,4.")] = "1..8",
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", help="One that has S; fedem unless told, see the docs for why.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the data; that of the preset unless told.")] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="A..B", help="Of the runs, all on the same data.")] = "0..2",
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate; found by trial unless told.")] = None,
    set_: SetOption = None,
    fast: FastOption = False,
    rounds: RoundsOption = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes; 0 for one per core.")] = 0,
    memory: MemoryOption = None,
    device: DeviceOption = "cpu",
    out_dir: OutOption = Path("runs"),
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Recommend a number of centers, or say that there is no cluster structure.

    By the held-out likelihood of clients' points (the smallest S within one standard error of the best), by whether all
    its centers are needed, and by whether seeds agree on who belongs together. Test sets are not looked at.
    """
    import json

    from fedsoft.progress import FarmProgress
    from fedsoft.reports.choice import choice_picture, choice_table
    from fedsoft.runs import spec as specs
    from fedsoft.runs.disk import write_folder
    from fedsoft.studies import choosing
    from fedsoft.studies.farm import even_share, processes

    base = specs.read(source, changes(set_, rounds), fast=fast)
    base = base if seed is None else base.with_seed(seed)
    with FarmProgress(err, "choosing") as progress:
        found = choosing.choose(
            base,
            parse_seeds(counts, "--S"),
            out_dir,
            algorithm=algorithm or choosing.ALGORITHM,
            seeds=parse_seeds(seeds),
            lr=lr,
            jobs=processes(jobs),
            share=even_share(processes(jobs), device, None, memory),
            on_progress=progress.update,
        )
    if found is None:
        err.print("stopped and saved: the same command goes on from here")
        raise typer.Exit(130)
    folder = out_dir / found.name
    plain = found.to_dict()
    files = {"choice.json": (json.dumps(plain, indent=1) + "\n").encode()}
    files |= {f"choice.{kind}": choice_picture(found, kind) for kind in ("png", "svg")}
    write_folder(folder, files)
    if json_:
        print_json(plain | {"path": str(folder)})
        return
    out.print(choice_table(found))
    out.print(f"Recommended: {found.verdict}", markup=False, highlight=False)
    for reason in found.reasons:
        out.print(f"- {reason}", markup=False, highlight=False)
    out.print(f"Saved: {folder}", markup=False, highlight=False, soft_wrap=True)
