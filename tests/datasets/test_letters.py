from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft import plugins
from fedsoft.core.federation import Federation, Truth
from fedsoft.data import registry
from fedsoft.errors import InputError
from tests.pictures import LETTERS, number_of, write_idx, write_letters

EACH = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five training and two test images of every symbol."""
    made = tmp_path_factory.mktemp("letters")
    write_letters(made, EACH, 2)
    return made


def made(folder: Path, **settings: Any) -> tuple[Federation, Truth]:
    fed = fs.datasets.letters(**({"data_dir": folder, "clients": 10, "points": (20, 40)} | settings))
    assert fed.truth is not None
    return fed, fed.truth


def test_defaults_are_those_of_the_paper(folder: Path) -> None:
    fed, truth = made(folder, clients=100, points=(100, 200))
    default = {key: p.default for key, p in plugins.parameters(plugins.find("datasets", "letters")).items()}
    assert default["clients"] == 100
    assert default["points"] == (100, 200)
    assert truth.names == ("lower", "upper")
    assert truth.noise_floor is None
    assert fed.shape.input == (1, 28, 28)
    assert fed.shape.outputs == 26
    assert fed.train.x.dtype == torch.uint8


def test_images_stand_upright_and_labels_are_letters_of_the_alphabet(folder: Path) -> None:
    fed, truth = made(folder, held_out=0.0)
    # Files hold five images of each symbol one after the other: 0-9, A-Z, a-z.
    symbol = number_of(fed.train.x.numpy()) // EACH
    first = np.where(truth.train_sources.numpy() == 0, 36, 10)
    assert (symbol - first == fed.train.y.numpy()).all()


def test_an_image_that_is_stored_transposed_is_transposed_back(tmp_path: Path) -> None:
    write_letters(tmp_path, 2, 1)
    upright = np.zeros((28, 28), np.uint8)
    upright[4:24, 8] = 255  # an L: a long stroke down the left, a foot to the right
    upright[23, 8:18] = 255
    names = LETTERS.format("test", "images-idx3"), LETTERS.format("test", "labels-idx1")
    write_idx(tmp_path, *names, np.ascontiguousarray(upright.T)[None].repeat(2, 0), np.array([10 + 11, 36 + 11]))
    _, truth = made(tmp_path, rotations=[0, 90], partition="random", held_out=0.0)
    assert truth.names == ("lower 0°", "lower 90°", "upper 0°", "upper 90°")
    for s in (0, 2):
        assert truth.tests[s][0][0, 0].tolist() == upright.tolist()
        assert truth.tests[s][1].tolist() == [11]
    # Turned counterclockwise the stroke lies at the bottom, and the foot stands up at its right end.
    turned = truth.tests[1][0][0, 0].numpy()
    assert (turned[19, 4:24] == 255).all()
    assert (turned[10:20, 23] == 255).all()
    assert int((turned > 0).sum()) == int((upright > 0).sum())


def test_digits_are_dropped(folder: Path) -> None:
    _, truth = made(folder)
    assert [len(y) for _, y in truth.tests] == [52, 52]
    assert [torch.bincount(y).tolist() for _, y in truth.tests] == [[2] * 26] * 2


def test_cases_and_rotations_can_be_chosen(folder: Path) -> None:
    _, truth = made(folder, cases=["upper"], rotations=[0, 180])
    assert truth.names == ("upper 0°", "upper 180°")
    assert torch.equal(truth.tests[1][0], truth.tests[0][0].flip(-1, -2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cases": ["middle"]}, r"letters\.cases = 'middle' is not allowed"),
        ({"cases": []}, r"letters\.cases = .* is not allowed"),
        ({"cases": ["lower", "lower"]}, "should name each case once"),
        ({"rotations": [45]}, r"letters\.rotations = 45 is not allowed: should be 0, 90, 180 or 270"),
        ({"rotations": [0, 0]}, "should name each value once"),
        ({"rotations": [0, 90]}, "needs S = 2 sources, not 4"),
    ],
)
def test_settings_that_cannot_be_are_refused(folder: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        made(folder, **settings)


def test_files_without_a_letter_are_refused(tmp_path: Path) -> None:
    write_letters(tmp_path, 2, 1, symbols="abc")
    with pytest.raises(InputError, match="source 'lower' has 0 training images of class 3"):
        made(tmp_path)


def test_settings_survive_being_written_down(folder: Path) -> None:
    settings = {"data_dir": str(folder), "rotations": [0, 90], "partition": "random", "clients": 3, "points": [5, 6]}
    resolved = plugins.resolve("datasets", "letters", settings)
    assert resolved["rotations"] == [0, 90]
    assert "test_points" not in resolved
    assert torch.equal(plugins.build("datasets", "letters", resolved).train.x, fs.datasets.letters(**settings).train.x)


def test_real_letters_look_like_letters() -> None:
    if not os.environ.get(registry.VARIABLE) or registry.locate(registry.collection("letters")) is None:
        pytest.skip(f"the letters are not in the folder that {registry.VARIABLE} names")
    fed = fs.datasets.letters(clients=4, points=(50, 50), test_points=200)
    assert fed.truth is not None
    (x, y), (big, big_y) = (test for test in fed.truth.tests)
    assert x.shape[1:] == big.shape[1:] == (1, 28, 28)
    assert (int(y.max()), int(big_y.max())) <= (25, 25)
    # An upright "L" has its ink at the left and at the bottom; stored transposed it would be at the top.
    all_upper = fs.datasets.letters(clients=2, points=(1, 1), held_out=0).truth
    assert all_upper is not None
    upper, label = all_upper.tests[1]
    ink = upper[label == 11].double().mean((0, 1))
    assert ink[14:].sum() > ink[:14].sum()
    assert ink[:, :14].sum() > ink[:, 14:].sum()
