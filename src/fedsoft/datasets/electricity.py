"""Electricity contracts that households chose (Revelt and Train, 1998)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.data.choices import Choices, in_units, read_columns
from fedsoft.data.streams import bad
from fedsoft.settings import checked

__all__ = ["electricity"]

ALTERNATIVES = 4
UNITS = {"pf": 4.0, "cl": 2.0, "loc": 0.4, "wk": 0.5, "tod": 0.4, "seas": 0.4}
ATTRIBUTES = ("price", "contract length", "local company", "well-known company", "time-of-day rates", "seasonal rates")


@checked
def electricity(
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.25, data_dir: str | Path | None = None, seed: int = 0
) -> Federation:
    """361 households, each with up to 12 choices among four electricity contracts; the mixture is unknown.

    Arguments:
        held_out: the share of each household's choices that is kept for scoring its personal model.
        data_dir: folder with the file, default: FEDSOFT_DATA, then the cache.
        seed: decides which choices are held out.
    """
    found = read_columns("electricity", ["id", "choice", "chid", *UNITS], data_dir)
    if len(found["id"]) % ALTERNATIVES or (found["chid"].reshape(-1, ALTERNATIVES).T != found["chid"][::4]).any():
        raise bad("electricity.csv", f"does not have {ALTERNATIVES} rows in a row for every choice")
    x = in_units(found, UNITS).reshape(-1, ALTERNATIVES, len(UNITS))
    taken = found["choice"].astype(bool).reshape(-1, ALTERNATIVES)
    people = found["id"][::ALTERNATIVES]
    return Choices(x, np.argmax(taken, axis=1), people, ATTRIBUTES).federation(held_out, seed)
