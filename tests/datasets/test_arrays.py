"""Arrays in a folder: a pool with owners or sizes, or a folder for each client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedsoft as fs
from fedsoft.core.mapped import MappedRows
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3)).astype(np.float32)
Y = X @ np.array([1.0, 2.0, 3.0], dtype=np.float32)
OWNERS = RNG.integers(0, 4, 60)


def write(folder: Path, **arrays: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def expected(rows: list[np.ndarray], names: list[str]) -> str:
    return fs.Federation.from_clients([(X[own], Y[own]) for own in rows], names=names).fingerprint


def test_a_pool_with_the_owner_of_each_point(tmp_path: Path) -> None:
    fed = fs.datasets.arrays(write(tmp_path, x=X, y=Y, clients=OWNERS))
    assert isinstance(fed.train.x, MappedRows)
    assert fed.names == ("0", "1", "2", "3")
    assert fed.fingerprint == expected([np.flatnonzero(OWNERS == k) for k in range(4)], list("0123"))
    words = fs.datasets.arrays(write(tmp_path, x=X, y=Y, clients=np.array(list("dabc"))[OWNERS]))
    assert words.names == ("a", "b", "c", "d")


def test_a_pool_with_sizes(tmp_path: Path) -> None:
    fed = fs.datasets.arrays(write(tmp_path, x=X, y=Y, sizes=np.array([10, 30, 20])))
    assert fed.fingerprint == expected([np.arange(10), np.arange(10, 40), np.arange(40, 60)], list("012"))


def test_a_folder_for_each_client(tmp_path: Path) -> None:
    for name, part in (("b", slice(0, 25)), ("a", slice(25, 60))):
        write(tmp_path / name, x=X[part], y=Y[part])
    fed = fs.datasets.arrays(tmp_path)
    assert fed.names == ("a", "b")
    assert fed.fingerprint == expected([np.arange(25, 60), np.arange(25)], ["a", "b"])


def test_a_run_on_arrays(tmp_path: Path) -> None:
    write(tmp_path / "data", x=X, y=Y, clients=OWNERS)
    text = 'rounds = 2\nmodel = "linear"\nalgorithm = {name = "fedsoft", S = 2, K = 3}\n'
    (tmp_path / "own.toml").write_text(f'{text}[dataset]\nname = "arrays"\npath = "{tmp_path}/data"\n')
    execute(spec.read(str(tmp_path / "own.toml")), tmp_path / "run", RunOptions())
    assert len(fs.load(tmp_path / "run").history) == 2


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({}, "neither x.npy nor folders"),
        ({"x": X}, "y.npy' does not exist"),
        ({"x": X, "y": Y}, "it has neither"),
        ({"x": X, "y": Y, "clients": OWNERS, "sizes": OWNERS}, "it has both"),
        ({"x": X, "y": Y[:9], "sizes": np.array([60])}, r"has shape \[60, 3\] and y.npy \[9\]"),
        ({"x": X[:, 0], "y": Y, "sizes": np.array([60])}, r"should be x\[points, features...\]"),
        ({"x": X, "y": Y, "sizes": np.array([59])}, "add up to the 60 points"),
        ({"x": X, "y": Y, "sizes": np.array([0, 60])}, "whole numbers from 1"),
        ({"x": X, "y": Y, "clients": OWNERS[:5]}, "should be whole numbers or text"),
        ({"x": X, "y": Y, "clients": OWNERS + 0.5}, "should be whole numbers or text"),
        ({"x": X.astype("U3"), "y": Y, "sizes": np.array([60])}, "should be an array of numbers"),
        ({"x": np.array([[{}]] * 60), "y": Y, "sizes": np.array([60])}, "is damaged or not an .npy file"),
    ],
)
def test_other_folders_are_refused_in_one_sentence(
    tmp_path: Path, arrays: dict[str, np.ndarray], problem: str
) -> None:  # fmt: skip
    with pytest.raises(fs.InputError, match=problem) as caught:
        fs.datasets.arrays(write(tmp_path, **arrays))
    assert len(str(caught.value).splitlines()) == 1


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, x=X, y=Y, sizes=np.array([60]))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-100])
    with pytest.raises(fs.InputError, match="is damaged or not an"):
        fs.datasets.arrays(tmp_path)
    with pytest.raises(fs.InputError, match="does not exist"):
        fs.datasets.arrays(tmp_path / "elsewhere")
