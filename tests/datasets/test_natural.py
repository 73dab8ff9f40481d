from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.errors import InputError
from tests.pictures import number_of, numbered

COUNT = 12


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    made = {
        "images": numbered(COUNT, 5, 5),
        "labels": np.arange(COUNT) % 3,
        "clients": np.array(["zoe", "ann", "bob"] * 4),
    }
    return made | changes


def write(path: Path, **changes: Any) -> Path:
    np.savez(path / "a.npz", allow_pickle=True, **arrays(**changes))
    return path / "a.npz"


def sentence(path: Path, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        fs.datasets.natural(path, **settings)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_every_owner_is_a_client_and_nobody_knows_the_mixture(tmp_path: Path) -> None:
    fed = fs.datasets.natural(write(tmp_path), held_out=0.25)
    assert fed.names == ("ann", "bob", "zoe")
    assert fed.truth is None
    assert fed.train.x.dtype == torch.uint8
    assert fed.train.y.dtype == torch.int64
    assert fed.shape.input == (1, 5, 5)
    assert fed.shape.outputs == 3
    assert fed.train.sizes.tolist() == [3, 3, 3]
    assert fed.held_out.sizes.tolist() == [1, 1, 1]
    numbers = [number_of(data.x.numpy()) for data in (fed.train, fed.held_out)]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(COUNT))
    assert (numbers[0] % 3 == fed.train.y.numpy()).all()


def test_a_folder_of_arrays_is_the_same(tmp_path: Path) -> None:
    for name, array in arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    one, other = fs.datasets.natural(tmp_path), fs.datasets.natural(write(tmp_path))
    assert torch.equal(one.train.x, other.train.x)
    assert one.names == other.names


def parquet(path: Path, **columns: Any) -> Path:
    given = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(given), path / "a.parquet")
    return path / "a.parquet"


@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("form", ["nested", "flat", "fixed"])
def test_a_parquet_file_is_the_same(tmp_path: Path, channels: int | None, form: str) -> None:
    images = numbered(COUNT, 5, 5) if channels is None else numbered(COUNT, channels, 5, 5)
    flat = pyarrow.array(images.reshape(COUNT, -1).tolist(), pyarrow.list_(pyarrow.uint8()))
    if form == "fixed":
        flat = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(images.ravel()), images[0].size)
    nested = pyarrow.array(images.tolist())
    if form == "nested":
        deep: pyarrow.DataType = pyarrow.uint8()
        for _ in range(images.ndim - 1):
            deep = pyarrow.list_(deep)
        nested = nested.cast(deep)
    path = parquet(tmp_path, **arrays(images=nested if form == "nested" else flat))
    one, other = fs.datasets.natural(path), fs.datasets.natural(write(tmp_path, images=images))
    assert torch.equal(one.train.x, other.train.x)
    assert torch.equal(one.held_out.y, other.held_out.y)
    assert one.names == other.names


def test_parquet_with_numbers_from_0_to_1_and_categories(tmp_path: Path) -> None:
    images = np.linspace(0, 1, COUNT * 25).reshape(COUNT, 5, 5)
    names = pyarrow.array(arrays()["clients"].tolist()).dictionary_encode()
    one = fs.datasets.natural(parquet(tmp_path, **arrays(images=images, clients=names)))
    other = fs.datasets.natural(write(tmp_path, images=images))
    assert torch.equal(one.train.x, other.train.x)
    assert one.names == other.names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": [[1, 2]] * 11 + [[1]]}, "has lists of different lengths in column 'images'"),
        ({"images": [[1, 2]] * 11 + [None]}, "has lists of different lengths in column 'images'"),
        ({"images": [[1, 2]] * COUNT}, "has images of shape [12, 2]"),
        ({"labels": [None] * 3 + [1] * 9}, "has missing values in column 'labels'"),
        ({"labels": [True] * COUNT}, "has bool in column 'labels', should be numbers or text"),
        ({"labels": np.full(COUNT, 0.5)}, "not whole numbers from 0"),
        ({"clients": [{"a": 1}] * COUNT}, "should be numbers or text"),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in sentence(parquet(tmp_path, **(arrays() | changes)))


