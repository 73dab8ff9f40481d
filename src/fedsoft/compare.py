"""Several algorithms on the same federations with the same first values, in parallel, at the same cost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import re
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from fedsoft import plugins
from fedsoft.errors import FedsoftError, InputError
from fedsoft.machine import check_workers, cores, memory_size
from fedsoft.spec import Part, RunSpec
from fedsoft.store import RunFolder

Budget = Literal["rounds", "work", "bytes"]
BUDGETS: tuple[Budget, ...] = ("rounds", "work", "bytes")
MORE_ROUNDS = 20  # a cheaper method may take so many times the rounds of the first before its budget is used up

CARRIED = ("S", "K")  # settings of the preset's algorithm that the others take over where they have them


@dataclass(frozen=True)
class Entry:
    """One algorithm with one seed."""

    label: str
    spec: RunSpec


@dataclass(frozen=True)
class Progress:
    """How far a comparison is."""

    finished: int
    total: int
    rounds: int


def parse_algorithms(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The algorithms of `fedsoft,ifca(average=gradient),fedem(S=3)`, each with its settings.

    >>> parse_algorithms("fedavg,ifca(average=gradient, lr=0.1)")
    [('fedavg', {}), ('ifca', {'average': 'gradient', 'lr': 0.1})]
    """
    found = []
    for match in re.finditer(r"\s*([^,()]+?)\s*(?:\(([^()]*)\))?\s*(?:,|$)", text):
        settings = {}
        for change in filter(None, (part.strip() for part in (match[2] or "").split(","))):
            key, equals, value = change.partition("=")
            if not equals:
                raise InputError(f"--algorithms: '{change}' is not allowed: should be key=value")
            try:
                settings[key.strip()] = tomllib.loads(f"x = {value}")["x"]
            except tomllib.TOMLDecodeError:
                settings[key.strip()] = value.strip()
        found.append((match[1], settings))
    if not found or re.sub(r"\s*([^,()]+?)\s*(?:\(([^()]*)\))?\s*(?:,|$)", "", text):
        raise InputError(f"--algorithms '{text}' is not allowed: should be a list such as fedsoft,ifca,fedem")
    return found


