"""Train journeys that people chose (Ben-Akiva, Bolduc and Bradley, 1993)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.data.choices import Choices, in_units, read_columns
from fedsoft.settings import checked

__all__ = ["train"]

UNITS = {"price": 1300.0, "time": 30.0, "change": 0.7, "comfort": 0.6}
ATTRIBUTES = ("price", "time", "changes", "lower comfort")


@checked
def train(
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.25, data_dir: str | Path | None = None, seed: int = 0
) -> Federation:
    """235 people, each with up to 19 choices between two train journeys; the mixture is unknown.

    Arguments:
        held_out: the share of each person's choices that is kept for scoring their personal model.
        data_dir: folder with the file, default: FEDSOFT_DATA, then the cache.
        seed: decides which choices are held out.
    """
    both = [{f"{name}{j}": unit for name, unit in UNITS.items()} for j in (1, 2)]
    found = read_columns("train", ["id", "choice", *both[0], *both[1]], data_dir)
    x = np.stack([in_units(found, units) for units in both], axis=1)
    taken = (found["choice"] == "choice2").astype(np.int64)
    return Choices(x, taken, found["id"], ATTRIBUTES).federation(held_out, seed)
