from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsoft import spec
from fedsoft.errors import InputError, StoreError
from fedsoft.store import Checkpoint, RunFolder, find_run, list_runs


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    chosen = spec.read("synthetic-10-90")
    return RunFolder.create(tmp_path / chosen.id, chosen)


def record(t: int) -> dict[str, Any]:
    return {"round": t, "last": False, "gradients": 1, "bytes_down": 1, "bytes_up": 1, "seconds": 0.1}


def point(rounds: int) -> Checkpoint:
    return Checkpoint(rounds, {"centers": torch.full((2, 3), float(rounds))}, {"steps": torch.arange(4)})


def test_what_is_saved_is_what_is_read(folder: RunFolder) -> None:
    folder.append(record(0))
    folder.save(point(1))
    read = folder.checkpoint()
    assert read is not None
    assert read.rounds == 1
    assert torch.equal(read.state["centers"], torch.ones(2, 3))
    assert torch.equal(read.memory["steps"], torch.arange(4))
    assert folder.spec() == spec.read("synthetic-10-90")


def test_the_folder_says_where_it_comes_from(folder: RunFolder) -> None:
    info = folder.info
    assert info["hash"] == folder.spec().hash
    assert {"python", "platform", "created"} <= set(info)
    assert {"fedsoft", "torch", "numpy"} <= set(info["packages"])


def test_log_lines_beyond_the_saved_state_are_dropped(folder: RunFolder) -> None:
    for t in range(3):
        folder.append(record(t))
    with (folder.path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 3, "ha')  # a torn write
    assert [r["round"] for r in folder.records()] == [0, 1, 2]
    assert [r["round"] for r in folder.cut(2)] == [0, 1]
    assert (folder.path / "rounds.jsonl").read_bytes().count(b"\n") == 2


def test_a_log_shorter_than_the_state_is_refused(folder: RunFolder) -> None:
    folder.append(record(0))
    with pytest.raises(StoreError, match="holds 1 rounds, but 2"):
        folder.cut(2)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_state_is_found(folder: RunFolder, damage: str) -> None:
    folder.append(record(0))
    folder.save(point(1))
    path = folder.path / "state.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[-5:]
    elif damage == "flip":
        content[-3] ^= 1
    elif damage == "empty":
        content.clear()
    else:
        content[:] = content.replace(folder.info["hash"].encode(), b"0" * 12)
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
    folder.append(record(0))
    folder.save(point(1))
    before = (folder.path / "state.safetensors").read_bytes()
    code = f"""
import resource, torch
from pathlib import Path
from fedsoft.store import Checkpoint, RunFolder
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    RunFolder(Path({str(folder.path)!r})).save(Checkpoint(2, {{"centers": torch.zeros(9999)}}, {{}}))
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

    monkeypatch.setattr("fedsoft.store._sync", refuse)
    with pytest.raises(StoreError, match="No space left on device"):
        RunFolder.create(tmp_path / "runs" / "x", chosen)
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_second_process_is_refused(folder: RunFolder) -> None:
    code = f"""
from pathlib import Path
from fedsoft.store import RunFolder
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
    with pytest.raises(InputError, match="give more of the name"):
        find_run(tmp_path, "synthetic-10-90")
    with pytest.raises(InputError, match="there is no run 'x'"):
        find_run(tmp_path, "x")


def test_nothing_is_pickled(folder: RunFolder) -> None:
    folder.append(record(0))
    folder.save(point(1))
    header = (folder.path / "state.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    assert set(json.loads(header[8 : 8 + size])) == {"__metadata__", "state/centers", "memory/steps"}


@pytest.mark.parametrize("line", ["null", "[]", "{}", '{"round": 0}', "{"])
def test_a_damaged_log_is_named(folder: RunFolder, line: str) -> None:
    (folder.path / "rounds.jsonl").write_text(line + "\n")
    with pytest.raises(StoreError, match="damaged in line 1"):
        folder.records()


@pytest.mark.parametrize("content", ["{}", "[]", "{"])
def test_damaged_scores_are_named(folder: RunFolder, content: str) -> None:
    (folder.path / "scores.json").write_text(content)
    with pytest.raises(StoreError, match="damaged"):
        folder.scores()