def entries(base: RunSpec, algorithms: str, seeds: Sequence[int]) -> list[Entry]:
    """All runs of a comparison. What is not told otherwise of S and K is that of the preset's algorithm."""
    made = []
    for name, settings in parse_algorithms(algorithms):
        known = plugins.parameters(plugins.find("algorithms", name))
        of_preset = base.algorithm.settings
        carried = {key: of_preset[key] for key in CARRIED if key in known and key in of_preset}
        own = of_preset if name == base.algorithm.name else {}
        part = Part(name, plugins.resolve("algorithms", name, own | carried | settings))
        told = ", ".join(f"{key}={value}" for key, value in settings.items())
        label = f"{name}({told})" if told else name
        made += [Entry(label, replace(base, algorithm=part, label=f"{base.label}-{name}").with_seed(s)) for s in seeds]
    if len({entry.spec.id for entry in made}) < len(made):
        raise InputError(f"--algorithms '{algorithms}' names the same thing twice")
    return made


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison, the first algorithm first."""

    base: RunSpec
    budget: Budget
    folders: dict[str, list[RunFolder]]

    @property
    def name(self) -> str:
        """Names the comparison by its content."""
        runs = [[label, [folder.info["hash"] for folder in folders]] for label, folders in self.folders.items()]
        digest = hashlib.sha256(json.dumps([self.budget, runs]).encode()).hexdigest()[:12]
        return f"compare-{self.base.label}-{digest}"


def compare(
    base: RunSpec, algorithms: str, seeds: Sequence[int], out: Path, *, budget: Budget, jobs: int, device: str,
    on_progress: Callable[[Progress], object], workers: int | None = None, memory: int | str | None = None,
) -> Comparison | None:  # fmt: skip
    """Run everything that is not saved already; None when it was asked to stop (what is done is saved).

    With a budget of work or bytes, every method may spend as much as the first one does with the same seed. The cores
    and the memory are shared by as many processes as run at once; `workers` is for each of them, `memory` for all.
    """
    check_workers(workers)
    wanted = entries(base, algorithms, seeds)
    jobs = min(jobs, len(wanted))
    share = {"device": device, "workers": workers or max(1, cores() // jobs), "memory": memory_size(memory) // jobs}
    first = wanted[0].label
    context = multiprocessing.get_context("spawn")  # torch does not like to be forked
    stop = context.Event()
    with (
        _raises_interrupt(signal.SIGTERM),
        ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare, initargs=(stop, os.getpid())) as pool,
    ):
        runner = _Runner(pool, stop, out, share, len(wanted), on_progress)
        heads = [entry for entry in wanted if entry.label == first or budget == "rounds"]
        done = runner.run(heads)
        if done is not None and budget != "rounds":
            spent = {e.spec.seed: total(f, budget) for e, f in zip(heads, done, strict=True)}
            if not all(spent.values()):
                raise InputError(f"--budget {budget}: '{first}' spends none, so put a method first that does")
            capped = [_capped(e, budget, spent[e.spec.seed]) for e in wanted if e.label != first]
            heads, rest = heads + capped, runner.run(capped)
            done = None if rest is None else done + rest
    if done is None:
        return None
    folders: dict[str, list[RunFolder]] = {}
    for entry, folder in zip(heads, done, strict=True):
        folders.setdefault(entry.label, []).append(folder)
    return Comparison(base, budget, folders)


def total(folder: RunFolder, budget: Budget) -> int:
    """The client work or the bytes that a run took."""
    keys = ("gradients",) if budget == "work" else ("bytes_down", "bytes_up")
    return sum(record[key] for record in folder.records() for key in keys)


def _capped(entry: Entry, budget: Budget, amount: int) -> Entry:
    return replace(entry, spec=replace(entry.spec, rounds=entry.spec.rounds * MORE_ROUNDS, **{budget: amount}))


class _Runner:
    """Runs entries in other processes, and watches their logs for progress."""

    def __init__(
        self, pool: ProcessPoolExecutor, stop: Event, out: Path, share: dict[str, Any], count: int,
        on_progress: Callable[[Progress], object],
    ) -> None:  # fmt: skip
        self.pool, self.stop, self.out, self.share = pool, stop, out, share
        self.count, self.on_progress = count, on_progress
        self.finished = 0

    def run(self, wanted: Sequence[Entry]) -> list[RunFolder] | None:
        paths = [self.out / entry.spec.id for entry in wanted]
        futures = {
            i: self.pool.submit(_work, entry.spec.to_toml(), entry.spec.label, str(paths[i]), self.share)
            for i, entry in enumerate(wanted)
            if not (paths[i] / "scores.json").exists()
        }
        try:
            for _ in self._watch(list(futures.values())):
                ended = len(wanted) - sum(not future.done() for future in futures.values())
                self.on_progress(Progress(self.finished + ended, self.count, sum(map(_rounds, paths))))
            results = {i: future.result() for i, future in futures.items()}
        except KeyboardInterrupt:
            self.stop.set()  # the workers finish their round and save
            self.pool.shutdown(wait=True, cancel_futures=True)
            return None
        except BrokenProcessPool:
            raise FedsoftError(
                "a process of the comparison was killed (out of memory?): what is done is saved, "
                "the same command goes on from here, perhaps with fewer --jobs"
            ) from None
        self.finished += len(wanted)
        for i, ending in results.items():
            if ending not in ("finished", "stopped"):
                raise FedsoftError(f"{wanted[i].label}, seed {wanted[i].spec.seed}: {ending}")
        return None if "stopped" in results.values() else [RunFolder.open(path) for path in paths]

    def _watch(self, futures: Sequence[Future[str]]) -> Iterator[None]:
        left = set(futures)
        while left:
            _, left = wait_for(left, timeout=0.3)
            yield


def _rounds(path: Path) -> int:
    try:
        return (path / "rounds.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


@contextlib.contextmanager
def _raises_interrupt(number: signal.Signals) -> Iterator[None]:
    """A signal that ends the comparison as Ctrl-C does."""

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


_told_to_stop: Callable[[], bool] = bool  # in a worker: whether its parent said so, or is gone


def _prepare(stop: Event, parent: int) -> None:
    """In a new worker. Ctrl-C reaches all processes, but it is the parent that decides."""
    global _told_to_stop
    _told_to_stop = lambda: stop.is_set() or os.getppid() != parent  # noqa: E731
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _work(toml: str, label: str, path: str, share: dict[str, Any]) -> str:
    """In another process: run one spec with its share of the machine; how it ended, in a word or a sentence."""
    from fedsoft.runs import Stage, execute

    try:
        stage = Stage(**share, told_to_stop=_told_to_stop, signals=False)
        _, finished = execute(RunSpec.from_dict(tomllib.loads(toml), label), Path(path), stage)
    except FedsoftError as error:
        return str(error)
    except KeyboardInterrupt:
        return "stopped"
    return "finished" if finished else "stopped"
