"""Many runs in parallel processes: what is saved is not run again, and one that fails does not lose the others."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from enum import Enum
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType

from fedsoft.errors import DivergedError, FedsoftError, InputError
from fedsoft.escape import guard_terminal
from fedsoft.machine.resources import check_workers, cores, is_out_of_memory, memory_size
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.storage.toml import toml
from fedsoft.studies.eta import Eta, RoundLog, interleaved
from fedsoft.training.callbacks.base import Listener


class Ended(Enum):
    """How a run ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    DIVERGED = "diverged"
    FAILED = "failed"
    KILLED = "killed"


@dataclass(frozen=True)
class Ending:
    """How a run ended, and a sentence about what went wrong."""

    how: Ended
    problem: str = ""

    def __str__(self) -> str:
        return f"it diverged: {self.problem}" if self.how is Ended.DIVERGED else self.problem


FINISHED = Ending(Ended.FINISHED)
KILLED = Ending(
    Ended.KILLED,
    "its process was killed (out of memory?): what is done is saved, the same command resumes it, "
    "perhaps with fewer --jobs",
)


@dataclass(frozen=True)
class Outcome:
    """The result of one run: its folder where it finished."""

    spec: RunSpec
    folder: RunFolder | None
    ending: Ending = FINISHED


@dataclass(frozen=True)
class Progress:
    """Runs that ended, of how many, rounds on disk, and the seconds that are left where known."""

    finished: int
    total: int
    rounds: int
    left: float | None


class ProcessPool:
    """Carries out runs, `jobs` at a time; `run` may be called several times.

    Arguments:
        out: the folder that holds the runs; each is named after its content.
        jobs: processes, each with a run of its own; 0: one per core; None: no other process, one run after the other
            in this one.
        options: how each run is carried out; cores and `memory` are shared evenly by the processes, `workers` is for
            each of them.
        on_progress: called now and then.
    """

    def __init__(
        self, out: Path, jobs: int | None = 1, options: RunOptions | None = None,
        on_progress: Callable[[Progress], object] = id,
    ) -> None:  # fmt: skip
        self.out, self.jobs, self.here = out, 1 if jobs is None else processes(jobs), jobs is None
        self.options = RunOptions() if options is None else options
        self.on_progress = on_progress
        self.ended = self.rounds = 0  # in earlier calls

    def run(
        self, specs: Sequence[RunSpec], *, more: int = 0, later: float = 0.0,
        expected: Callable[[RunSpec], float] | None = None,
    ) -> list[Outcome] | None:  # fmt: skip
        """Run everything that is not saved already; None when stopped, and what is done is saved.

        A spec that is given twice is run once.

        Arguments:
            more: runs that later calls will add.
            later: the seconds that these are expected to take.
            expected: the seconds that a run is expected to take; default: known only once rounds were measured.
        """
        wanted = {self.out / spec.id: spec for spec in specs}
        missing = {path: spec for path, spec in wanted.items() if not _is_finished(path)}
        missing = interleaved(missing) if expected is None else missing
        options = even_share(min(self.jobs, max(1, len(wanted) + more)), self.options)
        watch = _Watch(self, wanted, missing, more, later, Eta(self.jobs, expected))
        workers = _Here(options, watch) if self.here else _Workers(options, watch)
        try:
            with _raises_interrupt(signal.SIGTERM):
                endings = workers.run(missing, self.jobs)
                for path in [path for path, ending in endings.items() if ending == KILLED]:
                    # All that ran together with the one that was killed are lost with it: which one was it?
                    endings |= workers.run({path: missing[path]}, 1)
        except KeyboardInterrupt:
            return None
        self.ended += len(wanted)
        if any(ending.how is Ended.STOPPED for ending in endings.values()):
            return None
        found = {}
        for path, spec in wanted.items():
            ending = endings.get(path, FINISHED)
            found[path] = Outcome(spec, RunFolder.open(path) if ending == FINISHED else None, ending)
        return [found[self.out / spec.id] for spec in specs]


def processes(jobs: int) -> int:
    """Return how many processes to use: 0 stands for one per core."""
    if jobs < 0:
        raise InputError(f"--jobs {jobs} is not allowed: should be 0 or more")
    return jobs or cores()


