"""Many runs in parallel processes: what is saved is not run again, and one that fails does not lose the others."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType
from typing import Any

from fedsoft.errors import DivergedError, FedsoftError, InputError
from fedsoft.machine import cores, memory_size
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.pace import SOON, Log, Pace, in_turns

KILLED = (
    "its process was killed (out of memory?): what is done is saved, the same command goes on from here, "
    "perhaps with fewer --jobs"
)
DIVERGED = "it diverged: "  # begins what is told of such a run


@dataclass(frozen=True)
class Progress:
    """How far it is: runs that ended, of how many, rounds on disk, and the seconds that are left where known."""

    finished: int
    total: int
    rounds: int
    left: float | None


@dataclass(frozen=True)
class Outcome:
    """How one run ended: its folder, or a sentence about what went wrong."""

    spec: RunSpec
    folder: RunFolder | None
    problem: str = ""

    @property
    def diverged(self) -> bool:
        """Whether its training diverged: that is a finding, not a mishap."""
        return self.problem.startswith(DIVERGED)


class Farm:
    """Carries out runs, so many at a time. The same farm may be asked several times.

    Arguments:
        out: the folder that holds the runs; each is named after its content.
        jobs: how many run at the same time, each in a process of its own.
        share: what each process gets of the machine, see `runs.Stage`.
        on_progress: called now and then.
        seconds: what a run is expected to take, for the time that is left; as rounds are measured unless told.
    """

    def __init__(
        self, out: Path, jobs: int, *, share: dict[str, Any] | None = None,
        on_progress: Callable[[Progress], object] = id, seconds: Callable[[RunSpec], float] | None = None,
    ) -> None:  # fmt: skip
        self.out, self.jobs, self.share = out, jobs, share or {}
        self.on_progress, self.seconds = on_progress, seconds
        self.ended = self.rounds = 0  # runs and rounds of earlier calls
        self.pace = _Pace(jobs)

    def run(self, specs: Sequence[RunSpec], *, more: int = 0, later: float = 0.0) -> list[Outcome] | None:
        """Run everything that is not saved already; None when it was asked to stop, and what is done is saved.

        A run that is named twice is run once. `more` runs are still to come after these, which are expected to take
        `later` seconds.
        """
        wanted = {self.out / spec.id: spec for spec in specs}
        missing = {path: spec for path, spec in wanted.items() if not (path / "scores.json").exists()}
        missing = in_turns(missing) if self.seconds is None else missing
        watch = _Watch(self, wanted, missing, more, later)
        endings: dict[Path, str] = {}
        context = multiprocessing.get_context("spawn")  # torch does not like to be forked
        stop = context.Event()
        try:
            with _raises_interrupt(signal.SIGTERM):
                endings = self._together(context, stop, missing, self.jobs, watch)
                for path in [path for path, ending in endings.items() if ending == KILLED]:
                    # All that ran together with the one that was killed are lost with it: which one was it?
                    endings |= self._together(context, stop, {path: missing[path]}, 1, watch)
        except KeyboardInterrupt:
            return None
        self.ended += len(wanted)
        if "stopped" in endings.values():
            return None
        problems = {path: ending for path, ending in endings.items() if ending != "finished"}
        found = {
            path: Outcome(spec, None, problems[path]) if path in problems else Outcome(spec, RunFolder.open(path))
            for path, spec in wanted.items()
        }
        return [found[self.out / spec.id] for spec in specs]

    def _together(
        self, context: Any, stop: Event, specs: dict[Path, RunSpec], jobs: int, watch: _Watch
    ) -> dict[Path, str]:
        """How each run ended, in a word or a sentence. On an interrupt the workers finish their round and save."""
        if not specs:
            watch.tell([])
            return {}
        endings = {}
        with ProcessPoolExecutor(
            min(jobs, len(specs)), mp_context=context, initializer=_prepare, initargs=(stop, os.getpid())
        ) as pool:
            try:
                futures = {
                    path: pool.submit(_work, spec.to_toml(), spec.label, str(path), self.share)
                    for path, spec in specs.items()
                }
                for left in _waiting(list(futures.values())):
                    watch.tell([path for path, future in futures.items() if future in left])
                for path, future in futures.items():
                    try:
                        endings[path] = future.result()
                    except BrokenProcessPool:
                        endings[path] = "finished" if (path / "scores.json").exists() else KILLED
            except BrokenProcessPool:  # while runs were being handed out
                endings = {path: "finished" if (path / "scores.json").exists() else KILLED for path in specs}
            except KeyboardInterrupt:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return endings


def processes(jobs: int) -> int:
    """How many to run at a time: 0 stands for one per core."""
    if jobs < 0:
        raise InputError(f"--jobs {jobs} is not allowed: should be 0 or more")
    return jobs or cores()


def even_share(
    jobs: int, device: str, workers: int | None = None, memory: int | str | None = None, *, engine: str = "local",
    address: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What each of so many processes gets of the machine; `workers` is for each of them, `memory` for all."""
    workers = workers or (max(1, cores() // jobs) if address is None else None)
    return {
        "device": device, "workers": workers, "memory": memory_size(memory) // jobs, "engine": engine,
        "address": address,
    }  # fmt: skip


def folders(outcomes: Sequence[Outcome], names: Sequence[str]) -> list[RunFolder]:
    """The folders of runs that must all have succeeded; else a sentence about the first that did not."""
    found = []
    for outcome, name in zip(outcomes, names, strict=True):
        if outcome.folder is None:
            raise FedsoftError(f"{name}, seed {outcome.spec.seed}: {outcome.problem}")
        found.append(outcome.folder)
    return found


class _Watch:
    """Looks at the logs of runs that are under way, and tells how far they are."""

    def __init__(
        self, farm: Farm, wanted: dict[Path, RunSpec], missing: dict[Path, RunSpec], more: int, later: float
    ) -> None:
        self.farm, self.missing, self.more, self.later = farm, missing, more, later
        self.logs = {path: Log(path, spec) for path, spec in wanted.items()}
        for log in self.logs.values():
            log.look()
        self.rounds_before, self.pace = farm.rounds, Pace(farm.jobs)
        self.before = {path: self._share(path) for path in missing}
        self.done_before = farm.pace.done

    def tell(self, left: Sequence[Path]) -> None:
        for path in self.missing:
            self.logs[path].look()
        ended = self.farm.ended + len(self.logs) - len(left)
        total = self.farm.ended + len(self.logs) + self.more
        rounds = self.rounds_before + sum(log.rounds for log in self.logs.values())
        self.farm.rounds = rounds
        seconds = self._measured(left) if self.farm.seconds is None else self._expected(self.farm.seconds, left)
        self.farm.on_progress(Progress(ended, total, rounds, seconds))

    def _measured(self, left: Sequence[Path]) -> float | None:
        """From the rounds that were played; nobody knows what runs that are still to come will take."""
        seconds = self.pace.left([*self.logs.values()], [self.logs[path] for path in left])
        return None if self.more else seconds

    def _expected(self, cost: Callable[[RunSpec], float], left: Sequence[Path]) -> float:
        """From what was expected, at the pace so far."""
        done = todo = 0.0
        for path, spec in self.missing.items():
            share = self._share(path) if path in left else 1.0
            done += cost(spec) * max(0.0, share - self.before[path])
            todo += cost(spec) * (1 - share)
        self.farm.pace.done = self.done_before + done
        return self.farm.pace.left(todo + self.later)

    def _share(self, path: Path) -> float:
        """How much of a run is done. With a budget of work or bytes nobody knows how many rounds it will be."""
        log = self.logs[path]
        if log.spec.work is not None or log.spec.bytes is not None or not log.spec.rounds:
            return 0.0
        return min(1.0, log.rounds / log.spec.rounds)


class _Pace:
    """The time that is left of what was expected, at the pace so far."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.began, self.done = jobs, time.monotonic(), 0.0

    def left(self, todo: float) -> float:
        elapsed = time.monotonic() - self.began
        return todo * elapsed / self.done if elapsed > SOON and self.done > 0 else todo / self.jobs


def _waiting(futures: Sequence[Future[str]]) -> Iterator[set[Future[str]]]:
    """Those that are left, now and then until none is."""
    left = set(futures)
    while left:
        _, left = wait_for(left, timeout=0.3)
        yield left


@contextlib.contextmanager
def _raises_interrupt(number: signal.Signals) -> Iterator[None]:
    """A signal that ends everything as Ctrl-C does."""

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

_told_to_stop: Callable[[], bool] = bool  # whether the parent said so, or is gone


def _prepare(stop: Event, parent: int) -> None:
    """In a new worker. Ctrl-C reaches all processes, but it is the parent that decides."""
    global _told_to_stop
    _told_to_stop = lambda: stop.is_set() or os.getppid() != parent  # noqa: E731
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _work(toml: str, label: str, path: str, share: dict[str, Any]) -> str:
    """Run one spec with its share of the machine; how it ended, in a word or a sentence."""
    from fedsoft.runs.execution import execute
    from fedsoft.runs.stage import Stage

    try:
        stage = Stage(**share, told_to_stop=_told_to_stop, signals=False)
        _, finished = execute(RunSpec.from_dict(tomllib.loads(toml), label), Path(path), stage)
    except DivergedError as error:
        return f"{DIVERGED}{error}"
    except FedsoftError as error:
        return str(error)
    except KeyboardInterrupt:
        return "stopped"
    return "finished" if finished else "stopped"
