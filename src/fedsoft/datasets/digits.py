"""Small handwritten digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

import numpy as np

from fedsoft.checks import checked
from fedsoft.federation import Federation
from fedsoft.images.sources import Count, Images, Permutations, Rotations, Share, federate, variants
from fedsoft.partition import Partition
from fedsoft.seeds import generator

__all__ = ["digits"]

CLASSES = 10
TEST_SHARE = 0.2


@checked
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
    """The 1,797 digits of scikit-learn, 8x8, ten classes; every rotation and renaming of labels is a source.

    Arguments:
        partition: how the sources are mixed at clients: `10:90`, `linear`, `random`, `dirichlet(0.5)`, or a function.
        rotations: degrees counterclockwise, of 0, 90, 180 and 270.
        permutations: number of renamings of the labels, the first being none; sources then have the same images with
            labels that conflict. S is the number of rotations times that of permutations.
        clients: number of clients N.
        points: n_k is uniform from the first to the second number, both included.
        held_out: further points of each client, as a share of n_k, from images that nobody trains on.
        test_points: size of the test set of each source; all test images when it is not given. They are a fixed fifth
            of each class, since nobody published a division.
        seed: of all draws.
    """
    train, test = _bundled()
    return federate(
        "digits",
        variants(train, test, CLASSES, rotations, permutations, seed),
        CLASSES,
        partition=partition,
        clients=clients,
        points=points,
        held_out=held_out,
        test_points=test_points,
        seed=seed,
    )


def _bundled() -> tuple[Images, Images]:
    """Training and test images, divided the same way every time."""
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
