"""Data sets of Hugging Face and partitions of Flower Datasets as tables of arrow, one for each part of a federation.

Both packages are extras. Nothing is downloaded here, and no code of a data set is run: a folder is read by
`load_from_disk`, which reads arrow files and JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.data.client_files import check_readable
from fedsoft.data.parquet import read_parquet
from fedsoft.data.streams import bad
from fedsoft.errors import InputError, unknown
from fedsoft.machine.resources import available

EXTRA = "pip install 'fedsoft[datasets]'"


@dataclass(frozen=True)
class HfPart:
    """Rows of a data set: of one client, or of all where a column tells whose they are."""

    name: str | None
    rows: Any  # a table of pyarrow
    classes: Mapping[str, tuple[str, ...]]  # of columns that are labels with names


@dataclass(frozen=True)
class HfSource:
    """The training points, and the held-out points where they are given."""

    train: Sequence[HfPart]
    test: Sequence[HfPart] = ()


def open_source(given: Any, client: str | None, partitioner: Mapping[str, Any] | None) -> HfSource:
    """Return the parts of what a user gives: a path, a data set, several by split or by client, or partitions."""
    if isinstance(given, str | Path):
        given = _on_disk(Path(given))
    if partitioner is not None:
        given = _partitioned(given, partitioner)
    if hasattr(given, "partitioners"):  # a FederatedDataset of Flower
        given = _loaded(given)
    if hasattr(given, "load_partition"):
        if client is not None:
            raise InputError(f"client = '{client}' is not allowed: partitions are the clients")
        return HfSource([_part(name, given.load_partition(k)) for k, name in enumerate(_partition_names(given))])
    if isinstance(given, Mapping) and type(given).__name__ != "DatasetDict":
        if client is not None:
            raise InputError(f"client = '{client}' is not allowed: data sets that are given by name are clients")
        sides = {str(name): _sides(str(name), one) for name, one in given.items()}
        tests = [_part(name, test) for name, (_, test) in sides.items() if test is not None]
        return HfSource([_part(name, train) for name, (train, _) in sides.items()], tests)
    if client is None:
        raise InputError("client is missing: give the column with the names of clients, or a partitioner")
    train, test = _sides("the data", given)
    return HfSource([_part(None, train)], [] if test is None else [_part(None, test)])


def _sides(what: str, given: Any) -> tuple[Any, Any | None]:
    """Return the training points, and those of the split `test` if there is one."""
    if isinstance(given, Mapping):
        if "train" not in given:
            some = ", ".join(map(str, given)) or "none"
            raise InputError(f"{what} has the splits {some}, should have 'train' and may have 'test'")
        return given["train"], given.get("test")
    return given, None


def _part(name: str | None, given: Any) -> HfPart:
    import pyarrow as pa

    if isinstance(given, pa.Table):
        return HfPart(name, given, {})
    if not hasattr(given, "with_format") or not hasattr(given, "features") or not hasattr(given, "__len__"):
        raise InputError(f"{name or 'the data'} is a {type(given).__name__}, should be a Dataset of Hugging Face")
    classes = {key: tuple(one.names) for key, one in given.features.items() if getattr(one, "names", None)}
    return HfPart(name, given.with_format("arrow")[:], classes)


def _on_disk(path: Path) -> Any:
    """Read what `save_to_disk` wrote, or a parquet file."""
    if path.suffix.lower() == ".parquet":
        import pyarrow as pa

        if not path.exists():
            raise bad(str(path), "does not exist")
        check_readable(path)
        try:
            return read_parquet(path, room=available())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise bad(path, f"is damaged or not a parquet file ({error})") from None
    if not ((path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()):
        raise InputError(
            f"huggingface: path = '{path}' is not allowed: should be a folder of save_to_disk, or a .parquet file"
        )
    try:
        import datasets
    except ImportError:
        raise InputError(f"huggingface: path = '{path}' needs the package 'datasets': {EXTRA}") from None
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # a damaged folder can fail in every layer: JSON, arrow, the package itself
        raise bad(str(path), f"cannot be read as a data set ({error})") from None


# --- Flower Datasets --------------------------------------------------------------------------------------------------


def _partitioned(given: Any, settings: Mapping[str, Any]) -> Any:
    """Return a partitioner of Flower Datasets for the training points."""
    try:
        from flwr_datasets import partitioner as known
    except ImportError:
        raise InputError(f"partitioner needs the package 'flwr-datasets': {EXTRA}") from None
    import datasets

    train, test = _sides("the data", given)
    if test is not None:
        raise InputError("partitioner is not allowed for data with a split 'test': whose points these are is not known")
    names = [name for name in known.__all__ if name != "Partitioner" and not name.startswith("Vertical")]
    wanted = dict(settings)
    if (name := wanted.pop("name", None)) not in names:
        raise InputError(f"partitioner: {unknown('partitioner', str(name), names)}")
    try:
        made = getattr(known, str(name))(**wanted)
        made.dataset = train if isinstance(train, datasets.Dataset) else datasets.Dataset(train)
        made.load_partition(0)  # draws
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"partitioner {name} cannot be used with {wanted} ({error})") from None
    return made


def _loaded(given: Any) -> Any:
    """Return the partitioner of a FederatedDataset with its data set."""
    splits = list(given.partitioners)
    split = "train" if "train" in splits else splits[0]
    given.load_partition(0, split)
    return given.partitioners[split]


def _partition_names(given: Any) -> list[str]:
    """Return the names of partitions: the ids that they were made by, else their numbers."""
    given.load_partition(0)  # only then it knows them
    natural = getattr(given, "partition_id_to_natural_id", None) or {}
    return [str(natural.get(k, k)) for k in range(given.num_partitions)]


# --- columns ----------------------------------------------------------------------------------------------------------


def is_image(type_: Any) -> bool:
    """Whether a column holds images as Hugging Face keeps them: bytes of a file, and a path."""
    from pyarrow import types

    return types.is_struct(type_) and type_.get_field_index("bytes") >= 0


def is_single(type_: Any) -> bool:
    """Whether a column holds one number or text in each row."""
    from pyarrow import types

    return not (is_image(type_) or types.is_nested(type_) or isinstance(type_, _extension()))


def stored(column: Any) -> Any:
    """Return a column without the types that Hugging Face adds."""
    import pyarrow as pa

    chunks = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks]
    return pa.chunked_array(chunks) if chunks else column


def sequences(column: Any) -> np.ndarray | None:
    """Return lists of numbers whose lengths differ as an array of arrays; None for all other columns."""
    from pyarrow import compute, types

    type_ = column.type
    if not (types.is_list(type_) or types.is_large_list(type_)) or column.null_count:
        return None
    if not (types.is_integer(type_.value_type) or types.is_floating(type_.value_type)):
        return None
    lengths = compute.call_function("list_value_length", [column]).to_numpy()
    values = compute.call_function("list_flatten", [column])
    if len(np.unique(lengths)) < 2 or values.null_count:
        return None
    found = np.empty(len(lengths), dtype=object)
    found[:] = np.split(np.array(values.to_numpy()), np.cumsum(lengths)[:-1])
    return found


def _extension() -> Any:
    import pyarrow as pa

    return pa.ExtensionType


def label_names(y: np.ndarray, names: tuple[str, ...], column: str) -> np.ndarray:
    """Return labels by their names."""
    if len(y) and not (0 <= int(y.min()) and int(y.max()) < len(names)):
        wrong = int(y.min()) if int(y.min()) < 0 else int(y.max())
        raise InputError(f"column '{column}' has label {wrong}, should be 0 to {len(names) - 1}: drop that point")
    return np.array(names, dtype=np.str_)[y]
