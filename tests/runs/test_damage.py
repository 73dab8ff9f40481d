"""Files of a run that are truncated or have a wrong bit are found, and the last good state is used."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedsoft as fs
from fedsoft.cli import app
from fedsoft.errors import FedsoftError, InputError, StoreError
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.folder import Checkpoint, RunFolder
from fedsoft.runs.run_options import RunOptions
from tests import helpers
from tests.runs.test_execute import assert_same, folder_spec, write_clients

SMALL = [*helpers.SMALL, "rounds=5"]
FILES = (
    "spec.toml",
    "run.json",
    "rounds.jsonl",
    "state.safetensors",
    "state-before.safetensors",
    "state-2.safetensors",
)


def chosen() -> spec.RunSpec:
    return spec.read("synthetic-10-90", SMALL)


@pytest.fixture(scope="module")
def every_round() -> Any:
    """Saves after every round, however slow the disk is."""
    patch = pytest.MonkeyPatch()
    patch.setattr("fedsoft.runs.saving.SAVING_SHARE", float("inf"))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, every_round: None) -> RunFolder:
    return execute(chosen(), tmp_path_factory.mktemp("whole") / "run", RunOptions(workers=1, keep=2))[0]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, every_round: None) -> RunFolder:
    """After round 4 of 5, with the states of rounds 2, 3 and 4."""
    stops = iter([False] * 3 + [True])
    folder, finished = execute(
        chosen(),
        tmp_path_factory.mktemp("stopped") / "run",
        RunOptions(workers=1, keep=2, should_stop=lambda: next(stops)),
    )
    assert not finished
    return folder


@pytest.fixture
def copy(stopped: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(stopped.path, tmp_path / "copy")))


def tensors(point: Checkpoint) -> dict[str, torch.Tensor]:
    return {f"state/{name}": value for name, value in point.state.tensors().items()} | {
        f"clients/{name}": value for name, value in point.client_states.items()
    }


def seen(folder: RunFolder) -> dict[str, Any]:
    """All that a run is resumed from."""
    RunFolder.open(folder.path)
    found = folder.states.last_good()
    assert found.point is not None
    return {"spec": folder.spec().hash, "hash": folder.info.hash, "rounds": found.point.rounds,
            "tensors": tensors(found.point), "said": found.said,
            "records": folder.log.read()[0][: found.point.rounds]}  # fmt: skip


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    tensors, others = one["tensors"], other["tensors"]
    return tensors.keys() == others.keys() and all(torch.equal(tensors[name], others[name]) for name in tensors)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_wrong_bit_anywhere_is_found_or_harmless(stopped: RunFolder, copy: RunFolder, name: str) -> None:
    """At every byte of what identifies run and state, every third byte of other text, every seventh of the numbers."""
    whole, log = seen(stopped), stopped.records()
    good = {rounds: stopped.checkpoint(rounds) for rounds in (2, 3, 4)}
    content = (stopped.path / name).read_bytes()
    header = 8 + int.from_bytes(content[:8], "little") if name.endswith(".safetensors") else len(content)
    found = refused = 0
    places = [*range(0, header, 1 if name in ("state.safetensors", "run.json") else 3), *range(header, len(content), 7)]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place * 5 % 8)
        (copy.path / name).write_bytes(damaged)
        try:
            now = seen(copy)
        except FedsoftError as error:
            refused += "\n" not in str(error)
            continue
        point = good[now["rounds"]]
        assert point is not None
        assert now["hash"] == whole["hash"] == now["spec"]
        assert now["records"] == log[: now["rounds"]]
        assert same(now, {"tensors": tensors(point)})
        assert (now["rounds"] == 4) or now["said"].endswith(f"going on from round {now['rounds']}, the last good one")
        found += bool(now["said"])
    if name == "state.safetensors":
        assert refused == 0
        assert found > 0.97 * len(places)
    if name in ("run.json", "rounds.jsonl"):
        assert found + refused > 0.8 * len(places)  # what is left are the spaces


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "one short": lambda content: content[:-1],
    "zeros": lambda content: b"\0" * len(content),
    "flipped": lambda content: content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
    "longer": lambda content: content + b"x",
    "other file": lambda content: b"\x89PNG\r\n" + content,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_ends_in_the_same_bits_or_is_refused(
    copy: RunFolder, whole: RunFolder, name: str, damage: str
) -> None:
    path, notes = copy.path / name, []
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    refused = ""
    try:
        execute(chosen(), copy.path, RunOptions(workers=1, say=notes.append))
    except StoreError as error:
        refused = str(error)
    if refused:
        assert name in ("spec.toml", "run.json", "rounds.jsonl")
        assert name in refused
        assert "\n" not in refused
        return
    folder = copy
    assert_same(folder, whole)
    assert (folder.path / "state-4.safetensors").read_bytes() == (whole.path / "state-4.safetensors").read_bytes()
    if name == "state.safetensors":  # the state of round 4 was kept, too
        assert len(notes) == 1
        assert "state.safetensors' is damaged" in notes[0]
        assert "going on from round 4, the last good one" in notes[0]
        assert (copy.path / "damaged-state.safetensors").exists()


def test_the_last_good_state_is_used_whichever_that_is(copy: RunFolder, whole: RunFolder) -> None:
    """One after the other is damaged; when none is left, that is said."""
    said = []
    for name, left in (("state.safetensors", 4), ("state-4.safetensors", 3), ("state-before.safetensors", 2)):
        content = bytearray((copy.path / name).read_bytes())
        content[-1] ^= 1
        (copy.path / name).write_bytes(content)
        found = copy.states.last_good()
        assert found.point is not None
        assert found.point.rounds == left
        said.append(found.said)
    assert len(set(said)) == 3
    folder, _ = execute(chosen(), copy.path, RunOptions(workers=1, say=said.append))
    assert len(said) == 4
    assert_same(folder, whole)
    for path in copy.path.glob("*.safetensors"):
        path.write_bytes(b"")
    (copy.path / "scores.json").unlink()
    with pytest.raises(StoreError, match="no good state of an earlier round is kept: run it again with --again"):
        execute(chosen(), copy.path, RunOptions(workers=1))


def test_a_line_of_the_log_that_is_damaged_takes_an_older_state(copy: RunFolder, whole: RunFolder) -> None:
    log = copy.path / "rounds.jsonl"
    lines, said = log.read_bytes().split(b"\n"), []
    log.write_bytes(b"\n".join([*lines[:2], lines[2].replace(b'"round"', b'"ruond"'), *lines[3:]]))
    folder, _ = execute(chosen(), copy.path, RunOptions(workers=1, say=said.append))
    assert "is damaged in line 3: going on from round 2" in said[0]
    assert_same(folder, whole)


def test_what_was_never_synced_is_no_damage(copy: RunFolder, whole: RunFolder) -> None:
    with (copy.path / "rounds.jsonl").open("ab") as file:
        file.write(b"\0" * 300 + b"\n")
    assert len(copy.records()) == 4
    assert copy.states.last_good().said == ""
    folder, _ = execute(chosen(), copy.path, RunOptions(workers=1))
    assert_same(folder, whole)


# --- what people see --------------------------------------------------------------------------------------------------


def fedsoft(*arguments: str) -> tuple[int, str]:
    """A command in this process: its exit code and what it said. An error of the user is exit code 2."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if isinstance(done.exception, FedsoftError):
        return 2, f"{done.output}error: {done.exception}"
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_resume_says_what_was_damaged(copy: RunFolder) -> None:
    (copy.path / "state.safetensors").write_bytes(b"torn")
    code, said = fedsoft("resume", str(copy.path))
    assert code == 0
    assert "note: '" in said
    assert "going on from round 4, the last good one" in said


