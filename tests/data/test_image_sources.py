"""Sources of images and the clients that draw from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsoft.core.client_data import Augment
from fedsoft.core.federation import Federation, Truth
from fedsoft.data.image_settings import ImageSettings
from fedsoft.data.image_sources import Images, Source, by_client, federate, label_permutations, variants
from fedsoft.errors import InputError
from tests.pictures import number_of, numbered

CLASSES = 4


def stock(each: int, first: int = 0) -> Images:
    """So many images of each class; image i has the number first + i and the label i % CLASSES."""
    count = each * CLASSES
    return Images.of(numbered(count, 1, 6, 6, first=first), np.arange(count) % CLASSES)


TRAIN, TEST = stock(10), stock(3, first=1000)


def made(sources: list[Source] | None = None, *, augment: bool = False, **changes: Any) -> tuple[Federation, Truth]:
    settings: dict[str, Any] = {
        "partition": "30:70", "clients": 6, "points": (20, 40), "held_out": 0.5, "test_points": None, "seed": 0,
    }  # fmt: skip
    pair = [Source("a", TRAIN, TEST), Source("b", stock(8, first=500), TEST)]
    fed = federate("test", sources or pair, CLASSES, ImageSettings(**(settings | changes)), augment=augment)
    assert fed.truth is not None
    return fed, fed.truth


def numbers(x: torch.Tensor) -> np.ndarray:
    return number_of(x.numpy())


# Sources


def test_rotation_is_counterclockwise() -> None:
    #   1 2        2 4        4 3        3 1
    #   3 4   90:  1 3  180:  2 1  270:  4 2
    one = Images(torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8), torch.tensor([0]))
    expected = {0: [[1, 2], [3, 4]], 90: [[2, 4], [1, 3]], 180: [[4, 3], [2, 1]], 270: [[3, 1], [4, 2]]}
    for rotation, image in expected.items():
        assert Source("", one, one, rotation).view(one).x[0, 0].tolist() == image


def test_colours_stay_where_they_are_when_an_image_is_turned() -> None:
    x = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 2, 2)
    one = Images(x, torch.tensor([0]))
    turned = Source("", one, one, 90).view(one).x
    assert turned.flatten(2).sort().values.tolist() == x.flatten(2).tolist()


def test_variants_are_all_rotations_and_all_renamings() -> None:
    found = variants(TRAIN, TEST, CLASSES, [0, 90], 3, seed=0)
    assert [source.name for source in found] == [
        "0° labels 0", "0° labels 1", "0° labels 2", "90° labels 0", "90° labels 1", "90° labels 2",
    ]  # fmt: skip
    assert [source.name for source in variants(TRAIN, TEST, CLASSES, [0], 2, 0)] == ["labels 0", "labels 1"]
    assert [source.name for source in variants(TRAIN, TEST, CLASSES, [0], 1, 0, "lower")] == ["lower"]
    assert [source.name for source in variants(TRAIN, TEST, CLASSES, [0, 90], 1, 0, "lower")] == [
        "lower 0°",
        "lower 90°",
    ]
    assert [source.name for source in variants(TRAIN, TEST, CLASSES, [0], 1, 0)] == ["0°"]


def test_permutations_are_different_and_the_first_is_none() -> None:
    tables = [table.tolist() for table in label_permutations(4, 24, seed=0)]
    assert tables[0] == [0, 1, 2, 3]
    assert len({tuple(table) for table in tables}) == 24
    assert all(sorted(table) == [0, 1, 2, 3] for table in tables)
    assert [table.tolist() for table in label_permutations(4, 5, seed=0)] == tables[:5]
    assert label_permutations(10, 2, seed=1)[1].tolist() != label_permutations(10, 2, seed=0)[1].tolist()


def test_renamed_sources_have_the_same_images_with_labels_that_conflict() -> None:
    sources = variants(TRAIN, TEST, CLASSES, [0], 2, seed=0)
    _, truth = made(sources)
    (x0, y0), (x1, y1) = truth.tests
    assert torch.equal(x0, x1)
    assert torch.equal(label_permutations(CLASSES, 2, 0)[1][y0], y1)
    assert not torch.equal(y0, y1)


# Points


def test_the_mixture_is_apportioned_exactly() -> None:
    fed, truth = made(partition="25:75", points=(40, 40), held_out=0.5)
    assert truth.fractions(fed.train).tolist() == [[0.25, 0.75]] * 3 + [[0.75, 0.25]] * 3
    held = fed.held_out.mean_by_client(torch.nn.functional.one_hot(truth.held_out_sources, 2).double())
    assert held.tolist() == [[0.25, 0.75]] * 3 + [[0.75, 0.25]] * 3
    assert fed.held_out.sizes.tolist() == [20] * 6


def test_points_come_from_the_images_of_their_source_with_their_labels() -> None:
    fed, truth = made(clients=20)
    for data, origin in ((fed.train, truth.train_sources), (fed.held_out, truth.held_out_sources)):
        number = numbers(data.x)
        assert ((number >= 500) == (origin.numpy() == 1)).all()
        assert (number % CLASSES == data.y.numpy()).all()
    assert fed.train.x.dtype == torch.uint8
    assert fed.train.y.dtype == torch.int64
    assert fed.shape.input == (1, 6, 6)


def test_points_of_a_turned_and_renamed_source_are_its_images_turned_back_and_renamed_back() -> None:
    sources = variants(TRAIN, TEST, CLASSES, [0, 90], 2, seed=5)
    fed, truth = made(sources, partition="random", clients=20)
    for data, origin in ((fed.train, truth.train_sources), (fed.held_out, truth.held_out_sources)):
        for s, source in enumerate(sources):
            rows = origin == s
            number = numbers(torch.rot90(data.x[rows], -(source.rotation // 90), (-2, -1)))
            table = torch.arange(CLASSES) if source.labels is None else source.labels
            assert table[number % CLASSES].tolist() == data.y[rows].tolist()
            assert len(number) > 20


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(2, 12), st.floats(0.01, 2))
def test_no_image_is_both_trained_on_and_held_out(seed: int, each: int, held_out: float) -> None:
    fed, _ = made([Source("a", stock(each), TEST)] * 2, seed=seed, held_out=held_out, clients=10)
    assert not set(numbers(fed.train.x).tolist()) & set(numbers(fed.held_out.x).tolist())


def test_the_images_set_aside_are_the_same_whatever_the_seed_and_a_fifth_of_each_class() -> None:
    seen = []
    for seed in (0, 1):
        fed, _ = made([Source("a", TRAIN, TEST)] * 2, seed=seed, clients=60, points=(100, 100), held_out=1.0)
        seen.append(set(numbers(fed.held_out.x).tolist()))
    assert seen[0] == seen[1]
    assert sorted(number % CLASSES for number in seen[0]) == sorted([*range(CLASSES)] * 2)


def test_without_held_out_points_all_training_images_are_trained_on() -> None:
    fed, _ = made([Source("a", TRAIN, TEST)] * 2, held_out=0.0, clients=60, points=(100, 100))
    assert set(numbers(fed.train.x).tolist()) == set(range(40))
    assert len(fed.held_out.x) == 0
    assert fed.held_out.sizes.tolist() == [0] * 60


def test_how_much_is_held_out_leaves_the_training_points_alone() -> None:
    (little, _), (much, _) = made(held_out=0.1), made(held_out=2.0)
    assert torch.equal(little.train.x, much.train.x)


def test_classes_are_uniform_however_many_images_they_have() -> None:
    # Class 0 has 50 images, the others 2 each.
    labels = np.array([0] * 50 + [1, 1, 2, 2, 3, 3])
    uneven = Images.of(numbered(len(labels), 1, 6, 6), labels)
    fed, _ = made([Source("a", uneven, TEST)] * 2, clients=50, points=(400, 400), held_out=0.5)
    for y in (fed.train.y, fed.held_out.y):
        share = torch.bincount(y).double() / len(y)
        assert share.tolist() == pytest.approx([0.25] * 4, abs=5 * np.sqrt(0.25 * 0.75 / len(y)))


def test_images_of_a_class_are_uniform_with_replacement() -> None:
    fed, _ = made([Source("a", TRAIN, TEST)] * 2, clients=50, points=(400, 400), held_out=0.0)
    count = np.bincount(numbers(fed.train.x), minlength=40)
    assert count.tolist() == pytest.approx([500] * 40, abs=5 * np.sqrt(500))


def test_the_same_seed_gives_the_same_bits_and_another_one_others() -> None:
    (one, truth), (again, again_truth), (other, _) = made(test_points=5), made(test_points=5), made(seed=1)
    for left, right in ((one.train, again.train), (one.held_out, again.held_out)):
        assert torch.equal(left.x, right.x)
        assert torch.equal(left.y, right.y)
        assert torch.equal(left.starts, right.starts)
    assert torch.equal(truth.tests[0][0], again_truth.tests[0][0])
    assert not torch.equal(one.train.x[:40], other.train.x[:40])


def test_more_clients_leave_the_points_of_the_first_ones_alone() -> None:
    few, many = (made(clients=n, partition="1:1")[0] for n in (3, 6))
    for k in range(3):
        assert torch.equal(few.train.client(k)[0], many.train.client(k)[0])
        assert torch.equal(few.held_out.client(k)[0], many.held_out.client(k)[0])


def test_clients_do_not_draw_the_same_points() -> None:
    fed, _ = made(points=(30, 30), partition="1:1")
    assert not np.array_equal(numbers(fed.train.client(0)[0]), numbers(fed.train.client(1)[0]))


def test_test_sets_are_all_test_images_or_so_many_none_twice() -> None:
    _, truth = made()
    assert [numbers(x).tolist() for x, _ in truth.tests] == [list(range(1000, 1012))] * 2
    _, truth = made(test_points=5)
    for x, y in truth.tests:
        assert len(set(numbers(x).tolist())) == len(y) == 5
    _, truth = made(test_points=100)
    assert [len(y) for _, y in truth.tests] == [12, 12]


@pytest.mark.parametrize(
    ("sources", "changes", "words"),
    [
        (None, {"points": (5, 4)}, r"points = \[5, 4\] is not allowed"),
        ([Source("a", TRAIN, TEST)] * 3, {}, "needs S = 2 sources"),
        ([Source("a", stock(1), TEST)] * 2, {}, "'a' has 1 training images of class 0, should have at least 2"),
        ([Source("a", TRAIN.take(np.arange(3)), TEST)] * 2, {"held_out": 0.0}, "has 0 training images of class 3"),
        ([Source("a", TRAIN, TEST.take(np.arange(0)))] * 2, {}, "has no test images"),
    ],
)
def test_what_cannot_be_is_said(sources: list[Source] | None, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        made(sources, **changes)


def test_a_rotation_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"rotations = \[90, 90\] is not allowed"):
        variants(TRAIN, TEST, CLASSES, [90, 90], 1, 0)


# Clients that exist


def test_every_id_is_a_client_with_its_own_points() -> None:
    ids = np.array([7, 2, 7, 10, 2, 7, 7, 7])
    images = Images.of(numbered(8, 1, 6, 6), np.arange(8) % 3)
    fed = by_client(images, ids, 3, held_out=0.4, seed=0)
    assert fed.names == ("2", "7", "10")
    assert fed.train.sizes.tolist() == [2, 3, 1]
    assert fed.held_out.sizes.tolist() == [0, 2, 0]
    assert fed.truth is None
    for k, name in enumerate(fed.names):
        found = [*numbers(fed.train.client(k)[0]), *numbers(fed.held_out.client(k)[0])]
        assert sorted(found) == np.flatnonzero(ids == int(name)).tolist()
    assert (numbers(fed.train.x) % 3 == fed.train.y.numpy()).all()


# Smaller images


def test_smaller_images_hold_means_of_squares_rounded() -> None:
    x = torch.tensor([[[[1, 2, 255, 255], [2, 2, 255, 255], [0, 0, 0, 1], [0, 1, 1, 0]]]], dtype=torch.uint8)
    small = Images(x, torch.tensor([0])).shrunk("test", 2)
    assert small.x.tolist() == [[[[2, 255], [0, 1]]]]  # 7/4, 255, 1/4, 2/4
    assert small.x.dtype == torch.uint8


@given(st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from([1, 3]), st.integers(0, 2**32 - 1))
def test_smaller_images_are_those_of_average_pooling(size: int, channels: int, seed: int) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, channels, 12, 12), dtype=np.uint8))
    small = Images(x, torch.zeros(3, dtype=torch.int64)).shrunk("test", size)
    pooled = torch.nn.functional.avg_pool2d(x.double(), 12 // size)
    assert torch.equal(small.x, (pooled + 0.5).floor().to(torch.uint8))


def test_a_size_that_is_no_divisor_is_refused() -> None:
    with pytest.raises(InputError, match=r"test\.size = 4 is not allowed: should be one of 1, 2, 3, 6"):
        TRAIN.shrunk("test", 4)
    assert TRAIN.shrunk("test", None) is TRAIN
    assert TRAIN.shrunk("test", 6) is TRAIN


# Varied images


def test_only_training_images_are_varied() -> None:
    fed, _ = made(augment=True)
    assert fed.train.augment == Augment(pad=0, flip=True)  # an eighth of 6 pixels
    assert fed.held_out.augment is None
    plain, _ = made()
    assert plain.train.augment is None
    assert torch.equal(plain.train.x, fed.train.x)
    assert plain.fingerprint != fed.fingerprint
