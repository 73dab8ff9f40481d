"""recommend: what to ship to these clients."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsoft.cli.common import (
    DeviceOption,
    JsonOption,
    MachineOptions,
    MemoryOption,
    OutOption,
    SpecOptions,
    WorkersOption,
    app,
    err,
    grouped,
    parse_seeds,
    show_study,
    unless_stopped,
)


@app.command(epilog="Example:  fedsoft recommend electricity --budget 10m --seeds 0..2 --metric log_loss")
@grouped
def recommend(
    what: SpecOptions,
    *,
    metric: Annotated[
        str | None,
        typer.Option("--metric", metavar="NAME", help="Tune and decide by it: accuracy, log_loss, f1, auc, mse, ...; "
                     "default: accuracy of classes, squared error of values."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="TIME", help="Time for all trials, such as 10m; default: no end.")
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", "--seed", metavar="A..B", help="Splits of points and clients, each tuned anew.")
    ] = "0",
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="A,B,...", help="Candidates: constant, fedavg, ifca, fedem, fedroute, local, "
                     "finetune, ditto, fedsoft, fedprior-1 (one center), fedprior (several); default: all."),
    ] = None,
    out_dir: OutOption = Path("runs"),
    workers: WorkersOption = None,
    memory: MemoryOption = None,
    device: DeviceOption = "cpu",
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Say what to ship: one model, fine-tuned copies, clusters, or personal models with a learned prior.

    Each is tuned on points that clients hold out for it, with the rounds and local epochs of the preset, and given more
    rounds until it has converged. The answer is the simplest one that is not clearly beaten there; its numbers are from
    other points, and from clients that took no part. See docs/recommend.md.
    """
    from fedsoft import __version__
    from fedsoft.reports.bar import Bar
    from fedsoft.reports.recommendation import RecommendationReport
    from fedsoft.studies.recommend.clock import seconds_of
    from fedsoft.studies.recommend.study import Progress
    from fedsoft.studies.recommend.study import recommend as run

    base, options = what.read(), MachineOptions(workers, memory, device).options()
    wanted: dict[str, Any] = {"metric": metric, "only": None if only is None else [*map(str.strip, only.split(","))]}
    wanted["budget"] = None if budget is None else seconds_of(budget)
    found = None
    with Bar(err, "trials") as bar:

        def show(now: Progress) -> None:
            bar.show("recommending", now.trials, None, f"{now.stage} {now.now}")

        with contextlib.suppress(KeyboardInterrupt):  # every trial that has ended is saved
            found = run(base, parse_seeds(seeds), out_dir, options, **wanted, on_progress=show)
    made_by = f"Made by fedsoft {__version__}."
    show_study(RecommendationReport(unless_stopped(found), made_by=made_by), out_dir, json_)
