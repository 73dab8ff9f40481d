"""tune: learning rate and local epochs of every method, on held-out points of clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedsoft.cli.common import (
    JsonOption,
    PoolOptions,
    SpecOptions,
    app,
    grouped,
    out,
    parse_seeds,
    print_json,
    say,
    unless_stopped,
)
from fedsoft.errors import InputError


@app.command(epilog="Example:  fedsoft tune synthetic-10-90 -a fedsoft,ifca,fedem --lr 1e-3,5e-3,2e-2 --epochs 1,10")
@grouped
def tune(
    what: SpecOptions,
    *,
    algorithms: Annotated[
        str, typer.Option("--algorithms", "-a", metavar="A,B,...", help="Names; settings in brackets: ifca(S=3).")
    ],
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="A..B", help="Seeds; use others than those of your results.")
    ] = "1000,1001",
    lr: Annotated[
        str | None,
        typer.Option("--lr", metavar="X,Y,...", help="Learning rates; default: 0.3, 1, 3 and 10 times the preset's."),
    ] = None,
    epochs: Annotated[
        str | None, typer.Option("--epochs", metavar="M,N,...", help="Local epochs; default: 1 and the preset's.")
    ] = None,
    machine: PoolOptions,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Tune every method on held-out client points, under the client work of the preset. Test sets are not used."""
    import json

    from fedsoft.reports.trials import table
    from fedsoft.storage.atomic import write_folder
    from fedsoft.studies import tuning

    base = what.read()
    grid = tuning.Grid.around(base, _numbers("--lr", lr, float), _numbers("--epochs", epochs, int))
    with machine.pool("tuning") as pool:
        done = tuning.tune(base, algorithms, parse_seeds(seeds), grid, pool)
    found = unless_stopped(done)
    folder = machine.out_dir / found.name
    plain = found.to_dict()
    files = {"tuned.toml": found.to_toml(), "trials.json": json.dumps(plain, indent=1) + "\n"}
    write_folder(folder, {name: text.encode() for name, text in files.items()})
    if json_:
        print_json(plain | {"path": str(folder), "tuned": [trial.setting() for trial in found.best.values()]})
        return
    out.print(table(found))
    say(f"Saved: {folder}")
    say(f"Use it: fedsoft compare {what.source} -a {folder / 'tuned.toml'} --budget work")


def _numbers(option: str, text: str | None, kind: Callable[[str], float]) -> list[Any] | None:
    """Return `1e-3,5e-3` as numbers above 0."""
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
