"""Small handwritten digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

import numpy as np

from fedsoft.core.federation import Federation
from fedsoft.data.dataset_settings import dataset
from fedsoft.data.image_settings import PermutedImages
from fedsoft.data.image_sources import Images, federate, variants
from fedsoft.seeds import generator
from fedsoft.settings import settings

__all__ = ["digits"]

CLASSES = 10
TEST_SHARE = 0.2


@settings
class Digits(PermutedImages):
    """The 1,797 digits of scikit-learn, 8x8, ten classes; every rotation and renaming of labels is a source.

    A fixed fifth of each class are test images.
    """

    def federation(self) -> Federation:
        """Divide the images among clients."""
        train, test = _bundled()
        sources = variants(train, test, CLASSES, self.rotations, self.permutations, self.seed)
        return federate("digits", sources, CLASSES, self)


digits = dataset(Digits)


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