def test_other_files_are_not_taken_for_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 something PAR1")
    assert "is damaged or not a parquet file" in sentence(tmp_path / "a.parquet")
    assert "does not exist" in sentence(tmp_path / "b.parquet")
    columns = arrays()
    del columns["clients"]
    text = sentence(parquet(tmp_path, **columns))
    assert "has 0 columns 'clients', should have one (it has: images, labels)" in text


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=4))
def test_changed_bytes_of_parquet_are_read_or_refused(tmp_path: Path, place: int, value: bytes) -> None:
    path = parquet(tmp_path, **arrays())
    content = bytearray(path.read_bytes())
    start = place % len(content)
    content[start : start + len(value)] = value
    path.write_bytes(content)
    told = ""
    try:
        fs.datasets.natural(path)
    except InputError as error:
        told = str(error)
    assert len(told.splitlines()) <= 1


def test_numbers_from_0_to_1_become_bytes(tmp_path: Path) -> None:
    images = np.linspace(0, 1, COUNT * 25, dtype=np.float32).reshape(COUNT, 5, 5)
    fed = fs.datasets.natural(write(tmp_path, images=images, clients=np.arange(COUNT)), held_out=0)
    assert fed.train.x.flatten().tolist() == np.rint(images.ravel() * 255).astype(int).tolist()


def test_colours_and_more_classes_than_labels_are_possible(tmp_path: Path) -> None:
    path = write(tmp_path, images=numbered(COUNT, 3, 5, 5))
    assert fs.datasets.natural(path, classes=62).shape == DataShape("classification", (3, 5, 5), 62)


def test_the_seed_decides_what_is_held_out_for_each_client_by_name(tmp_path: Path) -> None:
    path = write(tmp_path)
    one, again = (fs.datasets.natural(path, held_out=0.5, seed=3) for _ in range(2))
    assert torch.equal(one.held_out.x, again.held_out.x)
    names = np.array(["ann"] * 4 + ["new"] * 4 + ["zoe"] * 4)
    draws = [
        fs.datasets.natural(write(tmp_path, clients=values), held_out=0.5).held_out.client(0)[0]
        for values in (names, np.where(names == "new", "other", names))
    ]
    assert torch.equal(*draws)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": np.arange(3)}, "should be one entry of each for every point"),
        ({"labels": np.zeros((COUNT, 2), int)}, "should be one value for every point"),
        ({"labels": np.full(COUNT, -1)}, "not whole numbers from 0"),
        ({"labels": np.full(COUNT, 2**62)}, "not whole numbers from 0"),
        ({"labels": np.full(COUNT, 0.5)}, "not whole numbers from 0"),
        ({"images": numbered(COUNT, 25)}, "has images of shape [12, 25]"),
        ({"images": numbered(COUNT, 2, 5, 5)}, "has images of shape [12, 2, 5, 5]"),
        ({"images": np.full((COUNT, 5, 5), 2.0)}, "should be bytes (uint8) or numbers from 0 to 1"),
        ({"images": np.full((COUNT, 5, 5), np.nan)}, "should be bytes (uint8) or numbers from 0 to 1"),
        ({"images": np.full((COUNT, 5, 5), 7)}, "should be bytes (uint8) or numbers from 0 to 1"),
        ({"clients": np.full(COUNT, 0.5)}, "should be whole numbers or text"),
        ({"clients": np.array(["a\n"] * COUNT)}, "not readable text"),
        ({"clients": np.array([""] * COUNT)}, "not readable text"),
        ({"clients": np.full(COUNT, 2**31 - 1, np.uint32).view("U1")}, "holds what is not text"),
        ({"clients": np.array([{}] * COUNT)}, "Python objects (a pickle)"),
        ({"images": numbered(0, 5, 5), "labels": np.arange(0), "clients": np.arange(0)}, "has no points"),
        ({"images": np.uint8(3)}, "should be one entry of each for every point"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, np.ndarray], words: str) -> None:
    assert words in sentence(write(tmp_path, **changes))


def test_missing_things_are_named(tmp_path: Path) -> None:
    assert "does not exist" in sentence(tmp_path / "nothing.npz")
    assert "cannot be read (File name too long)" in sentence(Path("x" * 300))
    assert "images.npy' does not exist" in sentence(tmp_path)
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("other.npy", b"")
    assert "lacks an array: unknown array 'images'" in sentence(tmp_path / "b.npz")
    assert "has label 2, should be 0 to 1" in sentence(write(tmp_path), classes=2)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=4))
def test_changed_bytes_are_read_or_refused(tmp_path: Path, place: int, value: bytes) -> None:
    for name, array in arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
        content = bytearray((tmp_path / f"{name}.npy").read_bytes())
        start = place % len(content)
        content[start : start + len(value)] = value
        (tmp_path / f"{name}.npy").write_bytes(content)
        told = ""
        try:
            fs.datasets.natural(tmp_path)
        except InputError as error:
            told = str(error)
        assert len(told.splitlines()) <= 1
