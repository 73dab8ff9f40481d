"""The paper's letters: EMNIST, lower and upper case, upright and turned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.data import fetch
from fedsoft.data.dataset_settings import dataset
from fedsoft.data.image_settings import Count, ImageSettings, Rotations
from fedsoft.data.image_sources import Images, federate, variants
from fedsoft.errors import SettingError
from fedsoft.settings import settings

__all__ = ["letters"]

CLASSES = 26
FIRST = {"upper": 10, "lower": 36}  # the label of A and of a in EMNIST ByClass; digits come before them


@settings
class Letters(ImageSettings):
    """Handwritten letters of EMNIST ByClass, 28x28; every case and rotation is a source with the same 26 classes.

    S is the number of cases times that of rotations; the paper's S = 4 has both cases and rotations 0 and 90.

    Arguments:
        cases: `lower` and `upper`.
        size: pixels of a side, a divisor of the published ones: images are averaged down to it.
        data_dir: folder with the files, default: FEDSOFT_DATA, then the cache (see `fedsoft data`).
    """

    rotations: Rotations = (0,)
    cases: Annotated[tuple[Literal["lower", "upper"], ...], Field(min_length=1)] = ("lower", "upper")
    size: Count | None = None
    data_dir: str | Path | None = None

    def federation(self) -> Federation:
        """Read the files, and draw clients."""
        if len(set(self.cases)) < len(self.cases):
            raise SettingError("Letters", "cases", list(self.cases), "should name each case once")
        parts = fetch.load("letters", self.data_dir)
        sources = []
        for case in self.cases:
            train, test = (_case(part, case, self.size) for part in parts)
            sources += variants(train, test, CLASSES, self.rotations, 1, self.seed, case)
        return federate("letters", sources, CLASSES, self)


letters = dataset(Letters)


def _case(pictures: fetch.Pictures, case: str, size: int | None) -> Images:
    """Return the letters of one case, labelled 0 to 25."""
    label = pictures.y - FIRST[case]
    chosen = np.flatnonzero((label >= 0) & (label < CLASSES))
    # EMNIST stores its images transposed.
    return Images.of(pictures.x[chosen].swapaxes(-2, -1), label[chosen]).shrunk("letters", size)
