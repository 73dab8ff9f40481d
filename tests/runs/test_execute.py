"""A run that is stopped at any moment ends in the same bits as one that is not."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedsoft as fs
from fedsoft.cli.progress import Progress
from fedsoft.errors import InputError, StoreError
from fedsoft.reports.convergence import picture
from fedsoft.reports.tables import run_view
from fedsoft.runs import spec
from fedsoft.runs.execute import execute, place
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.load import load
from fedsoft.runs.run_options import RunOptions
from fedsoft.training import RoundRecord
from tests.helpers import logged

SMALL = ["clients=12", "points=[8, 20]", "K=5", "epochs=2", "test_points=50", "rounds=30"]
QUICK = RunOptions()


def small(*changes: str) -> spec.RunSpec:
    return spec.read("synthetic-10-90", [*SMALL, *changes])


def without_times(folder: RunFolder) -> list[dict[str, Any]]:
    return logged(folder.records())


def assert_same(one: RunFolder, other: RunFolder) -> None:
    assert (one.path / "state.safetensors").read_bytes() == (other.path / "state.safetensors").read_bytes()
    assert without_times(one) == without_times(other)
    assert one.scores() == other.scores()


def start(chosen: spec.RunSpec, out: Path, pause: float) -> subprocess.Popen[str]:
    """A real process that runs the spec, with a short pause after every round so that it can be hit in between."""
    code = f"""
