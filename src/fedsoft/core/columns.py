"""What tables of clients call things, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Reading:
    """How the files of a federation are read, so that those of new clients can be read alike.

    Arguments:
        target: the column with the targets, or several; the array of an `.npz`.
        client: the column with the names of clients, if any.
        arrays: the inputs of an `.npz`; default: `x`.
        delimiter, decimal, encoding: how CSV files are written.
        missing: `drop` leaves rows with empty cells out, `fill` fills them.
    """

    target: str | tuple[str, ...] = "y"
    client: str | None = None
    arrays: tuple[str, ...] | None = None
    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    missing: str | None = None


@dataclass(frozen=True)
class Columns:
    """What tables of clients call things.

    Arguments:
        features: the columns of inputs, in the order of x.
        classes: the labels in the order of their numbers, where they are text, or whole numbers from another than 0.
        whole: whether these labels are whole numbers in the data.
        categories: columns of text with the values that are known: each is one element of x, 1 where a point has it
            and else 0. A point with another value has 0 in all of them.
        fills: of columns of numbers what an empty cell is taken for, where empty cells are filled.
        ignored: columns that tables may have and that are no inputs.
        tokens: inputs that are tokens, apart from those that are numbers.
        attributes: of inputs that are no rows of a table, such as alternatives to choose from: what models weigh.
        outcomes: what classes are called whose labels are numbers.
        reading: how the files are read, of which these are the columns.
    """

    features: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    whole: bool = False
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fills: Mapping[str, float] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)

    @property
    def labels(self) -> np.ndarray | None:
        """The classes as they are in the data, text or whole numbers; None where labels are their own numbers."""
        if self.classes is None:
            return None
        return np.array([*map(int, self.classes)]) if self.whole else np.array(self.classes)

    @property
    def elements(self) -> tuple[str, ...] | None:
        """A name for each element of x: that of its column, or `column=value`."""
        if self.features is None:
            return None
        parts = [[f"{name}={value}" for value in self.categories.get(name, ())] or [name] for name in self.features]
        return tuple(element for part in parts for element in part)
