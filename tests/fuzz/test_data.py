"""Files of points and pictures, whatever is in them."""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from fedsoft.data import image_formats, numpy_files
from fedsoft.data.parquet import read_columns
from fedsoft.datasets.folder import folder
from fedsoft.errors import InputError
from tests.fuzz.mutation import cases, mutated, refused
from tests.pictures import idx

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((9, 3)), RNG.integers(0, 3, 9)


def csv(names: bool = True, text: bool = False) -> bytes:
    lines = [",".join(f"{v:.5g}" for v in row) + f",{'abc'[k] if text else k}" for row, k in zip(X, Y, strict=True)]
    return ("a,b,c,y\n" * names + "\n".join(lines) + "\n").encode()


def npz(save: Callable[..., None] = np.savez, **arrays: np.ndarray) -> bytes:
    with io.BytesIO() as buffer:
        save(buffer, **arrays)
        return buffer.getvalue()


def table(**options: Any) -> bytes:
    with io.BytesIO() as buffer:
        columns = {name: X[:, j] for j, name in enumerate("abc")} | {"y": Y}
        parquet.write_table(pa.table(columns), buffer, **options)
        return buffer.getvalue()


SEEDS = {
    ".csv": [csv(), csv(text=True), csv(names=False), b"y,a\n1,2\n"],
    ".npz": [npz(x=X, y=Y), npz(np.savez_compressed, x=X, y=Y), npz(x=X, y=np.array(list("abcabcabc")))],
    ".parquet": [table(), table(compression="zstd"), table(compression="none", use_dictionary=False)],
}


def slow_where(names: Iterable[str], slow: str) -> list[Any]:
    """Parquet is read by a process of its own, which bad files end."""
    return [pytest.param(name, marks=pytest.mark.slow) if name == slow else name for name in names]


@pytest.mark.parametrize("ending", slow_where(SEEDS, ".parquet"))
@cases()
@given(data=st.data())
def test_files_of_clients(tmp_path_factory: pytest.TempPathFactory, ending: str, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "clients"
    path.mkdir(exist_ok=True)
    for file in path.iterdir():
        file.unlink()
    (path / f"good{ending}").write_bytes(SEEDS[ending][0])
    (path / f"bad{ending}").write_bytes(data.draw(mutated(SEEDS[ending])))
    refused(lambda: folder(path))


IMAGES = RNG.integers(0, 256, (3, 28, 28)).astype(np.uint8)
LABELS = np.array([0, 3, 9], np.uint8)
CIFAR = b"".join(bytes([k]) + RNG.bytes(3072) for k in (1, 2))


def lists() -> bytes:
    with io.BytesIO() as buffer:
        parquet.write_table(pa.table({"images": IMAGES.reshape(3, -1).tolist(), "labels": LABELS}), buffer)
        return buffer.getvalue()


PICTURES: dict[str, tuple[Callable[[Path], object], list[bytes]]] = {
    "images": (lambda path: image_formats.read_images(path, 28, 28), [idx(IMAGES), gzip.compress(idx(IMAGES))]),
    "labels": (lambda path: image_formats.read_labels(path, 10), [idx(LABELS), gzip.compress(idx(LABELS))]),
    "cifar": (image_formats.read_cifar, [CIFAR]),
    "arrays": (
        lambda path: numpy_files.read_arrays(path, ["images", "labels"]),
        [npz(images=IMAGES, labels=LABELS), npz(np.savez_compressed, images=IMAGES, labels=LABELS)],
    ),
    "columns": (lambda path: read_columns(path, ["images", "labels"]), [lists()]),
}


@pytest.mark.parametrize("kind", slow_where(PICTURES, "columns"))
@cases()
@given(data=st.data())
def test_files_of_pictures(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "picture"
    read, seeds = PICTURES[kind]
    path.write_bytes(data.draw(mutated(seeds)))
    refused(lambda: read(path))


# --- headers that claim what cannot be --------------------------------------------------------------------------------


def lying_array(rows: int, *, packed: bool) -> bytes:
    """An archive whose array claims so many rows of three numbers, and has none."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (rows, 3)})
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
            archive.writestr("x.npy", header.getvalue())
            archive.writestr("y.npy", header.getvalue())
        return buffer.getvalue()


@pytest.mark.parametrize("rows", [10**6, 2**36, 2**60])
@pytest.mark.parametrize("packed", [False, True])
def test_arrays_that_claim_too_much(tmp_path: Path, rows: int, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.npz").write_bytes(lying_array(rows, packed=packed))
    monkeypatch.setattr(sys.modules["fedsoft.data.numpy_files"], "read_array", lambda *_: pytest.fail("it was read"))
    with pytest.raises(InputError, match="more than a file of this size can hold"):
        folder(tmp_path)


def test_archives_that_unpack_to_more_than_there_is_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.npz").write_bytes(npz(np.savez_compressed, x=np.zeros((10**5, 3)), y=np.zeros(10**5)))
    monkeypatch.setattr(sys.modules["fedsoft.data.client_files"], "available", lambda: 10**6)
    with pytest.raises(InputError, match="'x' is 100000 x 3 of float64, at most 1000000 bytes are read"):
        folder(tmp_path)


def test_tables_that_unpack_to_more_than_there_is_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million equal numbers are a few hundred bytes in a parquet file."""
    parquet.write_table(pa.table({"a": np.zeros(10**6), "y": np.zeros(10**6)}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10**4
    monkeypatch.setattr(sys.modules["fedsoft.data.tables"], "available", lambda: 10**6)
    with pytest.raises(InputError, match="claims 1000000 rows, 16000000 bytes: at most 1000000 can be read"):
        folder(tmp_path)


@pytest.mark.parametrize("kind", ["images", "labels"])
def test_pictures_that_claim_too_much(tmp_path: Path, kind: str) -> None:
    content = bytearray(idx(IMAGES if kind == "images" else LABELS))
    content[4:8] = b"\xff\xff\xff\xff"
    for packed in (False, True):
        (tmp_path / "p").write_bytes(gzip.compress(bytes(content)) if packed else bytes(content))
        with pytest.raises(InputError, match=r"more than a file of this size can hold|too large"):
            PICTURES[kind][0](tmp_path / "p")
