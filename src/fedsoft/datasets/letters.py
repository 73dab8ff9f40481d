"""The paper's letters: EMNIST, lower and upper case, upright and turned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.core.partition import Partition
from fedsoft.data import fetch
from fedsoft.data.image_settings import ARGUMENTS, Count, Rotations, Share, image_dataset
from fedsoft.data.image_sources import Draw, Images, federate, variants
from fedsoft.errors import SettingError

__all__ = ["letters"]

CLASSES = 26
FIRST = {"upper": 10, "lower": 36}  # the label of A and of a in EMNIST ByClass; digits come before them


@image_dataset(
    cases="`lower` and `upper`.",
    rotations=f"{ARGUMENTS['rotations']} S is cases times rotations; the paper's S = 4 has 0 and 90.",
)
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
    """Handwritten letters of EMNIST ByClass, 28x28; every case and rotation is a source with the same 26 classes."""
    if len(set(cases)) < len(cases):
        raise SettingError("letters", "cases", list(cases), "should name each case once")
    train, test = fetch.load("letters", data_dir)
    sources = [
        source
        for case in cases
        for source in variants(_case(train, case, size), _case(test, case, size), CLASSES, rotations, 1, seed, case)
    ]
    return federate("letters", sources, CLASSES, Draw(partition, clients, points, held_out, test_points, seed))


def _case(pictures: fetch.Pictures, case: str, size: int | None) -> Images:
    """Return the letters of one case, labelled 0 to 25."""
    label = pictures.y - FIRST[case]
    chosen = np.flatnonzero((label >= 0) & (label < CLASSES))
    # EMNIST stores its images transposed.
    return Images.of(pictures.x[chosen].swapaxes(-2, -1), label[chosen]).shrunk("letters", size)
