from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedsoft as fs
from fedsoft import plugins
from fedsoft.errors import InputError
from tests.pictures import idx, number_of, numbered, write_mnist

BOTH = pytest.mark.parametrize("name", ["mnist", "fashion"])


@BOTH
def test_the_four_files_become_a_federation(name: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / name)
    made = getattr(fs.datasets, name)
    fed = made(data_dir=tmp_path, clients=5, points=(20, 30), rotations=[0, 270], held_out=0.0)
    assert fed.truth.names == ("0°", "270°")
    assert fed.shape.input == (1, 28, 28)
    assert fed.shape.outputs == 10
    upright = fed.truth.train_sources == 0
    assert (number_of(fed.train.x[upright].numpy()) % 10 == fed.train.y[upright].numpy()).all()
    x, y = fed.truth.tests[0]
    assert number_of(x.numpy()).tolist() == list(range(60, 80))
    assert y.tolist() == [*range(10)] * 2
    assert torch.equal(fed.truth.tests[1][0], torch.rot90(x, 3, (-2, -1)))


@BOTH
def test_missing_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{name}: file 'train-images-idx3-ubyte\.gz' is missing \(looked in '"):
        getattr(fs.datasets, name)(data_dir=tmp_path / "nothing")


@BOTH
def test_swapped_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(idx(numbered(60, 28, 28)))
    with pytest.raises(InputError, match="holds images, should hold labels"):
        getattr(fs.datasets, name)(data_dir=tmp_path)


@BOTH
def test_the_shared_settings_are_described_and_checked(name: str) -> None:
    made = getattr(fs.datasets, name)
    assert made.__name__ == name
    assert all(f"\n    {key}: " in made.__doc__ for key in plugins.parameters(made))
    with pytest.raises(InputError, match=rf"{name}\.rotations = 45 is not allowed"):
        made(rotations=[45])
    with pytest.raises(InputError, match=f"unknown setting of {name} 'rotation': did you mean 'rotations'"):
        made(rotation=[0])
