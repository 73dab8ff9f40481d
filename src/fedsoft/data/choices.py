"""Repeated choices of people, as they are published: every person is a client, every choice a point.

A point is one choice among a few alternatives: x has a row of attributes for each alternative, y is the one that was
taken. Attributes are given in units of about one standard deviation, so that one learning rate suits them all.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.core.federation import Columns, Federation
from fedsoft.data import registry
from fedsoft.data.image_formats import unpacked
from fedsoft.data.streams import bad, size_of

LIMIT = 2**26  # bytes that a table may unpack to; the largest published one has 0.7 million


@dataclass(frozen=True)
class Choices:
    """What people chose among alternatives.

    Arguments:
        x: inputs `[points, alternatives, attributes]`.
        y: the alternative that was taken.
        people: who chose.
        attributes: what alternatives are weighed by.
        alternatives: their names, where they are not mere places in a list.
    """

    x: np.ndarray
    y: np.ndarray
    people: np.ndarray
    attributes: tuple[str, ...]
    alternatives: tuple[str, ...] = ()

    def federation(self, held_out: float, seed: int) -> Federation:
        """Return one client for each person."""
        names, owners = np.unique(self.people, return_inverse=True)
        rows = [np.flatnonzero(owners == k) for k in range(len(names))]
        pairs = [(self.x[own].astype(np.float32), self.y[own]) for own in rows]
        classes = self.x.shape[1]
        made = Federation.from_clients(
            pairs, names=[str(name) for name in names], held_out=held_out, classes=classes, seed=seed
        )
        return replace(made, columns=Columns(attributes=self.attributes, outcomes=self.alternatives))


def read_columns(name: str, wanted: Sequence[str], data_dir: str | Path | None) -> Mapping[str, np.ndarray]:
    """Find the table of a data set and return some of its columns; words stay words."""
    (file,) = registry.find(registry.collection(name), data_dir).values()
    return columns_of(file, wanted)


def rows_of(file: Path) -> int:
    """Return the number of rows of a table."""
    return _table(file).num_rows


def columns_of(file: Path, wanted: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return columns of a CSV file, packed by gzip or not."""
    table = _table(file)
    if missing := [name for name in wanted if name not in table.column_names]:
        raise bad(str(file), f"has no column '{missing[0]}': it is another table, or damaged")
    for name in wanted:
        if table.column(name).null_count:
            raise bad(str(file), f"has empty cells in column '{name}'")
    return {name: table.column(name).to_numpy() for name in wanted}


def _table(file: Path) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    size_of(file)
    with unpacked(file) as (stream, _):
        content = stream.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise bad(str(file), f"is too large: at most {LIMIT} bytes are read")
    try:
        table: Any = csv.read_csv(io.BytesIO(content), read_options=csv.ReadOptions(use_threads=False))
    except (pa.ArrowException, ValueError) as error:
        raise bad(str(file), f"is damaged or not a table ({error})") from None
    if not table.num_rows:
        raise bad(str(file), "has no rows")
    return table


def in_units(columns: Mapping[str, np.ndarray], units: Mapping[str, float]) -> np.ndarray:
    """Return columns `[rows, columns]` in these units."""
    return np.stack([columns[name].astype(np.float64) / unit for name, unit in units.items()], axis=1)
