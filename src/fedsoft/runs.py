"""From a spec to a finished run on disk, and back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch

from fedsoft import plugins
from fedsoft.engines import Factory, whole_runs
from fedsoft.engines import find as find_engine
from fedsoft.errors import InputError, StoreError, WorkerLost
from fedsoft.federation import Federation
from fedsoft.guards import Care, Diverged
from fedsoft.privacy import Privacy
from fedsoft.simulate import Engine
from fedsoft.spec import RunSpec
from fedsoft.store import Checkpoint, RunFolder, find_run
from fedsoft.tensorfile import in_blocks
from fedsoft.threads import one_thread
from fedsoft.training import Limit, Mending, Record, Run, closing_work, play, prepare

SAVING_SHARE = 0.1  # of the time may go into saving; small states are then saved after every round


@dataclass(frozen=True)
class Stage:
    """How a run is carried out: nothing here changes its draws, and of it only the chunk touches its last bits."""

    device: str = "cpu"
    chunk: int | None = None
    workers: int | None = None  # threads; one for each core unless told
    memory: int | str | None = None  # for client memory and replies, such as 4G; half of what is available unless told
    engine: str | Factory = "local"  # where clients are, see `fedsoft.engines`
    address: str | None = None  # of the engine's cluster, for those that have one
    on_round: Callable[[Record], object] | None = None
    told_to_stop: Callable[[], bool] = bool  # asked after every round, besides Ctrl-C and SIGTERM
    signals: bool = True  # whether Ctrl-C and SIGTERM are ours to handle


def federation_of(spec: RunSpec) -> Federation:
    """The federation that a spec describes."""
    extra: dict[str, Any] = {}
    dataset = plugins.find("datasets", spec.dataset.name)
    if "seed" in plugins.parameters(dataset):
        extra["seed"] = spec.seed if spec.data_seed is None else spec.data_seed
    if spec.partition is not None:
        extra["partition"] = plugins.build("partitions", spec.partition.name, spec.partition.settings)
    federation: Federation = dataset(**spec.dataset.settings, **extra)
    return federation if spec.source is None else federation.only(spec.source)


def build(spec: RunSpec, stage: Stage) -> tuple[Federation, Engine]:
    """The federation and the engine that a spec describes."""
    federation = federation_of(spec)
    if isinstance(stage.engine, str) and not len(federation.train.x):
        raise InputError("these clients have their points at nodes of their own: use --engine flower")
    simulation = prepare(
        plugins.build("algorithms", spec.algorithm.name, spec.algorithm.settings),
        federation,
        plugins.build("models", spec.model.name, spec.model.settings),
        local=plugins.build("solvers", spec.local.name, spec.local.settings),
        seed=spec.seed, device=stage.device, dtype=spec.dtype, chunk=stage.chunk, drop=spec.dropout,
        workers=stage.workers, memory=stage.memory, engine=find_engine(stage.engine, stage.address),
        rule=None if spec.robust is None else plugins.build("rules", spec.robust.name, spec.robust.settings),
        attack=None if spec.attack is None else plugins.build("attacks", spec.attack.name, spec.attack.settings),
        care=Care(
            spec.guard, cast(Diverged, spec.diverged), None if spec.privacy is None else Privacy(**spec.privacy)
        ),
    )  # fmt: skip
    return federation, simulation


def place(spec: RunSpec, out: Path, *, again: bool = False) -> Path:
    """The folder for a run: named after its content, so that the same run is found again. `again` counts up."""
    path, number = out / spec.id, 2
    while again and path.exists():
        path, number = out / f"{spec.id}-{number}", number + 1
    return path


def execute(spec: RunSpec, path: Path, stage: Stage) -> tuple[RunFolder, bool]:
    """Carry a run out, or take it up where it was left. True when it is finished, False when it was stopped."""
    if path.exists():
        return carry_on(RunFolder.open(path), stage)
    if (elsewhere := whole_runs(stage.engine)) is not None:
        return elsewhere(spec, path, stage)
    federation, simulation = build(spec, stage)  # complaints come before a folder is made
    with contextlib.closing(simulation):
        folder = RunFolder.create(path, spec, federation.fingerprint, _told(federation) if reads_files(spec) else "")
        return _carry(folder, spec, federation, simulation, stage)


def carry_on(folder: RunFolder, stage: Stage) -> tuple[RunFolder, bool]:
    """Take up a run from its last saved round; nothing to do for a finished one."""
    spec = folder.spec()
    if folder.scores() is not None and not reads_files(spec):
        return folder, True
    over = folder.scores() is not None
    elsewhere = whole_runs(stage.engine)
    if not over and (folder.path / "federation.json").exists() and isinstance(stage.engine, str) and elsewhere is None:
        raise StoreError(
            f"the clients of run '{folder.name}' keep their memory at nodes: take it up with --engine flower"
        )
    if not over and elsewhere is not None:
        return elsewhere(spec, folder.path, stage)
    federation, simulation = build(spec, replace(stage, engine="local", address=None) if over else stage)
    with contextlib.closing(simulation):
        check_data(folder, federation)
        return (folder, True) if over else _carry(folder, spec, federation, simulation, stage)


def _told(federation: Federation) -> str:
    """How files were understood, and what stands in the way of learning from them."""
    return federation.about + (f". {warning}" if (warning := federation.unscaled) else "")


def reads_files(spec: RunSpec) -> bool:
    """Whether the data is read from files, which may change under the same name."""
    return bool({"path", "data_dir"} & plugins.parameters(plugins.find("datasets", spec.dataset.name)).keys())


def check_data(folder: RunFolder, federation: Federation) -> None:
    """A run belongs to the data it began with."""
    began = folder.info.get("data")
    if began and began != federation.fingerprint:
        raise StoreError(
            f"the data has changed since run '{folder.name}' began: put it back, or start a new run with --again"
        )


def load(path: str | Path, *, device: str = "cpu", **settings: Any) -> Run:
    """Load a saved run: its centers, personal models and history. The data is made or read again from the spec.

    `settings` change the algorithm's, for those that matter for predictions only.
    """
    folder = find_run(Path(os.environ.get("FEDSOFT_RUNS", "runs")), str(path))
    spec = folder.spec()
    changed = replace(spec.algorithm, settings=spec.algorithm.settings | settings)
    federation, simulation = build(replace(spec, algorithm=changed), Stage(device=device))
    check_data(folder, federation)
    state, done = _restore(folder, simulation)
    simulation.at_hand = not (folder.path / "federation.json").exists()
    return Run(federation, simulation, state, folder.records_until(done))


def _restore(folder: RunFolder, simulation: Engine) -> tuple[dict[str, torch.Tensor], int]:
    """The last saved state, and after how many rounds it was saved."""
    point = folder.checkpoint()
    if point is None:
        if len(folder.records()) > 1:  # the first round is always saved
            raise StoreError(f"'{folder.path / 'state.safetensors'}' is missing: the run cannot be taken up without it")
        with torch.no_grad(), one_thread():
            return simulation.start(), 0
    simulation.restore(in_blocks(point.memory))
    return {name: value.to(simulation.device) for name, value in point.state.items()}, point.rounds


def _carry(
    folder: RunFolder, spec: RunSpec, federation: Federation, simulation: Engine, stage: Stage
) -> tuple[RunFolder, bool]:
    """Play what is left. When a worker is lost, from the last saved state once more, to the same bits."""
    simulation.use_folder(folder.path)
    mending = Mending(simulation)
    asked = threading.Event()
    with folder.lock():
        while True:
            try:
                return folder, _play(folder, spec, federation, simulation, stage, asked)
            except WorkerLost as lost:
                mending.after(lost, len(folder.records()))


def _play(
    folder: RunFolder, spec: RunSpec, federation: Federation, simulation: Engine, stage: Stage, asked: threading.Event
) -> bool:
    """From the last saved state to the end, True, or until asked to stop."""
    state, done = _restore(folder, simulation)
    run = Run(federation, simulation, state, folder.cut(done))
    saved = run.rounds if run.rounds else -1  # even a run of no rounds saves its first values
    pace = _Pace()

    def save() -> None:
        nonlocal saved
        with pace.timed():
            folder.save(Checkpoint(run.rounds, run.state, simulation.memory))
        saved = run.rounds

    history, limit = list(run.history), Limit(spec.rounds, spec.work, spec.bytes)
    with stop_when_asked(asked, stage.signals):
        for run.state, record in play(simulation, federation, state, history, limit, spec.score_every):
            folder.append(record)
            run.history.append(record)
            if simulation.saves_every_round or pace.due():
                save()
            if stage.on_round is not None:
                stage.on_round(record)
            if asked.is_set() or stage.told_to_stop():
                asked.set()
                break
        if saved < run.rounds:
            save()
    if asked.is_set() and limit.fits(run.history, closing=closing_work(simulation)) and not run.is_over:
        return False
    folder.write("scores.json", (json.dumps(run.scores().to_dict(), indent=1) + "\n").encode())
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
