"""tune: learning rate and local epochs of every method, on held-out points of clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

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
    parse_seeds,
    print_json,
)
from fedsoft.errors import InputError


@app.command(epilog="Example:  fedsoft tune synthetic-10-90 -a fedsoft,ifca,fedem --lr 1e-3,5e-3,2e-2 --epochs 1,10")
def tune(
    source: SourceArgument,
    algorithms: Annotated[
        str, typer.Option("--algorithms", "-a", metavar="A,B,...", help="Names; settings in brackets: ifca(S=3).")
    ],
    seeds: Annotated[str, typer.Option("--seeds", metavar="A..B", help="Apart from those of any table.")] = "1000,1001",
    lr: Annotated[str | None, typer.Option("--lr", metavar="X,Y,...", help="Learning rates to try.")] = None,
    epochs: Annotated[str | None, typer.Option("--epochs", metavar="M,N,...", help="Local epochs to try.")] = None,
    set_: SetOption = None,
    fast: FastOption = False,
    rounds: RoundsOption = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes; 0 for one per core.")] = 0,
    memory: MemoryOption = None,
    device: DeviceOption = "cpu",
    engine: EngineOption = "local",
    address: AddressOption = None,
    out_dir: OutOption = Path("runs"),
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Tune every method on held-out client points, under the client work of the preset. Test sets are not looked at."""
    import json

    from fedsoft.progress import FarmProgress
    from fedsoft.reports.trials import table
    from fedsoft.runs import spec as specs
    from fedsoft.runs.disk import write_folder
    from fedsoft.studies import tuning
    from fedsoft.studies.farm import even_share, processes

    base = specs.read(source, changes(set_, rounds), fast=fast)
    grid = tuning.Grid.around(base, _numbers("--lr", lr, float), _numbers("--epochs", epochs, int))
    with FarmProgress(err, "tuning") as progress:
        found = tuning.tune(
            base,
            algorithms,
            parse_seeds(seeds),
            out_dir,
            grid=grid,
            jobs=processes(jobs),
            share=even_share(processes(jobs), device, None, memory, engine=engine, address=address),
            on_progress=progress.update,
        )
    if found is None:
        err.print("stopped and saved: the same command goes on from here")
        raise typer.Exit(130)
    folder = out_dir / found.name
    plain = found.to_dict()
    files = {"tuned.toml": found.to_toml(), "trials.json": json.dumps(plain, indent=1) + "\n"}
    write_folder(folder, {name: text.encode() for name, text in files.items()})
    if json_:
        print_json(plain | {"path": str(folder), "tuned": [trial.setting() for trial in found.best.values()]})
        return
    out.print(table(found))
    out.print(f"Saved: {folder}", markup=False, highlight=False, soft_wrap=True)
    out.print(
        f"Use it: fedsoft compare {source} -a {folder / 'tuned.toml'} --budget work", markup=False, soft_wrap=True
    )


def _numbers(option: str, text: str | None, kind: Callable[[str], float]) -> list[Any] | None:
    """`1e-3,5e-3` as numbers above 0."""
    if text is None:
        return None
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value < float("inf") for value in found):
        what = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{option} '{text}' is not allowed: should be {what} above 0 with commas between")
    return found
