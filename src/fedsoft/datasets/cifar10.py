"""The paper's photographs: CIFAR-10, upright and turned."""

from __future__ import annotations

from typing import ClassVar

from fedsoft.data.dataset_settings import dataset
from fedsoft.data.image_settings import Count
from fedsoft.data.published import PublishedImages
from fedsoft.settings import settings

__all__ = ["cifar10"]


@settings
class CIFAR10(PublishedImages):
    """Color photographs of CIFAR-10, 32x32, ten classes; every rotation and renaming of labels is a source."""

    collection: ClassVar[str] = "cifar10"

    # As in the paper: 20 large clients, and training images that are shifted by up to 4 pixels and mirrored (as a
    # source shows them, that is after they were turned).
    clients: Count = 20
    points: tuple[Count, Count] = (3000, 3500)
    augment: bool = True


cifar10 = dataset(CIFAR10)
