"""Carry out a run, resume it, and load it again."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.engine.base import Engine
from fedsoft.errors import DivergedError, FilesGone, InputError, StoreError, WorkerLost
from fedsoft.machine.threads import one_thread
from fedsoft.runs.data_summary import DataSummary
from fedsoft.runs.find import find_run
from fedsoft.runs.folder import Checkpoint, RunFolder
from fedsoft.runs.info import RunInfo
from fedsoft.runs.run_options import RunOptions, build, build_engine, check_start, owners, reads_files
from fedsoft.runs.spec import PATHS, RunSpec
from fedsoft.settings import renamed
from fedsoft.storage.tensorfile import in_blocks
from fedsoft.training import Limit, Restarts, RoundRecord, Run, closing_work, play, remarks

SAVING_SHARE = 0.1  # of the time may go into saving; small states are then saved after every round


def place(spec: RunSpec, out: Path, *, again: bool = False) -> Path:
    """Return the folder for a run, named after its content so that the same run is found again. `again` counts up."""
    path, number = out / spec.id, 2
    while again and path.exists():
        path, number = out / f"{spec.id}-{number}", number + 1
    return path


def execute(spec: RunSpec, path: Path, options: RunOptions, *, again: bool = False) -> tuple[RunFolder, bool]:
    """Carry a run out, or resume it from its last good state. Return True when it is finished, False when stopped.

    A finished run is left as it is; `again`: its state is damaged. After a lost worker, rounds are played again from
    the last saved state, to the same bits.
    """
    if options.keep is not None and options.keep < 1:
        raise InputError(f"keep = {options.keep} is not allowed: should be at least 1 round")
    if begun := path.exists():
        spec = RunFolder.open(path).spec(spec.allow)
    found = _opened(spec, RunFolder(path), options, again) if begun else _created(spec, path, options)
    if found is None:
        return RunFolder(path), True
    folder, federation, engine = found
    asked, restarts = threading.Event(), Restarts(engine)
    with contextlib.closing(engine), folder.lock(), renamed(owners(spec)):
        engine.use_folder(folder.path)
        folder.diverge(None)
        while True:
            try:
                saving = _Saving.resumed(folder, federation, engine, options)
                run, limit = saving.run, Limit(spec.rounds, spec.work, spec.bytes)
                state, history = run.state, list(run.history)
                with stop_when_asked(asked, options.signals):
                    for run.state, record in play(engine, federation, state, history, limit, spec.score_every):
                        saving.add(record)
                        if options.on_round is not None:
                            options.on_round(record)
                        if asked.is_set() or options.should_stop():
                            asked.set()
                            break
                    saving.save()
                if asked.is_set() and limit.fits(run.history, closing=closing_work(engine)) and not run.is_over:
                    return folder, False
                folder.conclude(run.outcome())
                return folder, True
            except WorkerLost as lost:
                restarts.after(lost, len(folder.records()))
            except DivergedError as error:
                folder.diverge(str(error))
                raise
            except InputError:  # a setting that only a round finds out about: such a run could never go on
                if not begun and not folder.records() and isinstance(options.engine, str):
                    folder.remove()
                raise


def resume(
    folder: RunFolder, options: RunOptions, *, again: bool = False, allow: Collection[str] = ()
) -> tuple[RunFolder, bool]:
    """Resume a run, see `execute`. Code outside of fedsoft that the folder names must be in `allow`."""
    return execute(folder.spec(allow), folder.path, options, again=again)


Opened = tuple[RunFolder, Federation, Engine]


def _created(spec: RunSpec, path: Path, options: RunOptions) -> Opened:
    """Make the folder of a new run. Errors are raised before that."""
    federation, engine = build(spec, options)
    try:
        check_start(spec, engine)
        about = _about(federation) if reads_files(spec) else ""
        info = RunInfo.here(spec, federation.fingerprint, about, options.keep)
        folder = RunFolder.create(path, spec, DataSummary.of(federation), info)
    except BaseException:
        engine.close()
        raise
    for notice in federation.notices:
        options.say(notice)
    for remark in remarks(engine):
        options.say(remark)
    return folder, federation, engine


def _opened(spec: RunSpec, folder: RunFolder, options: RunOptions, again: bool) -> Opened | None:
    """Make ready to resume a run; None where nothing is left to do."""
    over = not again and folder.scores() is not None
    if over and not reads_files(spec):
        return None
    if not over and (folder.path / "federation.json").exists() and isinstance(options.engine, str):
        raise StoreError(
            f"the clients of run '{folder.name}' keep their state at nodes: go on with the command that "
            "began it (fedsoft run --engine flower, or fedsoft flower run)"
        )
    if not over and isinstance(options.engine, str) and (problem := folder.diverged) is not None:
        raise DivergedError(problem)  # the same numbers would come again; at nodes others may answer
    try:
        _check_there(folder, spec, options.data)
    except FilesGone:
        if over:  # a finished run stands alone: there is nothing to compare it with
            return None
        raise
    federation, engine = build(spec, replace(options, engine="local", address=None) if over else options)
    try:
        check_data(folder, federation)
    except BaseException:
        engine.close()
        raise
    if over:
        engine.close()
        return None
    return folder, federation, engine


def _check_there(folder: RunFolder, spec: RunSpec, data: Path | None) -> None:
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
    began = folder.info.data
    if began and began != federation.fingerprint:
        raise StoreError(
            f"the data has changed since run '{folder.name}' began: put it back, or start a new run with --again"
        )


def load(
    path: str | Path, *, device: str = "cpu", round: int | None = None, data: str | Path | bool = False,
    allow: Collection[str] = (), **settings: Any,
) -> Run:  # fmt: skip
    """Load a saved run: its centers, personal models and history. The data that it was trained on is not needed.

    Arguments:
        path: of the run, or the beginning of its name.
        device: `cpu` or `cuda`.
        round: as it was after this many rounds, for those that were kept; default: as it was saved last.
        data: whether to make or read the clients' points, too: True, or where their files are now if they were moved.
            They must be those that the run began with. Only scores of another round than the last need them.
        allow: code outside of fedsoft that the folder names and that may be imported, as `package.module:name`.
        settings: of the algorithm, to change those that matter for predictions only.
    """
    folder = find_run(Path(os.environ.get("FEDSOFT_RUNS", "runs")), str(path))
    spec = folder.spec(allow)
    changed = replace(spec, algorithm=replace(spec.algorithm, settings=spec.algorithm.settings | settings))
    federation, engine = _served(folder, changed, RunOptions(device=device), data)
    point = folder.checkpoint(round)
    if point is None and len(folder.records()) > 1:
        raise StoreError(f"'{folder.path / 'state.safetensors'}' is missing: the run cannot be resumed without it")
    state, done = _restore(point, engine)
    engine.at_hand = not (folder.path / "federation.json").exists()
    run = Run(federation, engine, state, folder.log.until(done))
    if data is False:
        outcome = folder.outcome()
        run.saved = outcome if outcome is not None and outcome.rounds == done and not settings else None
        run.lacking = f"this needs the points of the run's clients: load it with their data, load('{path}', data=True)"
    return run


def _served(
    folder: RunFolder, spec: RunSpec, options: RunOptions, data: str | Path | bool
) -> tuple[Federation, Engine]:
    """Return the federation and the engine of a saved run: without points, unless they are asked for."""
    if data is False:
        federation = folder.data.federation()
        return federation, build_engine(spec, options, federation)
    moved = None if data is True else Path(data)
    _check_there(folder, spec, moved)
    federation, engine = build(spec, replace(options, data=moved))
    check_data(folder, federation)
    return federation, engine


def _restore(point: Checkpoint | None, engine: Engine) -> tuple[State, int]:
    """Return a saved state, or the first one, and after how many rounds it was saved."""
    if point is None:
        with torch.no_grad(), one_thread():
            return engine.start(), 0
    centers, u = point.state.centers, point.state.mixture
    size, clients = engine.model.size, len(engine.names)
    if centers.ndim != 2 or centers.shape[1] != size or centers.dtype != engine.dtype:
        raise StoreError(f"the saved centers do not fit this run: should be {size} numbers of {engine.dtype} each")
    if u is not None and (u.shape != (clients, len(centers)) or not u.is_floating_point()):
        raise StoreError(f"the saved mixtures do not fit this run: should be {clients} x {len(centers)} numbers")
    if any(not value.ndim or len(value) != clients for value in point.state.per_client.values()):
        raise StoreError(f"the saved state does not fit this run: should have {clients} rows for its clients")
    engine.restore(in_blocks(point.client_states))
    on_device = {name: value.to(engine.device) for name, value in point.state.tensors().items()}
    return State.from_tensors(on_device), point.rounds


@dataclass
class _Saving:
    """Logs the rounds of a run, and saves its state: after every round while that is cheap, else less often."""

    folder: RunFolder
    run: Run
    keep: int | None  # the state of every `keep` rounds is kept
    saved: int  # rounds in the saved state
    cost: float = 0.0  # seconds that saving took
    last: float = field(default_factory=time.perf_counter)

    @staticmethod
    def resumed(folder: RunFolder, federation: Federation, engine: Engine, options: RunOptions) -> _Saving:
        """Go on from the last good state."""
        found = folder.last_good()
        if found.said:
            options.say(found.said)
            folder.put_aside(found)
        state, done = _restore(found.point, engine)
        run = Run(federation, engine, state, folder.log.cut(done))
        # Even a run of no rounds saves its initial weights.
        return _Saving(folder, run, options.keep or folder.info.keep, run.rounds if found.is_last else -1)

    def add(self, record: RoundRecord) -> None:
        self.folder.log.append(record)
        self.run.history.append(record)
        cheap = time.perf_counter() - self.last >= self.cost / SAVING_SHARE
        if self.run.engine.saves_every_round or cheap or self._kept():
            self.save()

    def save(self) -> None:
        """Save the state, unless that was done."""
        run = self.run
        if self.saved == run.rounds:
            return
        began = time.perf_counter()
        self.folder.save(Checkpoint(run.rounds, run.state, run.engine.client_states), keep=self._kept())
        self.saved, self.last = run.rounds, time.perf_counter()
        self.cost = self.last - began

    def _kept(self) -> bool:
        return bool(self.keep and self.run.rounds and self.run.rounds % self.keep == 0)


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