import sys, time
from pathlib import Path
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.execute import execute
from fedsoft.runs.spec import RunSpec
import tomllib
spec = RunSpec.from_dict(tomllib.loads({chosen.to_toml()!r}), {chosen.label!r})
_, finished = execute(spec, Path({str(out)!r}), RunOptions(callbacks=[lambda record: time.sleep({pause})]))
print("finished" if finished else "stopped")
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rounds(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    log, deadline = path / "rounds.jsonl", time.monotonic() + 60
    while not log.exists() or log.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    chosen = small()
    folder, finished = execute(chosen, tmp_path_factory.mktemp("whole") / chosen.id, QUICK)
    assert finished
    return folder


@pytest.mark.engine
@pytest.mark.parametrize("after", [1, 9, 20])
def test_kill_and_resume_gives_the_same_bits(tmp_path: Path, whole: RunFolder, after: int) -> None:
    path = tmp_path / "run"
    process = start(small(), path, pause=0.01)
    wait_for_rounds(path, after, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert RunFolder.open(path).scores() is None
    folder, finished = execute(small(), path, QUICK)
    assert finished
    assert_same(folder, whole)


@pytest.mark.engine
def test_many_kills_in_a_row(tmp_path: Path, whole: RunFolder) -> None:
    path = tmp_path / "run"
    done = 0
    for _ in range(3):
        process = start(small(), path, pause=0.01)
        wait_for_rounds(path, done + 4, process)
        process.kill()
        process.communicate()
        done = len(RunFolder.open(path).records())
    folder, _ = execute(small(), path, QUICK)
    assert_same(folder, whole)


@pytest.mark.engine
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_finishes_the_round_and_saves(tmp_path: Path, whole: RunFolder, sign: signal.Signals) -> None:
    path = tmp_path / "run"
    process = start(small(), path, pause=0.05)
    wait_for_rounds(path, 5, process)
    process.send_signal(sign)
    printed, errors = process.communicate(timeout=60)
    assert printed.strip() == "stopped", errors
    point = RunFolder.open(path).checkpoint()
    assert point is not None
    assert point.rounds == len(RunFolder.open(path).records())
    folder, _ = execute(small(), path, QUICK)
    assert_same(folder, whole)


def test_a_run_that_is_scored_now_and_then_is_taken_up_and_drawn(tmp_path: Path, whole: RunFolder) -> None:
    """Stopped after a round that was not scored, it ends in the same bits; its last round is scored."""
    chosen, stops = small("score_every=4"), iter([False] * 6 + [True])
    _, finished = execute(chosen, tmp_path / "run", RunOptions(should_stop=lambda: next(stops)))
    assert not finished
    folder, finished = execute(chosen, tmp_path / "run", QUICK)
    assert finished
    records = folder.records()
    assert [record.round for record in records if record.centers] == [1, 5, 9, 13, 17, 21, 25, 29, 30]
    every = whole.records()
    assert all(record.centers == every[t].centers for t, record in enumerate(records) if record.centers)
    assert folder.scores() == whole.scores()
    assert (picture(folder) or b"").startswith(b"\x89PNG")
    out = Console(width=200, file=io.StringIO())
    out.print(run_view(folder))
    with Progress(Console(file=io.StringIO()), chosen, 0) as progress:
        for record in records:
            progress.update(record)
            assert progress.errors.startswith("best ")


@pytest.mark.engine
@pytest.mark.parametrize("stage", [RunOptions(chunk=5, workers=3), RunOptions(chunk=5, workers=2, memory=0)], ids=str)
def test_a_run_goes_on_with_other_workers_and_memory_in_the_same_bits(tmp_path: Path, stage: RunOptions) -> None:
    path = tmp_path / "run"
    chosen = small("rounds=8")
    plain, _ = execute(chosen, tmp_path / "whole", RunOptions(chunk=5, workers=1))

    def stop(record: RoundRecord) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(chosen, path, replace(stage, callbacks=[stop]))
    assert not list(path.glob(".*"))
    folder, finished = execute(chosen, path, replace(stage, workers=1))
    assert finished
    assert_same(folder, plain)
    assert not list(path.glob(".*"))


def test_resume_with_another_chunk_draws_the_same(tmp_path: Path, whole: RunFolder) -> None:
    folder, _ = execute(small(), tmp_path / "run", RunOptions(chunk=5))
    one, other = folder.checkpoint(), whole.checkpoint()
    assert one is not None
    assert other is not None
    assert torch.allclose(one.state.centers, other.state.centers, rtol=1e-4, atol=1e-4)
    assert [r.selected for r in folder.records()] == [r.selected for r in whole.records()]


def test_a_failing_disk_leaves_a_run_that_can_be_taken_up(
    tmp_path: Path, whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "run", 0
    replace = Path.replace

    def fail_once(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise OSError(28, os.strerror(28))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail_once)
    with pytest.raises(StoreError, match="No space left on device"):
        execute(small(), path, QUICK)
    monkeypatch.undo()
    assert not list(path.glob(".*"))
    folder, _ = execute(small(), path, QUICK)
    assert_same(folder, whole)


def test_a_finished_run_is_not_touched_again(whole: RunFolder) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in whole.path.iterdir()}
    _, finished = execute(small(), whole.path, QUICK)
    assert finished
    assert {path.name: path.stat().st_mtime_ns for path in whole.path.iterdir()} == before


def test_the_same_run_has_the_same_place_and_again_counts_up(tmp_path: Path) -> None:
    first = place(small(), tmp_path)
    assert place(small(), tmp_path) == first
    assert place(small("lam=2"), tmp_path) != first
    first.mkdir()
    assert place(small(), tmp_path, again=True).name == f"{first.name}-2"


def test_a_bad_spec_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(fs.InputError, match="K = 99"):
        execute(small("K=99"), tmp_path / "run", QUICK)
    with pytest.raises(fs.InputError, match="exact"):
        execute(spec.read("synthetic-10-90", ["model=mlp", "solver=exact", "clients=60"]), tmp_path / "run", QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_only_the_first_round_refuses_leaves_no_folder(tmp_path: Path) -> None:
    bad = spec.read("synthetic-10-90", ["algorithm.name=apfl", "solver=exact", "clients=12", "K=4", "rounds=2"])
    with pytest.raises(fs.InputError, match="takes no single steps"):
        execute(bad, tmp_path / "run", QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_run_is_the_run(whole: RunFolder) -> None:
    run = load(whole.path)
    assert run.rounds == 30
    assert run.scores() == whole.scores()
    fitted = fs.fit(
        fs.FedSoft(S=2, K=5),
        fs.datasets.synthetic(clients=12, points=(8, 20), test_points=50),
        fs.models.linear(),
        rounds=30,
        solver=fs.Adam(epochs=2),
    )
    assert torch.equal(fitted.state.centers, run.state.centers)
    assert torch.equal(fitted.personal(3)["weight"], run.personal("3")["weight"])


def test_divergence_is_named_and_the_last_good_state_is_kept(tmp_path: Path) -> None:
    with pytest.raises(fs.DivergedError, match="diverged"):
        execute(small("solver=sgd", "solver.lr=1e6"), tmp_path / "run", QUICK)
    point = RunFolder.open(tmp_path / "run").checkpoint()
    if point is not None:
        assert all(bool(torch.isfinite(t).all()) for t in point.state.tensors().values())


@pytest.mark.engine
def test_a_log_shorter_than_the_saved_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = start(small(), path, pause=0.02)
    wait_for_rounds(path, 8, process)
    process.kill()
    process.communicate()
    (path / "rounds.jsonl").write_bytes(b"")  # how many rounds were saved depends on the speed, but the first always is
    with pytest.raises(StoreError, match="holds 0 rounds, but"):
        execute(small(), path, QUICK)


def folder_spec(path: Path) -> spec.RunSpec:
    raw = {"rounds": 3, "algorithm": "fedavg", "model": "linear", "dataset": {"name": "folder", "path": str(path)}}
    return spec.RunSpec.from_dict(raw)


def write_clients(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    path.mkdir(exist_ok=True)
    for name in "ab":
        np.savez(path / f"{name}.npz", x=rng.standard_normal((9, 3)), y=rng.standard_normal(9))


def test_a_run_belongs_to_the_data_it_began_with(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_clients(data, 0)
    folder, _ = execute(folder_spec(data), tmp_path / "run", QUICK)
    execute(folder_spec(data), tmp_path / "run", QUICK)
    assert load(folder.path).rounds == 3
    write_clients(data, 1)
    for again in (lambda: execute(folder_spec(data), tmp_path / "run", QUICK), lambda: load(folder.path, data=True)):
        with pytest.raises(StoreError, match="the data has changed"):
            again()
    assert load(folder.path).rounds == 3  # what it has learned stands alone


def test_a_run_knows_its_held_out_points(tmp_path: Path) -> None:
    rows = [f"c{k % 2},{k},{k % 5},{k // 8}" for k in range(10)]
    data, raw = tmp_path / "all.csv", {"rounds": 1, "algorithm": "fedavg", "model": "linear"}
    split = {"column": "fold", "test": ["1"]}
    raw |= {"dataset": {"name": "table", "path": str(data), "client": "id", "split": split, "task": "regression"}}
    data.write_text("\n".join(["id,u,y,fold", *rows]) + "\n")
    execute(spec.RunSpec.from_dict(raw), tmp_path / "run", QUICK)
    data.write_text("\n".join(["id,u,y,fold", *rows[:-1], rows[-1].replace(",9,", ",11,")]) + "\n")
    with pytest.raises(StoreError, match="the held-out points have changed since run 'run' began: put them back"):
        execute(spec.RunSpec.from_dict(raw), tmp_path / "run", QUICK)


def test_a_missing_state_is_not_taken_for_a_run_that_never_began(tmp_path: Path) -> None:
    folder, _ = execute(small("rounds=3"), tmp_path / "run", QUICK)
    (folder.path / "state.safetensors").unlink()
    with pytest.raises(StoreError, match="is missing"):
        load(folder.path)


def test_a_run_on_one_source_learns_that_source(tmp_path: Path) -> None:
    changes = [
        "clients=12",
        "points=[40, 60]",
        "rounds=2",
        "algorithm.name=fedavg",
        "K=all",
        "source=1",
        "solver.name=exact",
    ]
    wanted = spec.read("synthetic-10-90", changes)
    folder, finished = execute(wanted, tmp_path / "run", QUICK)
    assert finished
    assert folder.spec() == wanted
    scores = folder.scores()
    assert scores is not None
    assert scores.centers is not None
    assert scores.centers[0][1] < 2 < scores.centers[0][0]  # noise 1; the other source was never seen
    assert "source 1 alone" in wanted.title


def test_a_run_whose_clients_are_elsewhere_has_its_centers_only(tmp_path: Path) -> None:
    folder, _ = execute(spec.read("synthetic-10-90", ["rounds=1", "clients=5", "K=3"]), tmp_path / "run", RunOptions())
    (folder.path / "federation.json").write_text("{}")
    run = load(folder.path)
    x = np.zeros((2, 10))
    assert len(run.predict(x, center=0)) == 2
    calls = (lambda: run.predict(x, client=0), lambda: run.personal(0), lambda: run.ensemble(client=0))
    for out_of_reach in calls:
        with pytest.raises(InputError, match="at the nodes of a federation"):
            out_of_reach()


def test_a_diverged_run_says_so_and_is_not_played_again(tmp_path: Path) -> None:
    chosen, path = small("algorithm=fedavg", "solver=sgd", "solver.lr=1e6"), tmp_path / "run"
    with pytest.raises(fs.DivergedError) as first:
        execute(chosen, path, QUICK)
    folder = RunFolder.open(path)
    assert folder.diverged == str(first.value)
    played: list[Any] = []
    with pytest.raises(fs.DivergedError) as second:
        execute(chosen, path, RunOptions(callbacks=[played.append]))
    assert str(second.value) == str(first.value)
    assert not played
    shown = Console(width=500, file=io.StringIO(), record=True)
    shown.print(run_view(folder))
    assert f"diverged after round {len(folder.records())} of 30: {first.value}" in shown.export_text()
    (path / "diverged.json").write_text("{")
    with pytest.raises(StoreError, match=r"diverged\.json' is damaged"):
        _ = folder.diverged


def test_runs_that_end_in_other_ways_have_not_diverged(whole: RunFolder) -> None:
    assert whole.diverged is None
    assert not (whole.path / "diverged.json").exists()


def test_more_centers_than_clients_are_noted_when_a_run_begins(tmp_path: Path) -> None:
    said: list[str] = []
    chosen = small("algorithm.S=13", "rounds=1")
    for _ in range(2):
        execute(chosen, tmp_path / "run", RunOptions(say=said.append))
    assert said == ["S = 13 centers for 12 clients: some will have hardly any data to learn from"]
