"""tune: learning rate, local epochs and settings of every method, on held-out points of clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedsoft.cli.common import app, parse_seeds, say, show_study, unless_stopped
from fedsoft.cli.options import JsonOption, PoolOptions, SpecOptions, grouped
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
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", metavar="KEY=X,Y,...", help="Values of an algorithm's setting, such as lam=0.01,0.1,1; default: "
            "those that it declares. May be repeated."
        ),
    ] = None,
    machine: PoolOptions,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Tune every method on held-out client points, under the client work of the preset. Test sets are not used.

    First learning rates and local epochs together; then, with the best of them, settings of the algorithm such as
    lambda; then values beyond the edge, where the best is there and no values were given.
    """
    from fedsoft.reports.trials import TuningReport
    from fedsoft.studies import tuning
    from fedsoft.studies.trials import Grid

    base = what.read()
    further = dict(_range(text) for text in grid or ())
    wanted = Grid.around(base, _numbers("--lr", lr, float), _numbers("--epochs", epochs, int), further=further)
    with machine.pool("tuning") as pool:
        done = tuning.tune(base, algorithms, parse_seeds(seeds), wanted, pool)
    folder = show_study(TuningReport(unless_stopped(done)), machine.out_dir, json_)
    if not json_:
        say(f"Use it: fedsoft compare {what.source} -a {folder / 'tuned.toml'} --budget work")


def _range(text: str) -> tuple[str, list[float]]:
    """Return `lam=0.01,0.1,1` as a setting and its values."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise InputError(f"--grid '{text}' is not allowed: should be a setting and its values, such as lam=0.01,0.1,1")
    return key, _numbers(f"--grid {key}", values, float) or []


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
