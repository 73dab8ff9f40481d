"""Train, Swissmetro or car, as travellers chose (Bierlaire, Axhausen and Abay, 2001)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.data.choices import Choices, read_columns
from fedsoft.settings import checked

__all__ = ["swissmetro"]

MODES, NAMES = ("TRAIN", "SM", "CAR"), ("train", "Swissmetro", "car")
ATTRIBUTES = ("train", "car", "time", "cost", "headway")
MINUTES, FRANCS, HEADWAY = 80.0, 70.0, 40.0  # about one standard deviation each


@checked
def swissmetro(
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.25, data_dir: str | Path | None = None, seed: int = 0
) -> Federation:
    """1,191 travellers, each with 9 choices among train, Swissmetro and car; the mixture is unknown.

    An alternative has six inputs: whether it is the train, whether it is the car, time, cost (none with an annual
    pass), headway, and last whether it is available at all (`conditional_logit` with `available = true`).

    Arguments:
        held_out: the share of each traveller's choices that is kept for scoring their personal model.
        data_dir: folder with the file, default: FEDSOFT_DATA, then the cache.
        seed: decides which choices are held out.
    """
    times, costs = [f"{mode}_TT" for mode in MODES], [f"{mode}_CO" for mode in MODES]
    waits, there = ["TRAIN_HE", "SM_HE"], [f"{mode}_AV" for mode in MODES]
    found = read_columns("swissmetro", ["ID", "CHOICE", "GA", *times, *costs, *waits, *there], data_dir)
    known = found["CHOICE"] > 0  # 0: the answer is missing
    found = {name: values[known] for name, values in found.items()}
    pays = (found["GA"] == 0).astype(np.float64)
    nothing = np.zeros(len(pays))
    alternatives = []
    for mode in MODES:
        cost = found[f"{mode}_CO"] * (1 if mode == "CAR" else pays)
        wait = found.get(f"{mode}_HE", nothing)  # none for the car
        row = [nothing + (mode == "TRAIN"), nothing + (mode == "CAR"), found[f"{mode}_TT"] / MINUTES, cost / FRANCS]
        alternatives.append(np.stack([*row, wait / HEADWAY, found[f"{mode}_AV"]], axis=1))
    x, taken = np.stack(alternatives, axis=1), found["CHOICE"] - 1
    return Choices(x, taken, found["ID"], ATTRIBUTES, NAMES).federation(held_out, seed)