@pytest.mark.slow
def test_a_finished_run_whose_state_is_damaged_is_refused_by_readers_and_repaired_by_resume(
    whole: RunFolder, tmp_path: Path
) -> None:
    folder = RunFolder(Path(shutil.copytree(whole.path, tmp_path / "run")))
    state = (folder.path / "state.safetensors").read_bytes()
    (folder.path / "state.safetensors").write_bytes(state[:-3])
    with pytest.raises(StoreError, match=r"is damaged .*fedsoft resume .* goes on from an older state"):
        fs.load(folder.path)
    write_clients(tmp_path / "data", 0)
    for command in (("adopt", str(folder.path), "--data", str(tmp_path / "data")),
                    ("predict", str(folder.path), "--center", "0", "--data", str(tmp_path / "data" / "a.npz")),
                    ("export", str(folder.path))):  # fmt: skip
        code, said = fedsoft(*command)
        assert code == 2
        assert "is damaged" in said
    code, said = fedsoft("show", str(folder.path))  # which does not need it
    assert code == 0
    code, said = fedsoft("resume", str(folder.path))
    assert code == 0, said
    assert "going on from round 4" in said
    assert (folder.path / "state.safetensors").read_bytes() == state
    assert_same(folder, whole)
    (folder.path / "scores.json").write_text("{")
    code, said = fedsoft("resume", str(folder.path))
    assert code == 0, said
    assert "computed again from the saved state" in said
    assert_same(folder, whole)


