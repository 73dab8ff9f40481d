"""recommend: what to ship to these clients."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsoft.cli.common import app, err, parse_seeds, show_study, unless_stopped
from fedsoft.cli.options import (
    DeviceOption,
    JsonOption,
    MachineOptions,
    MemoryOption,
    OutOption,
    SpecOptions,
    WorkersOption,
    grouped,
)


@dataclass(frozen=True)
class Question:
    """What to tune and decide by, on which splits, among what, and for how long."""

    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Tune and decide by it: accuracy, log_loss, f1, auc, mse, ...; "
            "default: accuracy of classes, squared error of values.",
        ),
    ] = None
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="TIME", help="Time for all trials, such as 10m; default: no end.")
    ] = None
    seeds: Annotated[
        str, typer.Option("--seeds", "--seed", metavar="A..B", help="Splits of points and clients, each tuned anew.")
    ] = "0"
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="A,B,...", help="Candidates: constant, fedavg, ifca, fedem, fedroute, local, "
                     "finetune, ditto, fedsoft, fedprior-1 (one center), fedprior (several), fedlevels; default: all."),
    ] = None  # fmt: skip

    def wanted(self) -> dict[str, Any]:
        """Return what the library is asked for."""
        from fedsoft.studies.recommend.clock import seconds_of

        return {
            "metric": self.metric, "budget": None if self.budget is None else seconds_of(self.budget),
            "only": None if self.only is None else [*map(str.strip, self.only.split(","))],
        }  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """What trials may use; they run one after the other in this process."""

    workers: WorkersOption = None
    memory: MemoryOption = None
    device: DeviceOption = "cpu"


@app.command(epilog="Example:  fedsoft recommend electricity --budget 10m --seeds 0..2 --metric log_loss")
@grouped
def recommend(
    what: SpecOptions, *, question: Question, machine: Machine, out_dir: OutOption = Path("runs"),
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
    from fedsoft.studies.recommend.study import Progress
    from fedsoft.studies.recommend.study import recommend as run

    base, wanted = what.read(), question.wanted()
    options = MachineOptions(machine.workers, machine.memory, machine.device).options()
    found = None
    with Bar(err, "trials") as bar:

        def show(now: Progress) -> None:
            bar.show("recommending", now.trials, None, f"{now.stage} {now.now}")

        with contextlib.suppress(KeyboardInterrupt):  # every trial that has ended is saved
            found = run(base, parse_seeds(question.seeds), out_dir, options, **wanted, on_progress=show)
    made_by = f"Made by fedsoft {__version__}."
    show_study(RecommendationReport(unless_stopped(found), made_by=made_by), out_dir, json_)
