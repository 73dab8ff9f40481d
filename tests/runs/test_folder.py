from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load

from fedsoft.core.contract import State
from fedsoft.engine.client_store import Budget, ClientStore
from fedsoft.errors import InputError, StoreError
from fedsoft.runs import spec
from fedsoft.runs.find import find_run, list_runs
from fedsoft.runs.folder import Checkpoint, RunFolder
from fedsoft.runs.sealed import sealed
from fedsoft.storage import tensorfile
from fedsoft.storage.tensorfile import in_blocks
from tests.helpers import record


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    chosen = spec.read("synthetic-10-90")
    return RunFolder.create(tmp_path / chosen.id, chosen)


def point(rounds: int) -> Checkpoint:
    return Checkpoint(rounds, State(torch.full((2, 3), float(rounds))), {"steps": torch.arange(4)})


def test_what_is_saved_is_what_is_read(folder: RunFolder) -> None:
    folder.log.append(record(0))
    folder.save(point(1))
    read = folder.checkpoint()
    assert read is not None
    assert read.rounds == 1
    assert torch.equal(read.state.centers, torch.ones(2, 3))
    assert torch.equal(read.client_states["steps"], torch.arange(4))
    assert folder.spec() == spec.read("synthetic-10-90")


def test_what_clients_remember_is_saved_alike_from_memory_and_from_disk(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorfile, "BLOCK_BYTES", 50)
    memory = {"w": torch.arange(21.0).view(7, 3), "s": torch.arange(7), "tuned": torch.ones(7, dtype=torch.bool)}
    saved = []
    for size in (10**6, 0):
        vault = ClientStore(7, Budget(size))
        vault.put(np.arange(7), memory)
        folder.save(Checkpoint(1, State(torch.zeros(2, 3), extra={"s2": torch.tensor(0.5)}), vault))
        saved.append((folder.path / "state.safetensors").read_bytes())
    folder.save(Checkpoint(1, State(torch.zeros(2, 3), extra={"s2": torch.tensor(0.5)}), memory))
    saved.append((folder.path / "state.safetensors").read_bytes())
    assert saved[0] == saved[1] == saved[2]
    assert torch.equal(load(saved[0])["clients/w"], memory["w"])  # any reader of the format will do
    point = folder.checkpoint()
    assert point is not None
    assert float(point.state.extra["s2"]) == 0.5
    back = ClientStore(7, Budget(0))
    back.fill(in_blocks(point.client_states))
    for name, value in memory.items():
        assert torch.equal(back[name], value)


def test_views_of_the_same_memory_are_saved_each(folder: RunFolder) -> None:
    w = torch.arange(6.0).view(2, 3)
    folder.save(Checkpoint(1, State(w, extra={"turned": w.T, "row": w[1]}), {}))
    point = folder.checkpoint()
    assert point is not None
    assert torch.equal(point.state.extra["turned"], w.T)
    assert torch.equal(point.state.extra["row"], w[1])


def test_what_a_killed_process_left_is_removed_under_the_lock(folder: RunFolder) -> None:
    others = folder.path.parent
    for name in (
        ".state.safetensors-x1",
        ".rounds.jsonl-x2",
        ".scores.json-x3",
        ".memory-x4",
        "kept.png",
        ".figure-x",
    ):
        (folder.path / name).write_bytes(b"half")
    (others / ".new-old").mkdir()
    (others / ".new-old" / "spec.toml").write_text("half")
    os.utime(others / ".new-old", (1, 1))
    (others / ".new-now").mkdir()  # somebody may be at work on it
    before = {path.name for path in folder.path.iterdir()}
    RunFolder.open(folder.path).records()
    assert {path.name for path in folder.path.iterdir()} == before  # not without the lock
    with folder.lock():
        assert {path.name for path in folder.path.iterdir()} == {
            "spec.toml", "run.json", "lock", "kept.png", ".figure-x"
        }  # fmt: skip
    assert {path.name for path in others.iterdir()} == {folder.name, ".new-now"}


def test_the_folder_says_where_it_comes_from(folder: RunFolder) -> None:
    info = folder.info
    assert info.hash == folder.spec().hash
    assert all((info.python, info.platform, info.created))
    assert {"fedsoft", "torch", "numpy"} <= set(info.packages)


def test_log_lines_beyond_the_saved_state_are_dropped(folder: RunFolder) -> None:
    for t in range(3):
        folder.log.append(record(t))
    with (folder.path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 3, "ha')  # a torn write
    assert [r.round for r in folder.records()] == [1, 2, 3]
    assert [r.round for r in folder.log.cut(2)] == [1, 2]
    assert (folder.path / "rounds.jsonl").read_bytes().count(b"\n") == 2


def test_a_log_shorter_than_the_state_is_refused(folder: RunFolder) -> None:
    folder.log.append(record(0))
    with pytest.raises(StoreError, match="holds 1 rounds, but 2"):
        folder.log.cut(2)


@pytest.mark.parametrize("damage", ["cut", "flip", "rename", "empty", "foreign"])
def test_a_damaged_state_is_found(folder: RunFolder, damage: str) -> None:
    folder.log.append(record(0))
    folder.save(point(1))
    path = folder.path / "state.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[-5:]
    elif damage == "flip":
        content[-3] ^= 1
    elif damage == "rename":
        content[:] = content.replace(b"clients/steps", b"clients/stepx")
    elif damage == "empty":
        content.clear()
    else:
        content[:] = content.replace(folder.info.hash.encode(), b"0" * 12)
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"damaged|belongs to another run") as caught:
        folder.checkpoint()
    assert "\n" not in str(caught.value)