def test_ls_and_show_answer_for_damaged_folders(stopped: RunFolder, tmp_path: Path) -> None:
    for name in FILES[:3]:
        broken = Path(shutil.copytree(stopped.path, tmp_path / "runs" / name.replace(".", "-")))
        (broken / name).write_bytes(os.urandom(64))
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "directory" / "run.json").mkdir(parents=True)
    code, said = fedsoft("ls", "--out", str(tmp_path / "runs"), "--json")
    assert code == 0
    assert said.count("damaged") >= 3
    for name in ("spec-toml", "run-json", "rounds-jsonl", "directory", "empty"):
        code, said = fedsoft("show", str(tmp_path / "runs" / name))
        assert code == 2, name
        assert said.count("error: ") == 1


# --- kept rounds ------------------------------------------------------------------------------------------------------


def test_kept_rounds_are_those_of_the_run(whole: RunFolder, tmp_path: Path) -> None:
    plain, _ = execute(chosen(), tmp_path / "plain", RunOptions(workers=1))
    assert_same(plain, whole)  # keeping changes nothing
    assert plain.info.hash == whole.info.hash
    assert (whole.states.kept, plain.states.kept) == ([2, 4], [])
    short, _ = execute(spec.read("synthetic-10-90", [*SMALL, "rounds=2"]), tmp_path / "short", RunOptions(workers=1))
    kept, other = fs.load(whole.path, round=2), fs.load(short.path)
    assert kept.rounds == len(kept.history) == 2
    assert torch.equal(kept.state.centers, other.state.centers)
    assert torch.equal(kept.personal(1)["weight"], other.personal(1)["weight"])
    assert fs.load(whole.path, round=5).rounds == 5
    with pytest.raises(InputError, match=r"round = 3 of run .* is not there: should be one of 2, 4, 5"):
        fs.load(whole.path, round=3)


