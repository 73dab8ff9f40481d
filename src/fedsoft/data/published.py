"""Published images as a data set, of which every rotation and renaming of labels is a source.

The file of a data set says what it is and where its defaults differ (`fedsoft.datasets.mnist` and others).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from fedsoft.core.federation import Federation
from fedsoft.data import fetch, registry
from fedsoft.data.image_settings import Count, PermutedImages
from fedsoft.data.image_sources import Images, federate, variants
from fedsoft.settings import settings


@settings
class PublishedImages(PermutedImages):
    """Images of a collection in `registry`.

    Arguments:
        size: pixels of a side, a divisor of the published ones: images are averaged down to it.
        augment: vary training images each time they are used: shifted by up to an eighth of a side, what lies beyond an
            edge being its reflection, and mirrored half of the time. Held-out and test images stay as they are.
        data_dir: folder with the files, default: FEDSOFT_DATA, then the cache (see `fedsoft data`).
    """

    collection: ClassVar[str]

    size: Count | None = None
    augment: bool = False
    data_dir: str | Path | None = None

    def federation(self) -> Federation:
        """Read the files, and draw clients."""
        name = self.collection
        classes = len(registry.collection(name).classes)
        train, test = (Images.of(part.x, part.y).shrunk(name, self.size) for part in fetch.load(name, self.data_dir))
        sources = variants(train, test, classes, self.rotations, self.permutations, self.seed)
        return federate(name, sources, classes, self, augment=self.augment)
