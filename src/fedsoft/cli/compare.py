"""compare: several algorithms on the same federations."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsoft.cli.common import (
    JsonOption,
    PoolOptions,
    SpecOptions,
    app,
    grouped,
    page,
    parse_seeds,
    print_json,
    say,
    unless_stopped,
)
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
        str, typer.Option("--budget", help="What all share: rounds, or client work or bytes of the first.")
    ] = "rounds",
    machine: PoolOptions,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Compare algorithms on the same federations with the same initial weights. Saved runs are not run again."""
    from fedsoft.reports.comparison import ComparisonReport
    from fedsoft.storage.atomic import write_folder
    from fedsoft.studies import compare as comparing

    if budget not in comparing.BUDGETS:
        raise unknown("budget", budget, comparing.BUDGETS)
    base, listed = what.read(), comparing.read_algorithms(algorithms)
    with machine.pool("comparing") as pool:
        done = comparing.compare(base, listed, parse_seeds(seeds), pool, budget=budget)
    found = unless_stopped(done)
    folder, report = machine.out_dir / found.name, ComparisonReport.of(found)
    write_folder(folder, {"comparison.csv": report.csv().encode(), "figure.png": report.png()})
    if json_:
        lost = [{"algorithm": label, "diverged": seeds} for label, seeds in report.failed.items()]
        rows = [*(row.to_dict() for row in report.rows), *lost]
        print_json({"budget": budget, "path": str(folder), "algorithms": rows, "worse": report.worse})
        return
    wide = page()
    for table in report.tables(wide.width):
        wide.print(table)
    for text in (*report.divergences, *report.worse):
        say(text)
    say(f"Saved: {folder} (comparison.csv, figure.png)")
