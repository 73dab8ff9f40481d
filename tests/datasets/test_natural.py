from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedsoft as fs
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


def test_numbers_from_0_to_1_become_bytes(tmp_path: Path) -> None:
    images = np.linspace(0, 1, COUNT * 25, dtype=np.float32).reshape(COUNT, 5, 5)
    fed = fs.datasets.natural(write(tmp_path, images=images, clients=np.arange(COUNT)), held_out=0)
    assert fed.train.x.flatten().tolist() == np.rint(images.ravel() * 255).astype(int).tolist()


def test_colours_and_more_classes_than_labels_are_possible(tmp_path: Path) -> None:
    path = write(tmp_path, images=numbered(COUNT, 3, 5, 5))
    assert fs.datasets.natural(path, classes=62).shape == fs.federation.DataShape("classification", (3, 5, 5), 62)


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
    assert "has no array 'images' (it has: other)" in sentence(tmp_path / "b.npz")
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
