from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsoft as fs
from fedsoft import plugins
from fedsoft.core.client_data import Augment
from fedsoft.core.federation import Federation, Truth
from fedsoft.data import registry
from fedsoft.data.image_sources import Images
from fedsoft.errors import InputError
from tests.pictures import number_of, write_cifar


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    write_cifar(made / "cifar-10-batches-bin", 20)
    return made


def made(folder: Path, **settings: Any) -> tuple[Federation, Truth]:
    fed = fs.datasets.cifar10(**({"data_dir": folder, "clients": 4, "points": (30, 50)} | settings))
    assert fed.truth is not None
    return fed, fed.truth


def test_defaults_are_those_of_the_paper(folder: Path) -> None:
    default = {key: p.default for key, p in plugins.parameters(plugins.find("datasets", "cifar10")).items()}
    assert default["clients"] == 20
    assert default["points"] == (3000, 3500)
    fed, truth = made(folder)
    assert truth.names == ("0°", "90°")
    assert fed.shape.input == (3, 32, 32)
    assert fed.shape.outputs == 10
    assert fed.train.x.dtype == torch.uint8


def test_all_batches_are_read_and_the_test_batch_apart(folder: Path) -> None:
    fed, truth = made(folder, rotations=[0], permutations=2, clients=40, held_out=0.5)
    trained, held = (set(number_of(data.x.numpy()).tolist()) for data in (fed.train, fed.held_out))
    assert trained | held == set(range(100))
    assert not trained & held
    assert number_of(truth.tests[0][0].numpy()).tolist() == list(range(100, 120))


def test_turned_images_are_turned_counterclockwise(folder: Path) -> None:
    _, truth = made(folder)
    upright, turned = truth.tests[0][0], truth.tests[1][0]
    assert torch.equal(turned[:, :, 31, 0], upright[:, :, 0, 0])  # the upper left corner goes to the lower left
    assert torch.equal(turned[:, :, 30, 0], upright[:, :, 0, 1])
    assert torch.equal(truth.tests[0][1], truth.tests[1][1])


def test_permutations_conflict_on_the_same_images(folder: Path) -> None:
    fed, truth = made(folder, rotations=[0], permutations=2, clients=20)
    number = number_of(fed.train.x.numpy())
    own = torch.from_numpy(number % 20 % 10)
    first, second = truth.train_sources == 0, truth.train_sources == 1
    assert torch.equal(own[first], fed.train.y[first])
    renamed = {(int(a), int(b)) for a, b in zip(own[second], fed.train.y[second], strict=True)}
    assert len(renamed) == len({a for a, _ in renamed}) == len({b for _, b in renamed}) == 10
    assert any(a != b for a, b in renamed)


def test_a_damaged_batch_is_one_sentence(tmp_path: Path) -> None:
    write_cifar(tmp_path, 20)
    (tmp_path / "data_batch_2.bin").write_bytes(b"\x63" * 3073)
    with pytest.raises(InputError, match=r"data_batch_2\.bin' is damaged: image 0 has label 99"):
        made(tmp_path)


def test_real_photographs_can_be_read() -> None:
    if not os.environ.get(registry.VARIABLE) or registry.locate(registry.collection("cifar10")) is None:
        pytest.skip(f"CIFAR-10 is not in the folder that {registry.VARIABLE} names")
    fed = fs.datasets.cifar10(clients=2, points=(100, 100), test_points=500)
    assert fed.truth is not None
    x, _ = fed.truth.tests[0]
    # Skies are blue and above: the upper rows have more blue than the lower ones, against red.
    blue = (x[:, 2].double() - x[:, 0].double()).mean(0)
    assert blue[:10].mean() > blue[-10:].mean()


def test_training_images_are_varied_as_in_the_paper_unless_told(folder: Path) -> None:
    assert made(folder)[0].train.augment == Augment(pad=4, flip=True)
    assert made(folder, size=16)[0].train.augment == Augment(pad=2, flip=True)
    assert made(folder, augment=False)[0].train.augment is None


def test_smaller_photographs(folder: Path) -> None:
    fed, truth = made(folder, size=8)
    assert fed.shape.input == (3, 8, 8)
    whole = made(folder)[1].tests[0][0]
    assert torch.equal(truth.tests[0][0], Images(whole, torch.zeros(20)).shrunk("", 8).x)
    with pytest.raises(InputError, match=r"cifar10\.size = 5 is not allowed: should be one of 1, 2, 4, 8, 16, 32"):
        made(folder, size=5)
