"""Submit a run to a federation and follow it to its end."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import TypeGuard

from fedsoft.errors import FedsoftError, InputError
from fedsoft.flower.local_cluster.cluster import LocalCluster
from fedsoft.flower.server.terms import read_terms
from fedsoft.flower.submission import Outcome, Submission, SubmittedRun
from fedsoft.runs.execute import NO_EARLY_STOPPING, stop_when_asked
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.storage.atomic import write_folder
from fedsoft.training.callbacks import Callback, TensorBoard

NODES = 4  # of a federation that is started for one run
LOOK = 0.2  # seconds between two looks at the run's folder
CHECK = 30.0  # seconds between two questions to Flower whether the run is still there
WATCH = 2.0  # seconds between two looks at the SuperLink
LAST = 60.0  # seconds that the server's app has to end by itself when its SuperLink or its run is gone
QUESTIONS = 3  # that Flower may leave unanswered in a row


def submit(spec: RunSpec, path: Path, options: RunOptions) -> tuple[RunFolder, bool]:
    """Start or resume a run; True when it is finished. See `runs.execute`."""
    if options.device != "cpu":
        raise InputError(f"device = '{options.device}' is not allowed: nodes compute on their CPU")
    if spec.early_stopping is not None:
        raise InputError(NO_EARLY_STOPPING)
    if named := [type(one).__name__ for one in options.callbacks if isinstance(one, Callback) and not _is_log(one)]:
        raise InputError(f"callbacks such as {named[0]} look at the run itself, which is not in this process: use "
                         "another engine, or TensorBoard without held_out")  # fmt: skip
    if options.address is not None:
        return follow(LocalCluster(Path(options.address).absolute()), spec, path, options)
    # The nodes' memory stays there until the run is finished, so that it can be resumed.
    own = LocalCluster(path.parent.absolute() / f".federation-{path.name[-40:]}")
    try:
        own.up(options.workers or NODES)
        folder, finished = follow(own, spec, path, options)
    finally:
        own.down()
    if finished:
        shutil.rmtree(own.folder, ignore_errors=True)
    return folder, finished


def follow(federation: LocalCluster, spec: RunSpec, path: Path, options: RunOptions) -> tuple[RunFolder, bool]:
    """Submit a run to a federation that is up, and wait for its end."""
    submitted = write_submission(federation, spec, path, options)
    follower = _Follower(federation, submitted, path, options)
    asked = threading.Event()
    with stop_when_asked(asked, options.signals):
        number = federation.submit(submitted.path)
        while (outcome := submitted.outcome()) is None:
            follower.report_rounds()
            if asked.is_set() or options.should_stop():
                if follower.lost is None:
                    federation.stop(number)
                return RunFolder.open(path), False
            if follower.given_up(number):
                break
            time.sleep(LOOK)
    follower.report_rounds()
    finished = follower.finished(number, outcome)
    return RunFolder.open(path), finished


def _is_log(callback: object) -> TypeGuard[TensorBoard]:
    """Whether the server's app can write it: of what the server knows, without a question to clients."""
    return isinstance(callback, TensorBoard) and not callback.held_out


def write_submission(federation: LocalCluster, spec: RunSpec, path: Path, options: RunOptions) -> SubmittedRun:
    """Write a run as the server's app reads it."""
    logs = [one.folder.absolute() for one in options.callbacks if _is_log(one)]
    submission = Submission(
        spec=spec.to_dict(), label=spec.label, folder=path.absolute(), terms=read_terms(federation.folder),
        allow=sorted(spec.allow), keys=federation.fingerprints, chunk=options.chunk, memory=options.memory,
        keep=options.keep, tensorboard=logs[0] if logs else None,
    )  # fmt: skip
    if spec.dataset.name != "nodes":  # nodes make only data that is described in this folder, not by the server
        write_folder(federation.presets, {f"{spec.hash}.toml": spec.to_toml().encode()})
    submitted = SubmittedRun(federation.folder / "submissions" / f"{path.name}.json")
    submitted.submit(submission)
    return submitted


class _Follower:
    """What is known about a submitted run while it is waited for."""

    def __init__(self, federation: LocalCluster, submitted: SubmittedRun, path: Path, options: RunOptions) -> None:
        self.federation, self.submitted, self.path, self.options = federation, submitted, path, options
        self.listeners = [one for one in options.callbacks if not isinstance(one, Callback)]
        self.reported = len(RunFolder(path).records())
        self.watched = self.checked = time.monotonic()
        self.lost: float | None = None  # since when there is no SuperLink
        self.over: float | None = None  # since when Flower says that the run is over
        self.unanswered = 0  # questions to Flower in a row

    def report_rounds(self) -> None:
        """Pass on rounds that are new in the run's log."""
        if self.listeners:
            records = RunFolder(self.path).records()
            for record in records[self.reported :]:
                for listener in self.listeners:
                    listener(record)
            self.reported = max(self.reported, len(records))

    def given_up(self, number: int) -> bool:
        """Whether there will be no outcome: SuperLink or run are gone, and the server's app had time to write one."""
        now = time.monotonic()
        since = self.lost or self.over
        if since is not None:
            return now - since > LAST
        if now - self.watched > WATCH:
            self.watched = now
            self.lost = now if self.federation.gone else None
        if self.lost is None and now - self.checked > CHECK:
            self.over = now if self._is_over(number) else None
            self.checked = time.monotonic()
        return False

    def _is_over(self, number: int) -> bool:
        """Ask Flower whether a run is over. On a busy machine it may miss a question or two."""
        try:
            over = self.federation.status(number).startswith("finished")
        except FedsoftError:
            self.unanswered += 1
            if self.unanswered < QUESTIONS or self.submitted.outcome() is not None:
                return False
            raise
        self.unanswered = 0
        return over

    def finished(self, number: int, outcome: Outcome | None) -> bool:
        """Return whether the run is finished; raises FedsoftError when it failed."""
        if self.lost is not None and (outcome is None or outcome.error is not None):
            raise FedsoftError(
                f"the SuperLink of '{self.federation.folder}' is gone: start it (with 'fedsoft flower up', or its "
                "service), then resume the run with the same command"
            )
        if outcome is None:
            log = self.federation.folder / "superlink.log"
            raise FedsoftError(f"Flower ended run {number} without an outcome: see '{log}'")
        if outcome.error is not None:
            raise FedsoftError(outcome.error)
        return outcome.finished
