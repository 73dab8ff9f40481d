from __future__ import annotations

import torch

import fedsoft as fs
from fedsoft.core.federation import Federation, Truth


def made(**settings: object) -> tuple[Federation, Truth]:
    fed = fs.datasets.digits(**settings)  # pyright: ignore[reportArgumentType]
    assert fed.truth is not None
    return fed, fed.truth


def rows(x: torch.Tensor) -> set[bytes]:
    return {bytes(image.tolist()) for image in x.flatten(1)}


def test_digits_need_no_files_and_use_the_whole_range_of_grey() -> None:
    fed, truth = made()
    assert len(fed) == 100
    assert fed.shape.input == (1, 8, 8)
    assert fed.shape.outputs == 10
    assert truth.names == ("0°", "90°")
    assert fed.train.x.dtype == torch.uint8
    assert (int(fed.train.x.min()), int(fed.train.x.max())) == (0, 255)


def test_training_held_out_and_test_images_are_different_ones() -> None:
    fed, truth = made(rotations=[0], permutations=2, points=(200, 200), held_out=1.0)
    train, held, test = rows(fed.train.x), rows(fed.held_out.x), rows(truth.tests[0][0])
    assert not train & held
    assert not train & test
    assert not held & test
    assert len(train) + len(held) + len(test) == 1797  # all of them were drawn, and none is there twice


def test_the_division_does_not_depend_on_the_seed_and_has_all_classes() -> None:
    (_, one), (_, other) = made(seed=0, clients=2), made(seed=1, clients=2)
    assert torch.equal(one.tests[0][0], other.tests[0][0])
    assert (torch.bincount(one.tests[0][1]) >= 34).all()


def test_the_same_seed_gives_the_same_bits() -> None:
    (one, _), (again, _), (other, _) = made(clients=3), made(clients=3), made(clients=3, seed=1)
    assert torch.equal(one.train.x, again.train.x)
    assert not torch.equal(one.train.x[:100], other.train.x[:100])


def test_digits_stand_upright_in_the_first_source_and_lie_in_the_second() -> None:
    _, truth = made(clients=2)
    x, y = truth.tests[0]
    six = x[y == 6].double().mean((0, 1))
    assert six[5:].sum() > six[:3].sum()  # its loop is below
    turned, _ = truth.tests[1]
    assert torch.equal(turned[:, :, 7, 0], x[:, :, 0, 0])
