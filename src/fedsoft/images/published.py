"""Published images as a data set: the settings that all of them share, once.

A data set of its own file says what it is and where it differs (`fedsoft.datasets.mnist` and its like).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fedsoft.checks import checked
from fedsoft.federation import Federation
from fedsoft.images import fetch, registry
from fedsoft.images.sources import Count, Images, Permutations, Rotations, Share, federate, variants
from fedsoft.partition import Partition

ARGUMENTS = """

    Arguments:
        partition: how the sources are mixed at clients: `10:90`, `linear`, `random`, `dirichlet(0.5)`, or a function.
        rotations: degrees counterclockwise, of 0, 90, 180 and 270.
        permutations: number of renamings of the labels, the first being none; sources then have the same images with
            labels that conflict. S is the number of rotations times that of permutations.
        clients: number of clients N.
        points: n_k is uniform from the first to the second number, both included.
        held_out: further points of each client, as a share of n_k, from images that nobody trains on.
        test_points: size of the test set of each source; all test images when it is not given.
        size: pixels of a side, a divisor of the published ones: images are averaged down to it.
        augment: vary training images each time they are used: shifted by up to an eighth of a side, what lies beyond an
            edge being its reflection, and mirrored half of the time. Held-out and test images stay as they are.
        data_dir: folder with the files; else FEDSOFT_DATA and the cache (see `fedsoft data`).
        seed: of all draws.
    """


class Dataset(Protocol):
    """What `published` makes."""

    def __call__(
        self,
        partition: str | Partition = ...,
        rotations: Rotations = ...,
        permutations: Permutations = ...,
        clients: Count = ...,
        points: tuple[Count, Count] = ...,
        held_out: Share = ...,
        test_points: Count | None = ...,
        size: Count | None = ...,
        augment: bool = ...,
        data_dir: str | Path | None = ...,
        seed: int = ...,
    ) -> Federation:
        """The federation with these settings."""
        ...


def published(
    name: str, about: str, *, clients: int = 100, points: tuple[int, int] = (100, 200), augment: bool = False
) -> Dataset:
    """A data set of published images, of which every rotation and renaming of labels is a source.

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
        return federate(
            name,
            variants(train, test, classes, rotations, permutations, seed),
            classes,
            partition=partition,
            clients=clients,
            points=points,
            held_out=held_out,
            test_points=test_points,
            seed=seed,
            augment=augment,
        )

    dataset.__name__ = dataset.__qualname__ = name
    dataset.__doc__ = f"{about}; every rotation and renaming of labels is a source.{ARGUMENTS}"
    return checked(dataset)
