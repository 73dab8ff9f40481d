from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsoft.errors import FedsoftError
from fedsoft.runs import spec
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.process_pool import KILLED, Ended, ProcessPool, Progress, even_share, folders

SMALL = ["clients=10", "points=[8, 20]", "K=4", "epochs=1", "test_points=20", "rounds=4"]

pytestmark = pytest.mark.engine


def small(*changes: str, seed: int = 0) -> RunSpec:
    return spec.read("synthetic-10-90", [*SMALL, *changes]).with_seed(seed)


def test_one_that_fails_does_not_lose_the_others(tmp_path: Path) -> None:
    wanted = [small(), small("K=99"), small(seed=1)]
    outcomes = ProcessPool(tmp_path, 2).run(wanted)
    assert outcomes is not None
    assert [o.spec for o in outcomes] == wanted
    assert [o.folder is not None and o.folder.scores() is not None for o in outcomes] == [True, False, True]
    assert [o.ending.how for o in outcomes] == [Ended.FINISHED, Ended.FAILED, Ended.FINISHED]
    assert "at most 10" in outcomes[1].ending.problem
    with pytest.raises(FedsoftError, match=r"b, seed 0: .*at most 10"):
        folders(outcomes, ["a", "b", "c"])


def test_what_is_named_twice_or_saved_is_run_once(tmp_path: Path) -> None:
    seen: list[Progress] = []
    outcomes = ProcessPool(tmp_path, 2, on_progress=seen.append).run([small(), small()])
    assert outcomes is not None
    assert outcomes[0].folder == outcomes[1].folder
    assert (seen[-1].finished, seen[-1].total, seen[-1].rounds) == (1, 1, 4)
    written = (tmp_path / small().id / "scores.json").stat().st_mtime_ns
    ProcessPool(tmp_path, 2).run([small()])
    assert (tmp_path / small().id / "scores.json").stat().st_mtime_ns == written


def test_progress_counts_earlier_and_later_runs(tmp_path: Path) -> None:
    seen: list[Progress] = []
    pool = ProcessPool(tmp_path, 1, on_progress=seen.append)
    pool.run([small()], more=2, later=20.0, expected=lambda run: 10.0)
    assert (seen[-1].finished, seen[-1].total, seen[-1].left) == (1, 3, 20.0)
    assert seen[0].left == 30.0
    pool.run([small(seed=1), small(seed=2)])
    assert (seen[-1].finished, seen[-1].total, seen[-1].left, seen[-1].rounds) == (3, 3, 0.0, 12)


def test_there_is_no_estimate_before_anything_was_measured(tmp_path: Path) -> None:
    """These runs are shorter than the seconds that a pace is measured for, and others are still to come."""
    seen: list[Progress] = []
    ProcessPool(tmp_path, 1, on_progress=seen.append).run([small(), small("algorithm.name=ifca")], more=1)
    assert {now.left for now in seen} == {None}
    ProcessPool(tmp_path, 1, on_progress=seen.append).run([small(), small("algorithm.name=ifca")])  # all is there
    assert seen[-1].left == 0.0


def test_processes_share_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsoft.studies.process_pool.cores", lambda: 8)
    share = even_share(2, RunOptions(memory="4G", device="cpu"))
    assert (share.workers, share.memory) == (4, 2 * 10**9)
    assert even_share(2, RunOptions(workers=3)).workers == 3
    assert even_share(2, RunOptions(address="host:1")).workers is None


def killer(times: int) -> Callable[[Progress], None]:
    """Kills all workers, so often, as the system does when memory runs out."""
    pids: set[int] = set()

    def kill(now: Progress) -> None:
        for child in multiprocessing.active_children():
            if child.pid is not None and child.pid not in pids and len(pids) < times:
                pids.add(child.pid)
                os.kill(child.pid, signal.SIGKILL)

    return kill


def test_a_killed_process_does_not_lose_the_runs_beside_it(tmp_path: Path) -> None:
    wanted = [small("rounds=400"), small("rounds=400", seed=1)]
    outcomes = ProcessPool(tmp_path, 2, on_progress=killer(1)).run(wanted)
    assert outcomes is not None
    assert [outcome.ending.how for outcome in outcomes] == [Ended.FINISHED] * 2


def test_a_run_that_is_killed_every_time_is_named(tmp_path: Path) -> None:
    outcomes = ProcessPool(tmp_path, 1, on_progress=killer(9)).run([small("rounds=3000")])
    assert outcomes is not None
    assert outcomes[0].ending == KILLED


def test_ctrl_c_stops_and_the_same_call_resumes(tmp_path: Path) -> None:
    wanted = [small("rounds=600"), small("rounds=600", seed=1)]

    def interrupt(now: Progress) -> None:
        if now.rounds > 2:
            raise KeyboardInterrupt

    assert ProcessPool(tmp_path, 2, on_progress=interrupt).run(wanted) is None
    logs = sorted(tmp_path.glob("*/rounds.jsonl"))
    sizes = [log.stat().st_size for log in logs]
    time.sleep(0.5)
    assert [log.stat().st_size for log in logs] == sizes  # nobody works on
    outcomes = ProcessPool(tmp_path, 2).run(wanted)
    assert outcomes is not None
    whole = ProcessPool(tmp_path / "again", 1).run(wanted[:1])
    assert whole is not None
    for name in ("state.safetensors", "scores.json"):
        first, second = outcomes[0].folder, whole[0].folder
        assert first is not None
        assert second is not None
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes()
