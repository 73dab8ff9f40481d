"""The settings that data sets of images share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsoft.core.partition import Partition
from fedsoft.settings import settings

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0)]
Rotations = Annotated[tuple[Literal[0, 90, 180, 270], ...], Field(min_length=1)]


@settings
class ImageSettings:
    """How clients draw images from sources.

    Arguments:
        partition: how the sources are mixed at clients: `10:90`, `linear`, `random`, `dirichlet(0.5)`, or a function.
        rotations: degrees counterclockwise, of 0, 90, 180 and 270.
        clients: number of clients N.
        points: n_k is uniform from the first to the second number, both included.
        held_out: further points of each client, as a share of n_k, from images that nobody trains on.
        test_points: size of the test set of each source, default: all test images.
        seed: of all draws.
    """

    partition: str | Partition = "10:90"
    rotations: Rotations = (0, 90)
    clients: Count = 100
    points: tuple[Count, Count] = (100, 200)
    held_out: Share = 0.25
    test_points: Count | None = None
    seed: int = 0


@settings
class PermutedImages(ImageSettings):
    """Images of which every rotation and renaming of labels is a source.

    Arguments:
        permutations: number of renamings of the labels, the first being none; sources then have the same images with
            labels that conflict. S is the number of rotations times that of permutations.
    """

    permutations: Annotated[int, Field(ge=1, le=1000)] = 1