def even_share(jobs: int, options: RunOptions) -> RunOptions:
    """Return what each of `jobs` processes may use; `workers` is for each of them, `memory` for all."""
    check_workers(options.workers)
    workers = options.workers or (max(1, cores() // jobs) if options.address is None else None)
    return replace(options, workers=workers, memory=memory_size(options.memory) // jobs)


def folders(outcomes: Sequence[Outcome], names: Sequence[str]) -> list[RunFolder]:
    """Return the folders of runs that must all have finished; raise for the first that did not."""
    found = []
    for outcome, name in zip(outcomes, names, strict=True):
        if outcome.folder is None:
            raise FedsoftError(f"{name}, seed {outcome.spec.seed}: {outcome.ending}")
        found.append(outcome.folder)
    return found


def _is_finished(path: Path) -> bool:
    return (path / "scores.json").exists()


class _Watch:
    """Reads the logs of runs that are under way, and reports progress."""

    def __init__(
        self, pool: ProcessPool, wanted: dict[Path, RunSpec], missing: dict[Path, RunSpec], more: int, later: float,
        eta: Eta,
    ) -> None:  # fmt: skip
        self.pool, self.missing, self.more, self.later, self.eta = pool, missing, more, later, eta
        self.logs = {path: RoundLog(path, spec) for path, spec in wanted.items()}
        self.rounds_before = pool.rounds
        for log in self.logs.values():
            log.read()

    def report(self, unfinished: Sequence[Path]) -> None:
        for path in self.missing:
            self.logs[path].read()
        ended = self.pool.ended + len(self.logs) - len(unfinished)
        total = self.pool.ended + len(self.logs) + self.more
        self.pool.rounds = self.rounds_before + sum(log.rounds for log in self.logs.values())
        left = self.eta.left([*self.logs.values()], [self.logs[path] for path in unfinished], self.later)
        if self.more and self.eta.expected is None:  # runs of later calls cannot be estimated
            left = None
        self.pool.on_progress(Progress(ended, total, self.pool.rounds, left))


class _Workers:
    """Processes that run specs and are stopped together."""

    def __init__(self, options: RunOptions, watch: _Watch) -> None:
        # What is called in this process does not go to another one.
        self.options = replace(options, callbacks=(), should_stop=bool, signals=False, say=RunOptions.say)
        self.watch = watch
        self.context = multiprocessing.get_context("spawn")  # torch does not support fork
        self.stop = self.context.Event()

    def run(self, specs: dict[Path, RunSpec], jobs: int) -> dict[Path, Ending]:
        """Return how each run ended. On an interrupt the workers finish their round and save."""
        if not specs:
            self.watch.report([])
            return {}
        endings = {}
        with ProcessPoolExecutor(
            min(jobs, len(specs)), mp_context=self.context, initializer=_prepare, initargs=(self.stop, os.getpid())
        ) as pool:
            try:
                futures = {
                    path: pool.submit(_work, spec.to_toml(), spec.label, sorted(spec.allow), path, self.options)
                    for path, spec in specs.items()
                }
                left = set(futures.values())
                while left:
                    _, left = wait_for(left, timeout=0.3)
                    self.watch.report([path for path, future in futures.items() if future in left])
                for path, future in futures.items():
                    try:
                        endings[path] = future.result()
                    except BrokenProcessPool:
                        endings[path] = FINISHED if _is_finished(path) else KILLED
            except BrokenProcessPool:  # while runs were being handed out
                endings = {path: FINISHED if _is_finished(path) else KILLED for path in specs}
            except KeyboardInterrupt:
                self.stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return endings


class _Here:
    """Runs specs one after the other in this process."""

    def __init__(self, options: RunOptions, watch: _Watch) -> None:
        self.options, self.watch = options, watch

    def run(self, specs: dict[Path, RunSpec], jobs: int) -> dict[Path, Ending]:
        """Return how each run ended. On an interrupt the run finishes its round and is saved."""
        endings: dict[Path, Ending] = {}
        self.watch.report([*specs])
        for path, spec in specs.items():
            left = [one for one in specs if one not in endings]
            report: Listener = lambda record, left=left: self.watch.report(left)  # noqa: E731
            options = replace(self.options, callbacks=[report, *self.options.callbacks])
            endings[path] = _run_to_its_end(spec, path, options)
            if endings[path].how is Ended.STOPPED:
                break
            self.watch.report([one for one in specs if one not in endings])
        return endings


@contextlib.contextmanager
def _raises_interrupt(number: signal.Signals) -> Iterator[None]:
    """Make a signal end everything as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


# --- in a worker ------------------------------------------------------------------------------------------------------

_should_stop: Callable[[], bool] = bool  # whether the parent said so, or is gone


def _prepare(stop: Event, parent: int) -> None:
    """Set up a new worker. Ctrl-C reaches all processes, but the parent decides."""
    global _should_stop
    guard_terminal()
    _should_stop = lambda: stop.is_set() or os.getppid() != parent  # noqa: E731
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _work(text: str, label: str, allow: list[str], path: Path, options: RunOptions) -> Ending:
    spec = RunSpec.from_dict(toml(text), label, allow=allow, source="saved")  # it was checked when it was read
    return _run_to_its_end(spec, path, replace(options, should_stop=_should_stop))


def _run_to_its_end(spec: RunSpec, path: Path, options: RunOptions) -> Ending:
    from fedsoft.studies.launch import launch

    try:
        _, finished = launch(spec, path, options)
    except DivergedError as error:
        return Ending(Ended.DIVERGED, str(error))
    except FedsoftError as error:
        return Ending(Ended.FAILED, str(error))
    except KeyboardInterrupt:
        return Ending(Ended.STOPPED)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Ending(Ended.FAILED, f"not enough memory ({error})")
    return FINISHED if finished else Ending(Ended.STOPPED)
