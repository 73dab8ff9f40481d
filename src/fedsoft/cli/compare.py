"""compare: several algorithms on the same federations."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from fedsoft.cli.common import app, parse_seeds, show_study, unless_stopped
from fedsoft.cli.options import JsonOption, PoolOptions, SpecOptions, grouped
from fedsoft.errors import unknown


@app.command(epilog="Example:  fedsoft compare synthetic-10-90 -a fedsoft,ifca,fedem --seeds 0..4 --budget work")
@grouped
def compare(
    what: SpecOptions,
    *,
    algorithms: Annotated[
        str,
        typer.Option(
            "--algorithms", "-a", metavar="A,B,...", help="Names, settings in brackets: ifca(S=3); or a file of 'tune'."
        ),
    ],
    seeds: Annotated[str, typer.Option("--seeds", metavar="A..B", help="Seeds: 0..4 or 0,1,7.")] = "0..2",
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            help="What all share: rounds, or client work or bytes of the first; or converged, each with twice the "
            "rounds as long as that helps.",
        ),
    ] = "rounds",
    brief: Annotated[bool, typer.Option("--brief", help="Show scores alone, without what they cost.")] = False,
    machine: PoolOptions,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Compare algorithms on the same federations with the same initial weights. Saved runs are not run again."""
    from fedsoft.reports.comparison import ComparisonReport
    from fedsoft.studies import compare as comparing
    from fedsoft.studies.methods import read_methods

    if budget not in comparing.BUDGETS:
        raise unknown("budget", budget, comparing.BUDGETS)
    base, listed = what.read(), read_methods(algorithms)
    with machine.pool("comparing") as pool:
        done = comparing.compare(base, listed, parse_seeds(seeds), pool, budget=budget)
    show_study(replace(ComparisonReport.of(unless_stopped(done)), brief=brief), machine.out_dir, json_)