def test_the_command_keeps_and_shows_rounds(tmp_path: Path) -> None:
    sets = [word for change in SMALL for word in ("--set", change)]
    code, said = fedsoft("run", "synthetic-10-90", *sets, "--keep", "2", "--out", str(tmp_path))
    assert code == 0, said
    assert "Kept: the state of rounds 2, 4" in said
    (path,) = (path for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert not (path / "state-before.safetensors").exists()
    assert fedsoft("run", "synthetic-10-90", "--keep", "0", "--out", str(tmp_path))[0] == 2


def test_a_run_goes_on_keeping(tmp_path: Path) -> None:
    """What was asked for at the beginning holds for who takes the run up."""
    stops = iter([True])
    execute(chosen(), tmp_path / "run", RunOptions(workers=1, keep=2, should_stop=lambda: next(stops)))
    folder, _ = execute(chosen(), tmp_path / "run", RunOptions(workers=1))
    assert folder.states.kept == [2, 4]
    with pytest.raises(InputError, match="keep = 0"):
        execute(chosen(), tmp_path / "other", RunOptions(keep=0))


# --- other places and other processes ---------------------------------------------------------------------------------


def test_a_copied_folder_goes_on_at_another_place(stopped: RunFolder, whole: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "other-name"
    path.parent.mkdir()
    path.mkdir()
    for file in stopped.path.iterdir():  # as scp does: other times, no lock
        if file.name != "lock":
            (path / file.name).write_bytes(file.read_bytes())
            os.utime(path / file.name, (1, 1))
    folder, finished = execute(chosen(), path, RunOptions(workers=1))
    assert finished
    assert_same(folder, whole)


def test_a_run_whose_data_is_elsewhere_now_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clients(tmp_path / "data", 0)
    stops = iter([True])
    execute(folder_spec(tmp_path / "data"), tmp_path / "run", RunOptions(should_stop=lambda: next(stops)))
    (tmp_path / "data").rename(tmp_path / "moved")
    code, said = fedsoft("resume", str(tmp_path / "run"))
    assert code == 2
    assert "does not exist (--data PATH tells where it is now)" in said
    with pytest.raises(InputError, match=r"does not exist \(data=\.\.\. tells where it is now\)"):
        fs.load(tmp_path / "run", data=True)
    points = ("--data", str(tmp_path / "moved" / "a.npz"))
    code, said = fedsoft("predict", str(tmp_path / "run"), "--center", "0", *points)
    assert code == 0, said
    code, said = fedsoft("adopt", str(tmp_path / "run"), *points)
    assert code == 2
    assert "does not exist: put it back, or finish the run" in said
    code, said = fedsoft("resume", str(tmp_path / "run"), "--data", str(tmp_path / "moved"))
    assert code == 0, said
    whole, _ = execute(folder_spec(tmp_path / "moved"), tmp_path / "whole", RunOptions())
    one, other = RunFolder(tmp_path / "run").checkpoint(), whole.checkpoint()
    assert one is not None
    assert other is not None
    assert torch.equal(one.state.centers, other.state.centers)
    assert fs.load(tmp_path / "run", data=tmp_path / "moved").rounds == 3
    write_clients(tmp_path / "moved", 1)
    with pytest.raises(StoreError, match="the data has changed"):
        fs.load(tmp_path / "run", data=tmp_path / "moved")
    (tmp_path / "moved" / "a.npz").write_bytes(b"nothing")
    with pytest.raises(
        InputError, match=r"not an \.npz archive"
    ) as caught:  # the files are there: no word about other places
        fs.load(tmp_path / "run", data=tmp_path / "moved")
    assert "where it is now" not in str(caught.value)
    with pytest.raises(InputError, match="reads no files"):
        fs.load(execute(chosen(), tmp_path / "plain", RunOptions())[0].path, data=tmp_path)


def test_a_relative_path_is_found_from_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clients(tmp_path / "data", 0)
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "sub" / "own.toml"
    own.parent.mkdir()
    own.write_text('algorithm = "fedavg"\nmodel = "linear"\ndataset = { name = "folder", path = "../data" }\n')
    assert spec.read(str(own), ["dataset.path=data"]).dataset.settings["path"] == str(tmp_path / "data")
    assert Path(spec.read("sub/own.toml").dataset.settings["path"]).samefile(tmp_path / "data")


@pytest.mark.engine
def test_a_second_process_is_refused_and_a_killed_one_lets_go(tmp_path: Path, whole: RunFolder) -> None:
    code = f"""
import sys
from pathlib import Path
from fedsoft.runs import spec
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.execute import execute

def wait(record):
    print("in round", record.round, flush=True)
    sys.stdin.read()

execute(spec.read("synthetic-10-90", {SMALL!r}), Path({str(tmp_path / "run")!r}), RunOptions(callbacks=[wait], keep=2))
"""
    first = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "in round 1\n"
        before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
        code, refused = fedsoft("resume", str(tmp_path / "run"))
        assert code == 2
        assert "is being worked on by another process: wait for it, or stop it first" in refused
        assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    folder, _ = execute(chosen(), tmp_path / "run", RunOptions(workers=1))
    assert_same(folder, whole)


def test_two_that_begin_the_same_run_at_once_share_its_folder(tmp_path: Path) -> None:
    """The one whose folder comes second uses the first, and then asks for its lock."""
    first = RunFolder.create(tmp_path / "run", chosen())
    second = RunFolder.create(tmp_path / "run", chosen())
    assert second == first
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_only_be_read(whole: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    path = Path(shutil.copytree(whole.path, tmp_path / "runs" / "run"))
    for place in (path, path.parent):
        place.chmod(0o555)
    try:
        assert fedsoft("show", str(path))[0] == 0
        assert np.isfinite(fs.load(path).state.centers.numpy()).all()
        code, said = fedsoft("run", "synthetic-10-90", "--rounds", "1", "--out", str(path.parent))
        assert code == 2
        assert "make the folder writable, or choose another one with --out" in said
    finally:
        for place in (path, path.parent):
            place.chmod(0o755)
