"""The ServerApp, which Flower starts for a run: any algorithm, over the grid."""

from __future__ import annotations

from functools import partial
from logging import WARNING
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from fedsoft.errors import FedsoftError
from fedsoft.escape import shown
from fedsoft.flower.server.engine import FlowerEngine
from fedsoft.flower.server.grid_transport import GridTransport
from fedsoft.flower.server.superlink_watch import raise_when_signalled
from fedsoft.flower.submission import Outcome, Submission, SubmittedRun
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.training.callbacks import TensorBoard

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out or resume a submitted run, and write down how it ended."""
    submitted = SubmittedRun(Path(str(context.run_config["submission"])))
    outcome = Outcome(run=context.run_id, error="the server's app was killed")
    try:
        with raise_when_signalled():
            finished = run_submission(submitted.submission(), grid)
        outcome = Outcome(run=context.run_id, finished=finished)
    except Exception as error:
        text = str(error) if isinstance(error, FedsoftError) else f"{type(error).__name__}: {error}"
        outcome = Outcome(run=context.run_id, error=text)
        raise
    finally:
        submitted.end(outcome)


def run_submission(submission: Submission, grid: Grid) -> bool:
    """Run it over a grid; True when it is finished, False when it was stopped."""
    spec = RunSpec.from_dict(submission.spec, submission.label, allow=submission.allow)
    engine = partial(FlowerEngine, transport=GridTransport(grid), submission=submission, notify=_log)
    logs = [] if submission.tensorboard is None else [TensorBoard(submission.tensorboard)]
    options = RunOptions(
        chunk=submission.chunk, memory=submission.memory, keep=submission.keep, engine=engine, signals=False,
        callbacks=logs,
    )  # fmt: skip
    return execute(spec, submission.folder, options)[1]


def _log(text: str) -> None:
    log(WARNING, "%s", shown(text))
