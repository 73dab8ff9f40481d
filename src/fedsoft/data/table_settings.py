"""The settings that data sets of tables share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import Field

from fedsoft.core.columns import Columns, Reading
from fedsoft.core.splits import Split
from fedsoft.data.csv_files import CsvForm
from fedsoft.data.streams import bad
from fedsoft.errors import InputError, unknown
from fedsoft.settings import settings

Names = tuple[str, ...]
Decimal = Literal[".", ","]
Missing = Literal["drop", "fill"]
Task = Literal["auto", "regression", "classification", "multilabel"]


@settings
class TableSettings:
    """How tables are read, and which of their points are held out.

    Arguments:
        target: the column with the targets y, or several; in an `.npz` the array of that name, beside `x`. Whole
            numbers, true/false and text are classes (text is numbered in sorted order over all clients).
        features: the columns of inputs, by name or by patterns such as `lab_*`; default: all that have no other use. In
            an `.npz` the arrays of inputs, which a network is given by name; default: `x`.
        drop: columns that are no inputs, by name or pattern; of several files one has to have each.
        missing: what happens to empty cells (nothing, NA, NaN or null) of columns that are used. `fill`: a number
            becomes the mean of its column over the rows of all clients, text belongs to no category; new clients and
            files to predict on are filled by the same values. `drop`: such rows are left out of training, of tests and
            of new clients' points; a file to predict on keeps all rows and may have no empty cells. Both count them,
            and rows without a label are left out. Default: an empty cell is an error.
        categorical: columns whose values are categories although they look like numbers, by name or pattern.
        categories: the most categories of a column of text. Each becomes an input of its own, 1 where a point has it
            and else 0; a value that no client had in training is 0 in all of them. 0: text is refused.
        tokens: columns of whole numbers that stand for words and the like, by name or pattern: networks get them as
            integers. Either one token in each of several columns, or sequences of them in one: lists, or text such as
            `12 7 3`. Where there are other inputs, too, a network is given `tokens` and `numbers` by name.
        length: of sequences, to which shorter ones are padded; default: that of the longest.
        delimiter, decimal, encoding: how CSV files are written.
        held_out: the share of each client's points that is kept for scoring its personal model.
        split: how these are chosen, default: at random. `{time = "date"}`: the last ones; `{group = "recording"}`:
            whole groups; `{column = "fold", test = ["5"]}`: by their value; `{test = "test.csv"}`: given as files.
        task: what y is, default: by its type.
        standardize: bring every input but tokens to mean 0 and std 1 over the training points of all clients; new
            clients and exported models use the same scale.
        seed: decides which points are held out.
        label: another name of `target`.
    """

    target: str | Names = "y"
    features: Names | None = None
    drop: Names = ()
    missing: Missing | None = None
    categorical: Names = ()
    categories: Annotated[int, Field(ge=0, le=10_000)] = 100
    tokens: Names = ()
    length: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    decimal: Decimal = "."
    encoding: str = "utf-8"
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2
    split: Split | None = None
    task: Task = "auto"
    standardize: bool = False
    seed: int = 0
    label: str | None = None

    def __post_init__(self) -> None:
        if self.label is not None:
            object.__setattr__(self, "target", self.label)

    @staticmethod
    def like(reading: Reading, target: str | None, ignored: Names) -> TableSettings:
        """Return how to read further files like those of a run; `target`: another name of that column."""
        return TableSettings(
            target=target or reading.target, features=reading.arrays, drop=ignored, delimiter=reading.delimiter,
            decimal=cast(Decimal, reading.decimal), encoding=reading.encoding,
            missing=cast(Missing | None, reading.missing),
        )  # fmt: skip

    def reading(self, client: str | None) -> Reading:
        """Return what the files of new clients have to be read by."""
        return Reading(
            target=self.target, client=client, arrays=self.features, delimiter=self.delimiter, decimal=self.decimal,
            encoding=self.encoding, missing=self.missing,
        )  # fmt: skip

    @property
    def targets(self) -> Names:
        """The columns with the targets."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @property
    def form(self) -> CsvForm:
        """How CSV files are written."""
        return CsvForm(self.delimiter, self.decimal, self.encoding)

    @property
    def split_column(self) -> str | None:
        """The column that held-out points are chosen by, if any."""
        if self.split is None or self.split.kind == "test":
            return None
        if not isinstance(self.split.by, str):
            raise InputError(
                f"split.{self.split.kind} = {self.split.by!r} is not allowed: should be the name of a column"
            )
        return self.split.by

    def choose(self, file: Path, names: Sequence[str], client: str | None, elsewhere: Collection[str] = ()) -> Columns:
        """Return which columns of a table are inputs, and which are not; raise InputError for names that it lacks.

        `elsewhere`: the columns of the other files, which may have what is dropped here.
        """
        for name in filter(None, (client, self.split_column)):
            if name not in names:
                raise bad(file, f"lacks a column: {unknown('column', name, names)}")
        used = {*self.targets, *filter(None, (client, self.split_column))}
        dropped = _matching(file, names, self.drop, elsewhere)
        chosen = _matching(file, names, self.features or ())
        if self.features is None:
            features = [name for name in names if name not in used and name not in dropped]
        else:  # a column with another use is an input, too, where it is named in full
            features = [
                name for name in names
                if name in chosen and name not in self.targets and (name not in used or name in self.features)
            ]  # fmt: skip
        if not features:
            others = ", ".join(f"'{name}'" for name in names if name in used or name in dropped)
            raise bad(file, f"has no column besides {others}, should have at least one feature")
        ignored = tuple(name for name in names if name not in features and name not in self.targets)
        _matching(file, names, self.tokens)
        tokens = tuple(name for name in features if matches(name, self.tokens))
        return Columns(tuple(features), ignored=ignored, tokens=tokens)

    def used(self, columns: Columns, client: str | None) -> Names:
        """Return the columns of which every point needs a value."""
        others = filter(None, (client, self.split_column))
        return tuple(dict.fromkeys((*(columns.features or ()), *self.targets, *others)))


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a column is named, or fits a pattern."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _matching(file: Path, names: Sequence[str], patterns: Sequence[str], elsewhere: Collection[str] = ()) -> set[str]:
    """Return the columns that are meant by names and patterns, each of which must mean one, here or elsewhere."""
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in (*names, *elsewhere)):
            raise bad(file, f"lacks a column: {unknown('column', pattern, names)}")
    return {name for name in names if matches(name, patterns)}