def test_a_changed_spec_is_found(folder: RunFolder) -> None:
    path = folder.path / "spec.toml"
    path.write_text(path.read_text().replace("lam = 1.0", "lam = 2.0"))
    with pytest.raises(StoreError, match="was changed after the run began"):
        folder.spec()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": "other"}'])
def test_a_foreign_folder_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(StoreError):
        RunFolder.open(tmp_path)


def test_a_failed_write_leaves_the_old_file(folder: RunFolder) -> None:
    """The limit on file size is real: the operating system refuses in the middle of the write."""
    folder.log.append(record(0))
    folder.save(point(1))
    before = (folder.path / "state.safetensors").read_bytes()
    code = f"""
import resource, torch
from pathlib import Path
from fedsoft.core.contract import State
from fedsoft.runs.folder import Checkpoint, RunFolder
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    RunFolder(Path({str(folder.path)!r})).save(Checkpoint(2, State(torch.zeros(9999)), {{}}))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("StoreError cannot write to")
    assert "\n" not in done.stdout.strip()
    assert (folder.path / "state.safetensors").read_bytes() == before
    assert not list(folder.path.glob(".state*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = spec.read("synthetic-10-90")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedsoft.runs.folder.sync", refuse)
    with pytest.raises(StoreError, match="No space left on device"):
        RunFolder.create(tmp_path / "runs" / "x", chosen)
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_the_second_process_is_refused(folder: RunFolder) -> None:
    code = f"""
from pathlib import Path
from fedsoft.runs.folder import RunFolder
try:
    with RunFolder(Path({str(folder.path)!r})).lock():
        print("held")
except Exception as error:
    print(error)
"""
    with folder.lock():
        refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "being worked on by another process" in refused.stdout
    free = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert free.stdout.strip() == "held"


def test_runs_are_found_by_the_beginning_of_their_name(tmp_path: Path) -> None:
    for seed in (0, 1):
        chosen = spec.read("synthetic-10-90").with_seed(seed)
        RunFolder.create(tmp_path / chosen.id, chosen)
    assert len(list_runs(tmp_path)) == 2
    assert find_run(tmp_path, "synthetic-10-90-s1").spec().seed == 1
    newest = spec.read("synthetic-10-90").with_seed(1).id
    with pytest.raises(InputError, match=rf"give more of the name \(the newest is {newest}\)"):
        find_run(tmp_path, "synthetic-10-90")
    with pytest.raises(InputError, match="there is no run 'x'"):
        find_run(tmp_path, "x")


def test_nothing_is_pickled(folder: RunFolder) -> None:
    folder.log.append(record(0))
    folder.save(point(1))
    header = (folder.path / "state.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    assert set(json.loads(header[8 : 8 + size])) == {"__metadata__", "state/centers", "clients/steps"}


@pytest.mark.parametrize("line", ["null", "[]", "{}", '{"round": 0}', "{"])
def test_a_damaged_log_is_named(folder: RunFolder, line: str) -> None:
    (folder.path / "rounds.jsonl").write_text(line + "\n")
    with pytest.raises(StoreError, match="damaged in line 1"):
        folder.records()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", "its checksum is wrong"), ("[]", "should hold one JSON object"), ("{", "is damaged"),
        (json.dumps(sealed({"metric": "mse"})), "it lacks higher_is_better, sources, centers"),
    ],
)  # fmt: skip
def test_damaged_scores_are_named(folder: RunFolder, content: str, told: str) -> None:
    (folder.path / "scores.json").write_text(content)
    with pytest.raises(StoreError, match=f"scores.json' is damaged.*{told}|{told}"):
        folder.scores()


def test_a_record_is_read_as_it_was_written(folder: RunFolder) -> None:
    usage = {"share": 0.5, "clients": 3, "on_all": 1.5, "on_own": None}
    excluded = [{"client": "3", "reason": "norm", "text": "the norm of 'w' is 9.0 times the median"}]
    full = record(0, last=True, selected=4, answered=0, phase="pooled", served=[usage], excluded=excluded,
                  excluded_more=2, privacy={"delta": 1e-5, "epsilon": 2.0}, centers=[[1.0, 1e300]], changed=["a"],
                  notes={"norms": [1.0, math.inf], "joined": 3})  # fmt: skip
    folder.log.append(full)
    assert folder.records() == [full]
    line = json.loads((folder.path / "rounds.jsonl").read_text())
    assert line["excluded"] == excluded
    assert line["answered"] == 0
    assert "weights" not in line  # what was not measured is not written


def test_a_folder_of_another_version_is_refused_in_one_sentence(folder: RunFolder) -> None:
    (folder.path / "run.json").write_text(json.dumps({"format": "fedsoft-run-1", "hash": "x"}))
    with pytest.raises(StoreError, match="has format 'fedsoft-run-1', this version reads 'fedsoft-run-3'"):
        RunFolder.open(folder.path)
