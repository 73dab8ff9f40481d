"""choose: how many centers."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsoft.cli.common import app, parse_seeds, show_study, unless_stopped
from fedsoft.cli.options import JsonOption, PoolOptions, SpecOptions, grouped


@app.command(epilog="Example:  fedsoft choose synthetic-10-90 --S 1..6 --seeds 0..2 --jobs 2")
@grouped
def choose(
    what: SpecOptions,
    *,
    counts: Annotated[str, typer.Option("--S", metavar="A..B", help="Numbers of centers: 1..8 or 1,2,4.")] = "1..8",
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", help="An algorithm that has S; docs/choose.md says why this one.")
    ] = "fedem",
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the data; default: that of the preset.")
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="A..B", help="Seeds of the runs, all on the same data.")
    ] = "0..2",
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate; default: chosen by trial.")] = None,
    machine: PoolOptions,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Recommend a number of centers, or say that there is no cluster structure.

    By the held-out likelihood of clients' points (the smallest S within one standard error of the best), by whether all
    its centers are needed, and by whether seeds agree on who belongs together. An S that does not surely beat one
    center, or whose runs had not come to rest, is never recommended. Test sets are not used.
    """
    from fedsoft.reports.choice import ChoiceReport
    from fedsoft.studies import center_count

    base = what.read()
    base = base if seed is None else base.with_seed(seed)
    with machine.pool("choosing") as pool:
        done = center_count.choose(
            base, parse_seeds(counts, "--S"), pool, algorithm=algorithm, seeds=parse_seeds(seeds), lr=lr
        )
    show_study(ChoiceReport(unless_stopped(done)), machine.out_dir, json_)
