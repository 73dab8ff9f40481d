"""The settings that data sets of images share: their types, and what they mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Literal, ParamSpec

from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.settings import checked

P = ParamSpec("P")

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0)]
Rotations = Annotated[tuple[Literal[0, 90, 180, 270], ...], Field(min_length=1)]
Permutations = Annotated[int, Field(ge=1, le=1000)]

ARGUMENTS = {
    "partition": "how the sources are mixed at clients: `10:90`, `linear`, `random`, `dirichlet(0.5)`, or a function.",
    "rotations": "degrees counterclockwise, of 0, 90, 180 and 270.",
    "permutations": "number of renamings of the labels, the first being none; sources then have the same images with "
    "labels that conflict. S is the number of rotations times that of permutations.",
    "clients": "number of clients N.",
    "points": "n_k is uniform from the first to the second number, both included.",
    "held_out": "further points of each client, as a share of n_k, from images that nobody trains on.",
    "test_points": "size of the test set of each source, default: all test images.",
    "size": "pixels of a side, a divisor of the published ones: images are averaged down to it.",
    "augment": "vary training images each time they are used: shifted by up to an eighth of a side, what lies beyond "
    "an edge being its reflection, and mirrored half of the time. Held-out and test images stay as they are.",
    "data_dir": "folder with the files, default: FEDSOFT_DATA, then the cache (see `fedsoft data`).",
    "seed": "of all draws.",
}


def image_dataset(**own: str) -> Callable[[Callable[P, Federation]], Callable[P, Federation]]:
    """Make a data set of a function: check its settings and document them, by `own` words or by those of all."""

    def decorate(function: Callable[P, Federation]) -> Callable[P, Federation]:
        words = ARGUMENTS | own
        lines = [f"        {name}: {words[name]}" for name in inspect.signature(function).parameters]
        function.__doc__ = "\n".join([f"{function.__doc__}\n\n    Arguments:", *lines, "    "])
        return checked(function)

    return decorate
