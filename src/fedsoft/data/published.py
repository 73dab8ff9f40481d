"""Published images as a data set, of which every rotation and renaming of labels is a source.

A data set of its own file says what it is and where it differs (`fedsoft.datasets.mnist` and others).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedsoft.core.federation import Federation
from fedsoft.core.partition import Partition
from fedsoft.data import fetch, registry
from fedsoft.data.image_settings import Count, Permutations, Rotations, Share, image_dataset
from fedsoft.data.image_sources import Draw, Images, federate, variants


def published(
    name: str, about: str, *, clients: int = 100, points: tuple[int, int] = (100, 200), augment: bool = False
) -> Callable[..., Federation]:
    """Make a data set of published images.

    Arguments:
        name: of its files, see `registry`.
        about: what it is, in one line.
        clients, points, augment: the defaults of these settings.
    """
    default_clients, default_points, default_augment = clients, points, augment

    def dataset(
        partition: str | Partition = "10:90",
        rotations: Rotations = (0, 90),
        permutations: Permutations = 1,
        clients: Count = default_clients,
        points: tuple[Count, Count] = default_points,
        held_out: Share = 0.25,
        test_points: Count | None = None,
        size: Count | None = None,
        augment: bool = default_augment,
        data_dir: str | Path | None = None,
        seed: int = 0,
    ) -> Federation:
        classes = len(registry.collection(name).classes)
        train, test = (Images.of(part.x, part.y).shrunk(name, size) for part in fetch.load(name, data_dir))
        sources = variants(train, test, classes, rotations, permutations, seed)
        return federate(
            name, sources, classes, Draw(partition, clients, points, held_out, test_points, seed, augment)
        )  # fmt: skip

    dataset.__name__ = dataset.__qualname__ = name
    dataset.__doc__ = f"{about}; every rotation and renaming of labels is a source."
    return image_dataset()(dataset)
