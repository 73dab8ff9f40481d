"""Run folders and files of tensors, whatever is in them."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import save
from torch import Tensor

from fedsoft.core.contract import State
from fedsoft.reports.run_list import runs_table
from fedsoft.reports.run_loader import read
from fedsoft.reports.tables import run_view
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.find import list_runs
from fedsoft.runs.folder import Checkpoint, RunFolder
from fedsoft.runs.load import load
from fedsoft.runs.run_options import RunOptions
from fedsoft.storage.tensorfile import KINDS, TYPES, Saved, open_tensors
from tests import helpers
from tests.fuzz.mutation import EXTREME, cases, mutated, refused

SMALL = [*helpers.SMALL, "rounds=2"]
FILES = ("spec.toml", "run.json", "rounds.jsonl", "state.safetensors", "scores.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    chosen = spec.read("synthetic-10-90", SMALL)
    return execute(chosen, tmp_path_factory.mktemp("whole") / "run", RunOptions(workers=1))[0]


def look(folder: RunFolder, console: Console) -> None:
    """All that reads a run without computing anything."""
    RunFolder.open(folder.path)
    console.print(run_view(folder))
    folder.states.last_good()
    folder.checkpoint()


@cases(100)
@given(data=st.data())
def test_run_folders(whole: RunFolder, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.getbasetemp() / "runs"
    path = root / "run"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(whole.path, path)
    for name in data.draw(st.lists(st.sampled_from(FILES), min_size=1, max_size=2, unique=True)):
        seeds = [(whole.path / name).read_bytes()]
        (path / name).write_bytes(data.draw(mutated(seeds)))
    with Path("/dev/null").open("w") as nowhere:
        console = Console(file=nowhere)
        refused(lambda: console.print(runs_table(list_runs(root))))
        refused(lambda: look(RunFolder(path), console))
    refused(lambda: read([str(path)], root))


class Forged:
    """A server's state that holds anything, under any names."""

    def __init__(self, named: dict[str, Tensor]) -> None:
        self.tensors = lambda: named


@cases(30)
@given(data=st.data())
def test_runs_that_are_loaded(whole: RunFolder, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Files that pass all checks because they were written by somebody who knows them."""
    path = tmp_path_factory.getbasetemp() / "forged"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole.path, path)
    folder, point = RunFolder(path), whole.checkpoint()
    assert point is not None
    state, kept = point.state.tensors(), dict(point.client_states)
    part, name = data.draw(st.sampled_from([(state, "centers"), (state, "u"), *((kept, name) for name in kept)]))
    shape = data.draw(st.sampled_from(((), (0,), (3,), (2, 4), (4, 2), (0, 4), (5, 5, 5))))
    change = data.draw(st.sampled_from(("gone", "other shape", "other type", "more")))
    if change == "gone":
        part.pop(name)
    elif change == "other shape":
        part[name] = torch.zeros(shape, dtype=part[name].dtype)
    elif change == "other type":
        part[name] = torch.zeros(part[name].shape, dtype=getattr(torch, data.draw(st.sampled_from([*KINDS]))))
    else:
        part[data.draw(st.sampled_from(("more", "extra.more", "per_client.more")))] = torch.zeros(shape)
    rounds = data.draw(st.integers(0, 3))
    folder.save(Checkpoint(rounds, cast(State, Forged(state)), kept))

    def use() -> None:
        run = load(path)
        run.predict(torch.zeros(2, 3), center=0)
        run.predict(torch.zeros(2, 3), client=0)

    refused(use)


TENSORS = save({"a": torch.arange(6.0).view(2, 3), "b": torch.arange(3)}, {"fedsoft": "{}"})


def whole_of(path: Path) -> None:
    _, file = open_tensors(path)
    found = Saved(file, "")
    for name in found:
        for _ in found.blocks(name):
            pass
        found[name].sum()


@cases()
@given(content=mutated([TENSORS]))
def test_files_of_tensors(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "tensors"
    path.write_bytes(content)
    refused(lambda: whole_of(path), ValueError)


VALUES: Any = st.one_of(
    st.sampled_from(EXTREME), st.integers(0, 9), st.none(), st.booleans(), st.floats(), st.text(max_size=3)
)
ENTRIES = st.fixed_dictionaries({
    "dtype": st.one_of(st.sampled_from(list(TYPES)), VALUES),
    "shape": st.one_of(st.lists(VALUES, max_size=4), VALUES),
    "data_offsets": st.one_of(st.lists(VALUES, min_size=2, max_size=2), VALUES),
})  # fmt: skip


@cases()
@given(entries=st.dictionaries(st.text(max_size=3), ENTRIES, max_size=3), body=st.binary(max_size=64))
def test_headers_of_tensors(tmp_path_factory: pytest.TempPathFactory, entries: dict[str, Any], body: bytes) -> None:
    """Headers that are well written, but claim anything."""
    path = tmp_path_factory.getbasetemp() / "tensors"
    header = json.dumps({"__metadata__": {"fedsoft": "{}"}, **entries}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    refused(lambda: whole_of(path), ValueError)


@pytest.mark.parametrize("shape", [[2**60], [2**60, 3], [0, 2**60], [2**60, 0], [2**62, 2**62]])
def test_tensors_that_claim_too_much(tmp_path: Path, shape: list[int]) -> None:
    size = 4
    for n in shape:
        size *= n
    for end in {0, 12, size}:
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}
        header = json.dumps({"__metadata__": {"fedsoft": "{}"}, "a": entry}).encode()
        (tmp_path / "t").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 12)
        with pytest.raises(ValueError, match=r"no place|too long|length|gaps"):
            open_tensors(tmp_path / "t")
