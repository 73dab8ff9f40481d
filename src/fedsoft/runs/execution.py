"""A run carried out to the end, taken up where it was left, and loaded again."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fedsoft.checks import renamed
from fedsoft.engines import whole_runs
from fedsoft.errors import DivergedError, FilesGone, InputError, StoreError, WorkerLost
from fedsoft.federation import Federation
from fedsoft.runs.finding import find_run
from fedsoft.runs.folder import Checkpoint, RunFolder
from fedsoft.runs.spec import PATHS, RunSpec
from fedsoft.runs.stage import Stage, build, owners, reads_files
from fedsoft.simulate import Engine
from fedsoft.tensorfile import in_blocks
from fedsoft.threads import one_thread
from fedsoft.training import Limit, Mending, Run, closing_work, crowded, play

SAVING_SHARE = 0.1  # of the time may go into saving; small states are then saved after every round


def place(spec: RunSpec, out: Path, *, again: bool = False) -> Path:
    """The folder for a run: named after its content, so that the same run is found again. `again` counts up."""
    path, number = out / spec.id, 2
    while again and path.exists():
        path, number = out / f"{spec.id}-{number}", number + 1
    return path


def execute(spec: RunSpec, path: Path, stage: Stage) -> tuple[RunFolder, bool]:
    """Carry a run out, or take it up where it was left. True when it is finished, False when it was stopped."""
    if stage.keep is not None and stage.keep < 1:
        raise InputError(f"keep = {stage.keep} is not allowed: should be at least 1 round")
    if path.exists():
        return carry_on(RunFolder.open(path), stage)
    if (elsewhere := whole_runs(stage.engine)) is not None:
        return elsewhere(spec, path, stage)
    federation, engine = build(spec, stage)  # complaints come before a folder is made
    with contextlib.closing(engine):
        told = _told(federation) if reads_files(spec) else ""
        folder = RunFolder.create(path, spec, federation.fingerprint, told, stage.keep)
        if (note := crowded(engine.algorithm, len(federation))) is not None:
            stage.say(note)
        return _carry(folder, spec, federation, engine, stage)


def carry_on(folder: RunFolder, stage: Stage, *, again: bool = False) -> tuple[RunFolder, bool]:
    """Take up a run from its last good state; nothing to do for a finished one, but `again` when that is damaged."""
    spec = folder.spec()
    over = not again and folder.scores() is not None
    if over and not reads_files(spec):
        return folder, True
    elsewhere = whole_runs(stage.engine)
    if not over and (folder.path / "federation.json").exists() and isinstance(stage.engine, str) and elsewhere is None:
        raise StoreError(
            f"the clients of run '{folder.name}' keep their memory at nodes: take it up with --engine flower"
        )
    if not over and elsewhere is not None:
        return elsewhere(spec, folder.path, stage)
    if not over and isinstance(stage.engine, str) and (problem := folder.diverged) is not None:
        raise DivergedError(problem)  # the same numbers would come again; at nodes others may answer
    _check_there(folder, spec, stage.data)
    federation, engine = build(spec, replace(stage, engine="local", address=None) if over else stage)
    with contextlib.closing(engine):
        check_data(folder, federation)
        return (folder, True) if over else _carry(folder, spec, federation, engine, stage)


def _check_there(folder: RunFolder, spec: RunSpec, data: str | Path | None) -> None:
    """The files that a run began with are there, unless it is told where they are now."""
    named = [spec.dataset.settings[key] for key in PATHS if key in spec.dataset.settings]
    if data is None and named and not Path(named[0]).exists():
        raise FilesGone(
            f"the data of run '{folder.name}' is not there any more: '{named[0]}' does not exist", "data=..."
        )


def _told(federation: Federation) -> str:
    """How files were understood, and what stands in the way of learning from them."""
    return federation.about + (f". {warning}" if (warning := federation.unscaled) else "")


def check_data(folder: RunFolder, federation: Federation) -> None:
    """A run belongs to the data it began with."""
    began = folder.info.get("data")
    if began and began != federation.fingerprint:
        raise StoreError(
            f"the data has changed since run '{folder.name}' began: put it back, or start a new run with --again"
        )


def load(
    path: str | Path, *, device: str = "cpu", round: int | None = None, data: str | Path | None = None, **settings: Any
) -> Run:
    """Load a saved run: its centers, personal models and history. The data is made or read again from the spec.

    Arguments:
        path: of the run, or the beginning of its name.
        device: `cpu` or `cuda`.
        round: as it was after so many rounds, for those that were kept; as it was saved last unless told.
        data: where the files of the run's data are now, if they were moved.
        settings: change the algorithm's, for those that matter for predictions only.
    """
    folder = find_run(Path(os.environ.get("FEDSOFT_RUNS", "runs")), str(path))
    spec = folder.spec()
    _check_there(folder, spec, data)
    changed = replace(spec.algorithm, settings=spec.algorithm.settings | settings)
    federation, engine = build(
        replace(spec, algorithm=changed), Stage(device=device, data=None if data is None else Path(data))
    )
    check_data(folder, federation)
    point = folder.checkpoint(round)
    if point is None and len(folder.records()) > 1:
        raise StoreError(f"'{folder.path / 'state.safetensors'}' is missing: the run cannot be taken up without it")
    state, done = _restore(point, engine)
    engine.at_hand = not (folder.path / "federation.json").exists()
    return Run(federation, engine, state, folder.records_until(done))


def _restore(point: Checkpoint | None, engine: Engine) -> tuple[dict[str, torch.Tensor], int]:
    """A saved state, or the first one, and after how many rounds it was saved."""
    if point is None:
        with torch.no_grad(), one_thread():
            return engine.start(), 0
    centers, u = point.state.get("centers"), point.state.get("u")
    size, clients = engine.model.size, len(engine.names)
    if centers is None or centers.ndim != 2 or centers.shape[1] != size or centers.dtype != engine.dtype:
        raise StoreError(f"the saved centers do not fit this run: should be {size} numbers of {engine.dtype} each")
    if u is not None and (u.shape != (clients, len(centers)) or not u.is_floating_point()):
        raise StoreError(f"the saved mixtures do not fit this run: should be {clients} x {len(centers)} numbers")
    engine.restore(in_blocks(point.memory))
    return {name: value.to(engine.device) for name, value in point.state.items()}, point.rounds


def _carry(
    folder: RunFolder, spec: RunSpec, federation: Federation, engine: Engine, stage: Stage
) -> tuple[RunFolder, bool]:
    """Play what is left. When a worker is lost, from the last saved state once more, to the same bits."""
    engine.use_folder(folder.path)
    mending = Mending(engine)
    asked = threading.Event()
    with folder.lock(), renamed(owners(spec)):
        folder.diverge(None)
        while True:
            try:
                return folder, _play(folder, spec, federation, engine, stage, asked)
            except WorkerLost as lost:
                mending.after(lost, len(folder.records()))
            except DivergedError as error:
                folder.diverge(str(error))
                raise


def _play(
    folder: RunFolder, spec: RunSpec, federation: Federation, engine: Engine, stage: Stage, asked: threading.Event
) -> bool:
    """From the last good state to the end, True, or until asked to stop."""
    found = folder.last_good()
    if found.said:
        stage.say(found.said)
        folder.put_aside(found)
    state, done = _restore(found.point, engine)
    run = Run(federation, engine, state, folder.cut(done))
    saved = run.rounds if found.is_last else -1  # even a run of no rounds saves its first values
    pace, keep = _Pace(), stage.keep or folder.info.get("keep")

    def kept() -> bool:
        return bool(keep and run.rounds and run.rounds % keep == 0)

    def save() -> None:
        nonlocal saved
        with pace.timed():
            folder.save(Checkpoint(run.rounds, run.state, engine.memory), keep=kept())
        saved = run.rounds

    history, limit = list(run.history), Limit(spec.rounds, spec.work, spec.bytes)
    with stop_when_asked(asked, stage.signals):
        for run.state, record in play(engine, federation, state, history, limit, spec.score_every):
            folder.append(record)
            run.history.append(record)
            if engine.saves_every_round or pace.due() or kept():
                save()
            if stage.on_round is not None:
                stage.on_round(record)
            if asked.is_set() or stage.told_to_stop():
                asked.set()
                break
        if saved < run.rounds:
            save()
    if asked.is_set() and limit.fits(run.history, closing=closing_work(engine)) and not run.is_over:
        return False
    folder.finish(run.scores().to_dict())
    return True


class _Pace:
    """Saves after every round while that is cheap, and seldom enough when it is not."""

    def __init__(self) -> None:
        self.cost, self.last = 0.0, time.perf_counter()

    def due(self) -> bool:
        return time.perf_counter() - self.last >= self.cost / SAVING_SHARE

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.last = time.perf_counter()
        self.cost = self.last - began


@contextlib.contextmanager
def stop_when_asked(asked: threading.Event, signals: bool) -> Iterator[None]:
    """Ctrl-C or SIGTERM asks to stop after the current round; a second one stops at once, with the last saved state."""
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
