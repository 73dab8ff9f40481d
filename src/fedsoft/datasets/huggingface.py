"""Data sets of Hugging Face, and partitions of Flower Datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.core.federation import Federation
from fedsoft.core.splits import Split
from fedsoft.data.dataset_settings import dataset
from fedsoft.data.hf_sources import HfPart, HfSource, is_image, is_single, label_names, open_source, sequences, stored
from fedsoft.data.image_bytes import read_images
from fedsoft.data.parquet import column_array
from fedsoft.data.table_clients import federate
from fedsoft.data.table_settings import Names, TableSettings
from fedsoft.data.tables import Table
from fedsoft.errors import InputError, unknown
from fedsoft.settings import settings

__all__ = ["huggingface"]

OWNER = "__client__"  # a column that is added where each client has a data set of its own
SIDE = "__side__"  # and one that tells training points from those of a split 'test'
Points = dict[str, tuple[np.ndarray | dict[str, np.ndarray], np.ndarray]]


@settings
class HuggingFace(TableSettings):
    """A data set of Hugging Face with a column of clients, one for each client, or partitions of Flower Datasets.

    Columns of single numbers and text are a table, with all its settings. Otherwise inputs are images, arrays or lists,
    of whole numbers for tokens; a network is given several of them by name.

    Arguments:
        path: a folder that `save_to_disk` wrote, or a `.parquet` file. In Python also a Dataset, a DatasetDict with
            `train` and `test` (held out), a dictionary of these by client, or a partitioner or FederatedDataset of
            Flower Datasets.
        client: the column with the names of clients.
        partitioner: divides a data set among clients in place of `client`: the name of one of Flower Datasets and its
            settings, such as `{name = "DirichletPartitioner", num_partitions = 10, partition_by = "y", alpha = 0.5}`.
    """

    path: Any
    client: str | None = None
    partitioner: dict[str, Any] | None = None
    target: str | Names = "label"

    def federation(self) -> Federation:
        """Read the data."""
        if self.client is not None and self.partitioner is not None:
            raise InputError("client and partitioner are both given, should be one of them")
        if self.split is not None and self.split.kind == "test":
            raise InputError("split.test is not allowed for huggingface: give a DatasetDict with 'train' and 'test'")
        source = open_source(self.path, self.client, self.partitioner)
        if not source.train:
            raise InputError("huggingface: there is no data set, a federation needs at least one client")
        inputs = self._inputs(source.train[0].rows)
        if all(is_single(source.train[0].rows.schema.field(name).type) for name in inputs):
            return self._of_table(source)
        return self._of_arrays(source, inputs)

    def _inputs(self, rows: Any) -> list[str]:
        names = rows.column_names
        for name in filter(None, (*self.targets, self.client)):
            if name not in names:
                raise InputError(f"the data lacks a column: {unknown('column', name, names)}")
        return list(self.choose(Path("data"), names, self.client).features or ())

    # --- tables

    def _of_table(self, source: HfSource) -> Federation:
        own = OWNER if self.client is None else self.client
        rows = self._joined(source.train)
        if not source.test:
            return federate([Table.of(rows, "data")], self, own)
        if self.split is not None:
            raise InputError("split is not allowed for data with a split 'test'")
        import pyarrow as pa
        from pyarrow import compute

        tested = self._joined(source.test)
        known = compute.call_function(
            "is_in", [tested.column(own)], compute.SetLookupOptions(rows.column(own).unique())
        )
        left = len(tested) - len(tested := tested.filter(known))
        if not len(tested):
            raise InputError("split 'test' has other clients than 'train', but held-out points need training points")
        sides = [
            part.append_column(SIDE, pa.array([side] * len(part), pa.string()))
            for side, part in (("train", rows), ("test", tested.select(rows.column_names)))
        ]
        options = replace(self, split=Split(column=SIDE, test=["test"]))
        made = federate([Table.of(pa.concat_tables(sides), "data")], options, own)
        said = [f"{left} test points of clients without training points are left out"] if left else []
        return replace(made, notices=(*made.notices, *said))

    def _joined(self, parts: Sequence[HfPart]) -> Any:
        """Return all rows as one table, with a column of clients; labels with names are text."""
        import pyarrow as pa

        tables = []
        for part in parts:
            rows = part.rows.replace_schema_metadata(None)
            for name in self.targets:
                if name in part.classes:
                    y = label_names(column_array(Path("data"), name, rows.column(name)), part.classes[name], name)
                    rows = rows.set_column(rows.column_names.index(name), name, pa.array(y.tolist(), pa.string()))
            if part.name is not None:
                rows = rows.append_column(OWNER, pa.array([part.name] * len(rows), pa.string()))
            tables.append(rows)
        try:
            return pa.concat_tables(tables)
        except pa.ArrowException as error:
            raise InputError(f"the clients' data sets differ in their columns ({error})") from None

    # --- arrays

    def _of_arrays(self, source: HfSource, features: Sequence[str]) -> Federation:
        if not isinstance(self.target, str):
            raise InputError(f"target = {list(self.targets)} is not allowed: images and arrays have one target")
        train, by = self._points(source.train, features)
        test, _ = self._points(source.test, features, with_split=False)
        classes = source.train[0].classes.get(self.target)
        split = None if self.split is None else replace(self.split, **{self.split.kind: [by[name] for name in train]})
        if test and split is not None:
            raise InputError("split is not allowed for data with a split 'test'")
        made = Federation.from_clients(
            list(train.values()), names=list(train), held_out=0 if test else self.held_out, split=split, task=self.task,
            classes=classes, length=self.length, seed=self.seed,
        )  # fmt: skip
        if test:
            extra = sorted(test.keys() - train.keys())
            made = made.with_test({name: pair for name, pair in test.items() if name in train})
            if extra:
                left = f"{len(extra)} clients with test points only are left out, the first is '{extra[0]}'"
                made = replace(made, notices=(*made.notices, left))
        return made.standardized() if self.standardize else made

    def _points(
        self, parts: Sequence[HfPart], features: Sequence[str], *, with_split: bool = True
    ) -> tuple[Points, Mapping[str, np.ndarray]]:
        """Return inputs and labels of each client, and its values of the column to split by."""
        found: Points = {}
        by: dict[str, np.ndarray] = {}
        for part in parts:
            names = part.rows.column_names
            for wanted in (*features, *self.targets):
                if wanted not in names:
                    raise InputError(f"{part.name or 'the data'} lacks a column: {unknown('column', wanted, names)}")
            x, y = {name: self._column(part, name) for name in features}, self._column(part, self.targets[0])
            column = self.split_column if with_split else None
            values = None if column is None else np.asarray(part.rows.column(column).to_pandas())
            if part.name is not None:
                owners = {part.name: np.arange(len(y))}
            else:
                owner = np.array([str(one) for one in part.rows.column(str(self.client)).to_pylist()], dtype=np.str_)
                owners = {str(name): np.flatnonzero(owner == name) for name in np.unique(owner)}
            for name, rows in owners.items():
                mine = {feature: values[rows] for feature, values in x.items()}
                found[name] = (mine if len(mine) > 1 else mine[features[0]]), y[rows]
                if values is not None:
                    by[name] = values[rows]
        return found, by

    def _column(self, part: HfPart, name: str) -> np.ndarray:
        column = part.rows.column(name)
        if is_image(column.type):
            return read_images(column, name)
        plain = stored(column)
        if (ragged := sequences(plain)) is not None:
            return ragged
        array = column_array(Path(part.name or "data"), name, plain)
        return label_names(array, part.classes[name], name) if name in part.classes else array


huggingface = dataset(HuggingFace)
