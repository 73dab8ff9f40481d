"""The paper's photographs: CIFAR-10, upright and turned."""

from __future__ import annotations

from pathlib import Path

from fedsoft import fetch
from fedsoft.checks import checked
from fedsoft.federation import Federation
from fedsoft.images import Count, Images, Permutations, Rotations, Share, federate, variants
from fedsoft.partition import Partition

__all__ = ["cifar10"]

CLASSES = 10


@checked
def cifar10(
    partition: str | Partition = "10:90",
    rotations: Rotations = (0, 90),
    permutations: Permutations = 1,
    clients: Count = 20,
    points: tuple[Count, Count] = (3000, 3500),
    held_out: Share = 0.25,
    test_points: Count | None = None,
    data_dir: str | Path | None = None,
    seed: int = 0,
) -> Federation:
    """Colour photographs of CIFAR-10, 32x32, ten classes; every rotation and renaming of labels is a source.

    Arguments:
        partition: how the sources are mixed at clients: `10:90`, `linear`, `random`, `dirichlet(0.5)`, or a function.
        rotations: degrees counterclockwise, of 0, 90, 180 and 270.
        permutations: number of renamings of the labels, the first being none; sources then have the same images with
            labels that conflict. S is the number of rotations times that of permutations.
        clients: number of clients N.
        points: n_k is uniform from the first to the second number, both included.
        held_out: further points of each client, as a share of n_k, from images that nobody trains on.
        test_points: size of the test set of each source; all test images when it is not given.
        data_dir: folder with the files; else FEDSOFT_DATA and the cache (see `fedsoft data`).
        seed: of all draws.
    """
    train, test = (Images.of(part.x, part.y) for part in fetch.load("cifar10", data_dir))
    return federate(
        "cifar10",
        variants(train, test, CLASSES, rotations, permutations, seed),
        CLASSES,
        partition=partition,
        clients=clients,
        points=points,
        held_out=held_out,
        test_points=test_points,
        seed=seed,
    )
