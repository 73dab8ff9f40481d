"""Carry out a run, and resume it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

from fedsoft.core.federation import Federation
from fedsoft.engine.base import Engine
from fedsoft.errors import CallbackError, DivergedError, FilesGone, InputError, StoreError, WorkerLost
from fedsoft.runs.data_summary import DataSummary
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.info import RunInfo
from fedsoft.runs.origin import Origin
from fedsoft.runs.run_options import RunOptions, build, check_start, owners, reads_files
from fedsoft.runs.saving import Saving
from fedsoft.runs.spec import PATHS, RunSpec
from fedsoft.runs.user_code import check_code, digests
from fedsoft.settings import renamed
from fedsoft.training import Limit, Restarts, closing_work, play, remarks
from fedsoft.training.callbacks import Watch

NO_EARLY_STOPPING = (
    "early_stopping is not possible where clients are at nodes of a federation: they send no held-out scores in a run"
)


def place(spec: RunSpec, out: Path, *, again: bool = False) -> Path:
    """Return the folder for a run, named after its content so that the same run is found again. `again` counts up."""
    path, number = out / spec.id, 2
    while again and path.exists():
        path, number = out / f"{spec.id}-{number}", number + 1
    return path


def execute(
    spec: RunSpec, path: Path, options: RunOptions, *, again: bool = False, origin: Origin | None = None
) -> tuple[RunFolder, bool]:
    """Carry a run out, or resume it from its last good state. Return True when it is finished, False when stopped.

    A finished run is left as it is; `again`: its state is damaged. After a lost worker, rounds are played again from
    the last saved state, to the same bits. A new run with an `origin` begins where that one ends.
    """
    if options.keep is not None and options.keep < 1:
        raise InputError(f"keep = {options.keep} is not allowed: should be at least 1 round")
    if spec.early_stopping is not None and not isinstance(options.engine, str):
        raise InputError(NO_EARLY_STOPPING)
    if begun := path.exists():
        spec = RunFolder.open(path).spec(spec.allow)
    found = _opened(spec, RunFolder(path), options, again) if begun else _created(spec, path, options, origin)
    if found is None:
        return RunFolder(path), True
    folder, federation, engine = found
    rule = spec.early_stopping
    watch, restarts = Watch([*options.callbacks, *([] if rule is None else [rule])]), Restarts(engine)
    with contextlib.closing(engine), folder.lock(), renamed(owners(spec)), contextlib.closing(watch):
        engine.use_folder(folder.path)
        folder.diverge(None)
        seen: int | None = None
        while True:
            try:
                saving = Saving.resumed(folder, federation, engine, options, rule)
                if seen is None:
                    watch.start(saving.run, spec.rounds)
                    seen = saving.run.rounds
                return folder, _play_and_save(spec, saving, options, watch, seen)
            except WorkerLost as lost:
                seen = len(folder.records())
                restarts.after(lost, seen)
            except DivergedError as error:
                folder.diverge(str(error))
                raise
            except CallbackError as error:
                error.kept = f"the run is saved up to there: fedsoft resume {folder.path}"
                raise
            except InputError:  # a setting that only a round finds out about: such a run could never go on
                if not begun and not folder.records() and isinstance(options.engine, str):
                    folder.remove()
                raise


def _play_and_save(spec: RunSpec, saving: Saving, options: RunOptions, watch: Watch, seen: int) -> bool:
    """Play and save the rounds that are left; True when the run is finished, False when it was stopped.

    Callbacks have seen the first `seen` rounds.
    """
    run, folder, asked = saving.run, saving.folder, threading.Event()
    engine, limit = run.engine, Limit(spec.rounds, spec.work, spec.bytes)
    parent = folder.info.parent
    change = None if parent is None else parent.change
    rounds = play(
        engine, run.federation, run.state, list(run.history), limit, spec.score_every, watch, change
    )  # fmt: skip
    try:
        with stop_when_asked(asked, options.signals):
            for run.state, record in rounds:
                saving.add(record)
                if record.round > seen:
                    watch.round(run, record)
                if asked.is_set() or options.should_stop():
                    asked.set()
                    break
            saving.save()
    except CallbackError:
        saving.save()
        raise
    if watch.over(run.rounds) and (run.is_over or not engine.algorithm.closing_tasks(engine.model)):
        run.ended_by = watch.by
    if asked.is_set() and limit.fits(run.history, closing=closing_work(engine)) and not run.is_over:
        return False
    watch.end(run)
    saving.go_to_best()
    folder.conclude(run.outcome())
    return True


def resume(
    folder: RunFolder, options: RunOptions, *, again: bool = False, allow: Collection[str] = ()
) -> tuple[RunFolder, bool]:
    """Resume a run, see `execute`. Code outside of fedsoft that the folder names must be in `allow`."""
    return execute(folder.spec(allow), folder.path, options, again=again)


Opened = tuple[RunFolder, Federation, Engine]


def _created(spec: RunSpec, path: Path, options: RunOptions, origin: Origin | None) -> Opened:
    """Make the folder of a new run. Errors are raised before that."""
    federation, engine = build(spec, options, scale=None if origin is None else origin.scale)
    try:
        check_start(spec, engine)
        begun, parent = None, None
        if origin is not None:
            if not origin.joins:
                check_data(origin.folder, federation)
            begun, parent = origin.begin(federation, engine, options.say)
        about = _about(federation) if reads_files(spec) else ""
        info = RunInfo.here(spec, federation.fingerprint, about, options.keep, parent)
        info = replace(info, code=digests(spec))
        folder = RunFolder.create(path, spec, DataSummary.of(federation), info, begun)
    except BaseException:
        engine.close()
        raise
    for notice in federation.notices:
        options.say(notice)
    for remark in remarks(engine, federation):
        options.say(remark)
    return folder, federation, engine


def _opened(spec: RunSpec, folder: RunFolder, options: RunOptions, again: bool) -> Opened | None:
    """Make ready to resume a run; None where nothing is left to do."""
    check_code(folder, spec)
    over = not again and folder.scores() is not None
    if over and not reads_files(spec):
        return None
    if not over and folder.at_nodes and isinstance(options.engine, str):
        raise StoreError(
            f"the clients of run '{folder.name}' keep their state at nodes: go on with the command that "
            "began it (fedsoft run --engine flower, or fedsoft flower run)"
        )
    if not over and isinstance(options.engine, str) and (problem := folder.diverged) is not None:
        raise DivergedError(problem)  # the same numbers would come again; at nodes others may answer
    try:
        check_there(folder, spec, options.data)
    except FilesGone:
        if over:  # a finished run stands alone: there is nothing to compare it with
            return None
        raise
    scale = folder.data.scale if spec.parent is not None else None
    federation, engine = build(
        spec, replace(options, engine="local", address=None) if over else options, scale=scale
    )  # fmt: skip
    try:
        check_data(folder, federation)
    except BaseException:
        engine.close()
        raise
    if over:
        engine.close()
        return None
    return folder, federation, engine


def check_there(folder: RunFolder, spec: RunSpec, data: Path | None) -> None:
    """Raise where the files that a run began with are gone, if no other place is given."""
    named = [spec.dataset.settings[key] for key in PATHS if key in spec.dataset.settings]
    if data is None and named and not Path(named[0]).exists():
        raise FilesGone(
            f"the data of run '{folder.name}' is not there any more: '{named[0]}' does not exist", "data=..."
        )


def _about(federation: Federation) -> str:
    """Describe how files were read, and what makes it hard to learn from them."""
    return ". ".join(filter(None, [federation.about, *federation.notices, federation.unscaled]))


def check_data(folder: RunFolder, federation: Federation) -> None:
    """Raise where the data is not that which the run began with."""
    began, here = folder.info.data, federation.fingerprint
    if here.startswith(began):  # what is not known is not compared
        return
    half = len(here) // 2
    what, which = ("held-out points have", "them") if here[:half] == began[:half] else ("data has", "it")
    raise StoreError(
        f"the {what} changed since run '{folder.name}' began: put {which} back, or start a new run with --again"
    )


@contextlib.contextmanager
def stop_when_asked(asked: threading.Event, signals: bool) -> Iterator[None]:
    """Stop after the current round on Ctrl-C or SIGTERM; at once, with the last saved state, on a second one."""
    if not signals or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
