from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from fedsoft.storage import tensorfile
from fedsoft.storage.tensorfile import Form, Saved, TensorFile, arrange, in_blocks, open_tensors, write_at

TYPES = [getattr(torch, name) for name in tensorfile.KINDS]


def written(path: Path, tensors: dict[str, Tensor], notes: str = "{}") -> bytes:
    """A file that was written a few rows at a time, the last tensor first."""
    source = in_blocks(tensors)
    header, places = arrange(source.forms, notes)
    handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR)
    file = TensorFile(handle, places)
    for name in reversed(tensors):
        for begin, rows in source.blocks(name):
            file.write(name, begin, rows)
    write_at(handle, header, 0)
    os.close(handle)
    return path.read_bytes()


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Tensor]:
    names = draw(st.lists(st.text("abz/._é", min_size=1, max_size=4), min_size=1, max_size=6, unique=True))
    made = {}
    for i, name in enumerate(names):
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        numbers = np.random.default_rng(i).integers(0, 2, shape)
        made[name] = torch.from_numpy(np.array(numbers)).to(draw(st.sampled_from(TYPES)))
    return made


@given(tables(), st.integers(1, 20))
def test_files_are_those_of_the_safetensors_library(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Tensor], block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "x.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorfile, "BLOCK_BYTES", block)
        content = written(path, tensors, notes='{"é": 1}')
        assert content == save(tensors, metadata={"fedsoft": '{"é": 1}'})
        notes, file = open_tensors(path)
        assert notes == '{"é": 1}'
        back = Saved(file, "")
        assert set(back) == set(tensors)
        for name, tensor in load(content).items():
            assert torch.equal(back[name], tensor)
            assert back[name].dtype == tensor.dtype
            rows = [rows for _, rows in back.blocks(name)]
            assert sum(len(part) for part in rows) == Form.of(tensor).rows
            if tensor.numel():
                assert torch.equal(torch.cat(rows).view(tensor.shape), tensor)


def test_blocks_are_as_long_as_rows_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorfile, "BLOCK_BYTES", 40)
    assert list(Form("F32", (7, 3)).spans()) == [(0, 3), (3, 6), (6, 7)]
    assert list(Form("F64", (2, 9)).spans()) == [(0, 1), (1, 2)]  # one row at least
    assert list(Form("F64", ()).spans()) == [(0, 1)]
    assert list(Form("F64", (0, 9)).spans()) == []


def test_rows_are_read_and_written_in_place(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(4, 3)
    written(tmp_path / "x", {"a": table, "b": torch.ones(5)})
    handle = os.open(tmp_path / "x", os.O_RDWR)
    file = TensorFile(handle, open_tensors(tmp_path / "x")[1].places)
    file.write("a", 1, torch.full((2, 3), -1.0))
    two = torch.empty(2, 3)
    file.read("a", 2, two)
    assert two.tolist() == [[-1, -1, -1], [9, 10, 11]]
    assert torch.equal(file.whole("b"), torch.ones(5))
    os.close(handle)


def test_an_open_file_can_be_replaced_and_is_still_read(tmp_path: Path) -> None:
    written(tmp_path / "x", {"a": torch.ones(3)})
    _, file = open_tensors(tmp_path / "x")
    written(tmp_path / "y", {"a": torch.zeros(3)})
    (tmp_path / "y").replace(tmp_path / "x")
    assert file.whole("a").tolist() == [1, 1, 1]
    assert open_tensors(tmp_path / "x")[1].whole("a").tolist() == [0, 0, 0]


def test_files_are_closed_when_they_are_no_longer_used(tmp_path: Path) -> None:
    written(tmp_path / "x", {"a": torch.ones(3)})
    _, file = open_tensors(tmp_path / "x")
    handle = file.handle
    os.fstat(handle)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def file_of(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


NOTES = {"__metadata__": {"fedsoft": "{}"}}
ROW = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        b"\xff" * 30,
        file_of(b"{"),
        file_of(b"\xff\xfe"),
        file_of([]),
        file_of({}),
        file_of({"__metadata__": {}}),
        file_of({"__metadata__": {"fedsoft": 1}}),
        file_of(NOTES | {"a": ROW}),  # no data
        file_of(NOTES | {"a": ROW}, b"0" * 9),  # too much of it
        file_of(NOTES | {"a": ROW | {"dtype": "X"}}, b"0" * 8),
        file_of(NOTES | {"a": ROW | {"shape": [3]}}, b"0" * 8),
        file_of(NOTES | {"a": ROW | {"shape": [-2]}}, b"0" * 8),
        file_of(NOTES | {"a": ROW | {"shape": 2}}, b"0" * 8),
        file_of(NOTES | {"a": ROW | {"shape": [2.0]}}, b"0" * 8),
        file_of(NOTES | {"a": ROW | {"data_offsets": [8, 16]}}, b"0" * 16),  # a gap
        file_of(NOTES | {"a": ROW, "b": ROW}, b"0" * 8),  # one upon the other
        file_of(NOTES | {"a": {"dtype": "F32"}}, b"0" * 8),
        file_of(NOTES | {"a": None}, b"0" * 8),
    ],
)
def test_a_damaged_file_is_found(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=r"it|Expecting|decode|no place"):
        open_tensors(tmp_path / "x")
