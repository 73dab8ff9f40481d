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
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.farm import KILLED, Farm, Progress, folders

SMALL = ["clients=10", "points=[8, 20]", "K=4", "epochs=1", "test_points=20", "rounds=4"]

pytestmark = pytest.mark.engine


def small(*changes: str, seed: int = 0) -> RunSpec:
    return spec.read("synthetic-10-90", [*SMALL, *changes]).with_seed(seed)


def test_one_that_fails_does_not_lose_the_others(tmp_path: Path) -> None:
    wanted = [small(), small("K=99"), small(seed=1)]
    outcomes = Farm(tmp_path, 2).run(wanted)
    assert outcomes is not None
    assert [o.spec for o in outcomes] == wanted
    assert [o.folder is not None and o.folder.scores() is not None for o in outcomes] == [True, False, True]
    assert "at most 10" in outcomes[1].problem
    with pytest.raises(FedsoftError, match=r"b, seed 0: .*at most 10"):
        folders(outcomes, ["a", "b", "c"])


def test_what_is_named_twice_or_saved_is_run_once(tmp_path: Path) -> None:
    seen: list[Progress] = []
    outcomes = Farm(tmp_path, 2, on_progress=seen.append).run([small(), small()])
    assert outcomes is not None
    assert outcomes[0].folder == outcomes[1].folder
    assert (seen[-1].finished, seen[-1].total, seen[-1].rounds) == (1, 1, 4)
    written = (tmp_path / small().id / "scores.json").stat().st_mtime_ns
    Farm(tmp_path, 2).run([small()])
    assert (tmp_path / small().id / "scores.json").stat().st_mtime_ns == written


def test_progress_counts_earlier_and_later_runs(tmp_path: Path) -> None:
    seen: list[Progress] = []
    farm = Farm(tmp_path, 1, on_progress=seen.append, seconds=lambda run: 10.0)
    farm.run([small()], more=2, later=20.0)
    assert (seen[-1].finished, seen[-1].total) == (1, 3)
    assert seen[0].left is not None
    farm.run([small(seed=1), small(seed=2)])
    assert (seen[-1].finished, seen[-1].total, seen[-1].left, seen[-1].rounds) == (3, 3, 0.0, 12)


def test_without_ground_there_is_no_estimate(tmp_path: Path) -> None:
    """These runs take less than the seconds that a pace is measured for, and others are still to come."""
    seen: list[Progress] = []
    Farm(tmp_path, 1, on_progress=seen.append).run([small(), small("algorithm.name=ifca")], more=1)
    assert {now.left for now in seen} == {None}
    Farm(tmp_path, 1, on_progress=seen.append).run([small(), small("algorithm.name=ifca")])  # all is there
    assert seen[-1].left == 0.0


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
    outcomes = Farm(tmp_path, 2, on_progress=killer(1)).run(wanted)
    assert outcomes is not None
    assert [outcome.problem for outcome in outcomes] == ["", ""]


def test_a_run_that_is_killed_every_time_is_named(tmp_path: Path) -> None:
    outcomes = Farm(tmp_path, 1, on_progress=killer(9)).run([small("rounds=3000")])
    assert outcomes is not None
    assert outcomes[0].problem == KILLED


def test_ctrl_c_stops_and_the_same_call_goes_on(tmp_path: Path) -> None:
    wanted = [small("rounds=600"), small("rounds=600", seed=1)]

    def interrupt(now: Progress) -> None:
        if now.rounds > 2:
            raise KeyboardInterrupt

    assert Farm(tmp_path, 2, on_progress=interrupt).run(wanted) is None
    logs = sorted(tmp_path.glob("*/rounds.jsonl"))
    sizes = [log.stat().st_size for log in logs]
    time.sleep(0.5)
    assert [log.stat().st_size for log in logs] == sizes  # nobody works on
    outcomes = Farm(tmp_path, 2).run(wanted)
    assert outcomes is not None
    whole = Farm(tmp_path / "again", 1).run(wanted[:1])
    assert whole is not None
    for name in ("state.safetensors", "scores.json"):
        first, second = outcomes[0].folder, whole[0].folder
        assert first is not None
        assert second is not None
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes()
