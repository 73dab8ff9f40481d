"""Small handwritten digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

import numpy as np

from fedsoft.core.federation import Federation
from fedsoft.core.partition import Partition
from fedsoft.data.image_settings import ARGUMENTS, Count, Permutations, Rotations, Share, image_dataset
from fedsoft.data.image_sources import Draw, Images, federate, variants
from fedsoft.seeds import generator

__all__ = ["digits"]

CLASSES = 10
TEST_SHARE = 0.2


@image_dataset(test_points=f"{ARGUMENTS['test_points']} They are a fixed fifth of each class.")
def digits(
    partition: str | Partition = "10:90",
    rotations: Rotations = (0, 90),
    permutations: Permutations = 1,
    clients: Count = 100,
    points: tuple[Count, Count] = (100, 200),
    held_out: Share = 0.25,
    test_points: Count | None = None,
    seed: int = 0,
) -> Federation:
    """The 1,797 digits of scikit-learn, 8x8, ten classes; every rotation and renaming of labels is a source."""
    train, test = _bundled()
    sources = variants(train, test, CLASSES, rotations, permutations, seed)
    return federate("digits", sources, CLASSES, Draw(partition, clients, points, held_out, test_points, seed))


def _bundled() -> tuple[Images, Images]:
    """Return training and test images, divided the same way every time."""
    from sklearn.datasets import load_digits

    found = load_digits()
    # Grey values are 0 to 16 there.
    pixels = np.rint(found.images[:, None] * (255 / 16)).astype(np.uint8)  # pyright: ignore[reportAttributeAccessIssue]
    labels = found.target.astype(np.int64)  # pyright: ignore[reportAttributeAccessIssue]
    is_test = np.zeros(len(labels), bool)
    for label in range(CLASSES):
        images = np.flatnonzero(labels == label)
        order = generator(0, "test images", label).permutation(images)
        is_test[order[: int(len(images) * TEST_SHARE)]] = True
    return Images.of(pixels[~is_test], labels[~is_test]), Images.of(pixels[is_test], labels[is_test])
