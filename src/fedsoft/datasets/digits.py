"""Small handwritten digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedsoft.core.federation import Federation
from fedsoft.data.dataset_settings import dataset
from fedsoft.data.image_settings import PermutedImages
from fedsoft.data.image_sources import Images, federate, variants
from fedsoft.errors import InputError
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
    with gzip.open(_file(), "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",")
    # Grey values are 0 to 16 there, the label comes last.
    pixels = np.rint(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = table[:, -1].astype(np.int64)
    is_test = np.zeros(len(labels), bool)
    for label in range(CLASSES):
        images = np.flatnonzero(labels == label)
        order = generator(0, "test images", label).permutation(images)
        is_test[order[: int(len(images) * TEST_SHARE)]] = True
    return Images.of(pixels[~is_test], labels[~is_test]), Images.of(pixels[is_test], labels[is_test])


def _file() -> Path:
    """Return the file of the digits; scikit-learn itself takes two seconds to import, for one table."""
    found = find_spec("sklearn")
    folder = (
        Path(next(iter(found.submodule_search_locations))) if found and found.submodule_search_locations else Path()
    )
    if not (file := folder / "datasets" / "data" / "digits.csv.gz").exists():
        raise InputError(f"the digits of scikit-learn are not there: '{file}' does not exist (install it again)")
    return file
