"""The paper's letters: EMNIST, lower and upper case, upright and turned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsoft.checks import checked
from fedsoft.errors import InputError
from fedsoft.federation import Federation
from fedsoft.images import fetch
from fedsoft.images.sources import Count, Images, Rotations, Share, federate, variants
from fedsoft.partition import Partition

__all__ = ["letters"]

CLASSES = 26
FIRST = {"upper": 10, "lower": 36}  # the label of A and of a in EMNIST ByClass; digits come before them


@checked
def letters(
    partition: str | Partition = "10:90",
    cases: Annotated[tuple[Literal["lower", "upper"], ...], Field(min_length=1)] = ("lower", "upper"),
    rotations: Rotations = (0,),
    clients: Count = 100,
    points: tuple[Count, Count] = (100, 200),
    held_out: Share = 0.25,
    test_points: Count | None = None,
    size: Count | None = None,
    data_dir: str | Path | None = None,
    seed: int = 0,
) -> Federation:
    """Handwritten letters of EMNIST ByClass, 28x28; every case and rotation is a source with the same 26 classes.

    Arguments:
        partition: how the sources are mixed at clients: `10:90`, `linear`, `random`, `dirichlet(0.5)`, or a function.
        cases: `lower` and `upper`.
        rotations: degrees counterclockwise, of 0, 90, 180 and 270. S is the number of cases times that of rotations;
            the paper's S = 4 has 0 and 90.
        clients: number of clients N.
        points: n_k is uniform from the first to the second number, both included.
        held_out: further points of each client, as a share of n_k, from images that nobody trains on.
        test_points: size of the test set of each source; all test images when it is not given.
        size: pixels of a side, a divisor of 28: images are averaged down to it.
        data_dir: folder with the files; else FEDSOFT_DATA and the cache (see `fedsoft data`).
        seed: of all draws.
    """
    if len(set(cases)) < len(cases):
        raise InputError(f"letters.cases = {list(cases)} is not allowed: should name each case once")
    train, test = fetch.load("letters", data_dir)
    sources = [
        source
        for case in cases
        for source in variants(_case(train, case, size), _case(test, case, size), CLASSES, rotations, 1, seed, case)
    ]
    return federate(
        "letters",
        sources,
        CLASSES,
        partition=partition,
        clients=clients,
        points=points,
        held_out=held_out,
        test_points=test_points,
        seed=seed,
    )


def _case(pictures: fetch.Pictures, case: str, size: int | None) -> Images:
    """The letters of one case, labelled 0 to 25."""
    label = pictures.y - FIRST[case]
    chosen = np.flatnonzero((label >= 0) & (label < CLASSES))
    # EMNIST stores its images transposed.
    return Images.of(pictures.x[chosen].swapaxes(-2, -1), label[chosen]).shrunk("letters", size)
