"""Clothes: Fashion-MNIST, turned or with conflicting labels."""

from __future__ import annotations

from typing import ClassVar

from fedsoft.data.dataset_settings import dataset
from fedsoft.data.published import PublishedImages
from fedsoft.settings import settings

__all__ = ["fashion"]


@settings
class Fashion(PublishedImages):
    """Clothes of Fashion-MNIST, 28x28, ten classes; every rotation and renaming of labels is a source."""

    collection: ClassVar[str] = "fashion"


fashion = dataset(Fashion)
