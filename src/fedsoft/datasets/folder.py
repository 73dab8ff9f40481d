"""Your own data: a folder with one file for each client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedsoft.checks import checked
from fedsoft.errors import InputError, unknown
from fedsoft.federation import Columns, Federation
from fedsoft.images.formats import check_archive
from fedsoft.machine import available
from fedsoft.tablefile import bad, first_word, labels, numbers, place, read_table, type_name, value

__all__ = ["folder"]

ENDINGS = (".csv", ".npz", ".parquet")
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # how an archive begins, with and without members


@checked
def folder(
    path: str | Path,
    label: str = "y",
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    task: Literal["auto", "regression", "classification"] = "auto",
    standardize: bool = False,
    seed: int = 0,
) -> Federation:
    """One client for each `.npz`, `.csv` or `.parquet` file in a folder, named like the file without its ending.

    Arguments:
        path: of the folder; hidden files, folders inside it and files with other endings are ignored.
        label: the column with the targets y, all others being x; in an `.npz` the array of that name, beside `x`.
            Whole numbers, true/false and text are classes (text is numbered in sorted order over all clients).
        held_out: the share of each client's points that is kept for scoring its personal model.
        task: what y is, when its type does not tell.
        standardize: bring every column of x to mean 0 and deviation 1 over the training points of all clients; those
            who come later, and exported models, are given the same scale.
        seed: decides which points are held out.
    """
    files = _files(Path(path))
    inputs, targets = [], []
    first: tuple[str, list[str]] | None = None  # the table that decides on the order of the features
    for file in files:
        x, y, first = _points(file, label, first)
        inputs.append(x)
        targets.append(y)
    targets, classes = _classes(files, targets, label, task)
    pairs, names = list(zip(inputs, targets, strict=True)), [file.stem for file in files]
    made = Federation.from_clients(pairs, names=names, held_out=held_out, task=task, seed=seed)
    made = replace(made, columns=Columns(tuple(first[1]) if first else None, classes))
    return made.standardised() if standardize else made


def read_newcomers(
    path: str | Path, federation: Federation, label: str = "y", *, labelled: bool = True
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """The points of people who are not among the clients: one file, or a folder of them, by name.

    Columns and classes are those of the federation. Without `labelled` the label may be missing: y is None then.
    """
    path = Path(path)
    files = _files(path) if path.is_dir() else [_file(path)]
    known = federation.columns.features
    found: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
    for file in files:
        x, y, _ = _points(file, label, ("the run's data", list(known)) if known else None, labelled=labelled)
        found[file.stem] = (x, None if y is None else _known_classes(file, y, label, federation))
    return found


def _file(path: Path) -> Path:
    """A file of points; one that is not there is told from one of another kind."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"'{path}' is not allowed: should be a folder, or a file ending in {', '.join(ENDINGS)}")
    if not path.exists():
        raise InputError(f"'{path}' does not exist, should be a folder, or a file ending in {', '.join(ENDINGS)}")
    return path


def _points(
    file: Path, label: str, first: tuple[str, list[str]] | None, *, labelled: bool = True
) -> tuple[np.ndarray, Any, tuple[str, list[str]] | None]:
    """Inputs and labels of a file, and the features with the name of the table that decided on their order."""
    _check_readable(file)
    if file.suffix.lower() == ".npz":
        return *_arrays(file, label, labelled=labelled), first
    table = read_table(file)
    columns = table.column_names
    there = labelled or label in columns
    features = _features(file, columns, label) if there else _features(file, [*columns, label], label)
    first = first or (file.name, features)
    _check_same(file, features, *first)
    x = np.column_stack([numbers(file, table, name) for name in first[1]])
    return x, labels(file, table, label) if there else None, first


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# Which files


def _files(path: Path) -> list[Path]:
    """The clients' files, in the order of their names."""
    shown = repr(str(path))
    try:
        files = sorted((file for file in path.iterdir() if _is_client(file)), key=lambda file: file.name)
    except FileNotFoundError:
        raise InputError(f"folder: path = {shown} does not exist, should be a folder of clients' files") from None
    except NotADirectoryError:
        raise InputError(f"folder: path = {shown} is not a folder, should be a folder of clients' files") from None
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"folder: path = {shown} cannot be read ({reason})") from None
    if not files:
        raise InputError(f"folder: path = {shown} holds no client, should hold files ending in {', '.join(ENDINGS)}")
    _check_names(files)
    return files


def _is_client(file: Path) -> bool:
    """Whether this is a file that should be read. A broken link is one: a client must not vanish silently."""
    if file.name.startswith(".") or file.suffix.lower() not in ENDINGS:
        return False
    return file.is_file() or (file.is_symlink() and not file.exists())


def _check_names(files: list[Path]) -> None:
    """Every client has a name of its own, and one that can be printed and hashed."""
    seen: dict[str, Path] = {}
    for file in files:
        if not file.name.isprintable():
            raise InputError(f"folder: the file name {file.name!a} has unprintable characters, rename the file")
        if file.stem in seen:
            other = seen[file.stem].name
            raise bad(file, f"and '{other}' are both client '{file.stem}', should be one file for each client")
        seen[file.stem] = file


def _check_readable(file: Path) -> None:
    """Open a file and look at its first bytes, so that what fails later is its content."""
    try:
        with file.open("rb") as stream:
            start = stream.read(4)
    except OSError as error:
        raise bad(file, f"cannot be read ({error.strerror or error})") from None
    if not start:
        raise bad(file, f"is empty (zero bytes), should be a {file.suffix} file with the points of a client")
    if file.suffix.lower() == ".npz" and start not in ZIP:  # numpy would take it for a single array or a pickle
        raise bad(file, "is not an .npz archive, should be one as numpy.savez writes it")


# Arrays


def _arrays(file: Path, label: str, *, labelled: bool = True) -> tuple[np.ndarray, Any]:
    """The inputs and the labels in an `.npz` file; None for labels that may be missing and are."""
    if label == "x":
        raise bad(file, "cannot have label = 'x', that array holds the inputs: should name another array")
    arrays = _load(file, label)
    for name in ("x", label) if labelled else ("x",):
        if name not in arrays:
            raise bad(file, f"lacks an array: {unknown('array', name, arrays)}")
    if label not in arrays:
        return _native(file, "x", arrays["x"], "biuf"), None
    x, y = (_native(file, name, arrays[name], kinds) for name, kinds in (("x", "biuf"), (label, "biufU")))
    if y.ndim == 0:
        raise bad(file, f"has a single value as array '{label}', should be one for each point")
    return x, (y.astype(np.int64) if y.dtype.kind == "b" else y)  # true and false are classes


def _load(file: Path, label: str) -> dict[str, Any]:
    """The arrays by name; None for those that are not asked for. Nothing is ever unpickled."""
    try:
        check_archive(file, available())
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {name: archive[name] if name in ("x", label) else None for name in archive.files}
    except InputError:
        raise
    except Exception as error:
        # A damaged archive can fail in every layer: zip, its compressors, and numpy's header, which is Python syntax.
        if "Object arrays" in str(error):
            raise bad(file, "holds Python objects (a pickle), which are never loaded: save numbers or text") from None
        raise bad(file, f"is damaged or not an .npz file ({str(error) or type(error).__name__})") from None


def _native(file: Path, name: str, array: Any, kinds: str) -> np.ndarray:
    """An array of one of these kinds in the byte order of this machine."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
        type_ = type_name(array.dtype) if isinstance(array, np.ndarray) else "raw bytes"
        raise bad(file, f"has {type_} as array '{name}', should be numbers{' or text' if 'U' in kinds else ''}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


# Tables


def _features(file: Path, columns: list[str], label: str) -> list[str]:
    """The columns besides the label, in the order of the file."""
    for name in columns:
        if not name or name.startswith("__index_level_"):
            what = f"column '{name}'" if name else "a column without a name"
            raise bad(file, f"has {what}, likely the row numbers of a data frame: save it without its index")
    name, count = Counter(columns).most_common(1)[0] if columns else ("", 0)
    if count > 1:
        raise bad(file, f"has {count} columns '{name}', should be one of each name")
    if label not in columns:
        raise bad(file, f"lacks the labels: {unknown('column', label, columns)}")
    if len(columns) == 1:
        raise bad(file, f"has no column besides '{label}', should have at least one feature")
    return [name for name in columns if name != label]


def _check_same(file: Path, features: list[str], first: str, expected: list[str]) -> None:
    """The features are those of the first table, in any order."""
    here, there = set(features), set(expected)
    if here != there:
        missing = [name for name in expected if name not in here]
        extra = [name for name in features if name not in there]
        parts = [f"{word} {_quoted(names)}" for word, names in (("lacks", missing), ("adds", extra)) if names]
        raise bad(file, f"should have the columns of '{first}', but {' and '.join(parts)}")


# Labels of all clients


def _classes(
    files: list[Path], targets: list[np.ndarray], label: str, task: str
) -> tuple[list[np.ndarray], tuple[str, ...] | None]:
    """The labels as numbers, and the classes that are text: 0, 1, ... in sorted order over all clients."""
    text = [y.dtype.kind in "UO" for y in targets]
    if not any(text):
        if task == "classification" or (task == "auto" and not any(y.dtype.kind == "f" for y in targets)):
            for file, y in zip(files, targets, strict=True):
                _check_numbered(file, y, label)
        return targets, None
    example, where = files[text.index(True)], _example(files[text.index(True)], targets[text.index(True)], label)
    if task == "regression":
        raise bad(example, f"has text as labels ({where}), should be numbers for task = 'regression'")
    if not all(text):
        # Not guessed: a typing error in one file would make classes of everyone's numbers.
        number = files[text.index(False)]
        told = f"has numbers as labels, but '{example.name}' has text ({where})"
        raise bad(number, f"{told}: should be the same in all files")
    values = [y.ravel().tolist() for y in targets]
    known = {name: i for i, name in enumerate(sorted(set().union(*values)))}
    numbered = [np.array([known[name] for name in row], dtype=np.int64) for row in values]
    return [new.reshape(y.shape) for new, y in zip(numbered, targets, strict=True)], tuple(known)


def _example(file: Path, y: np.ndarray, label: str) -> str:
    """A label that is text, and where it is: the first that does not look like a number."""
    row = first_word(y)
    return f"{value(y.ravel().tolist()[row])} in {place(file, row)}, column '{label}'"


def _check_numbered(file: Path, y: np.ndarray, label: str, classes: int | None = None) -> None:
    """Classes are whole numbers from 0, below the number of classes where that is known."""
    if y.ndim != 1:
        return
    wrong = (y < 0) | (y != np.round(y)) | (False if classes is None else y >= classes)
    if len(rows := np.flatnonzero(wrong)):
        row = int(rows[0])
        allowed = "0, 1, 2, ..." if classes is None else f"0 to {classes - 1}"
        raise bad(file, f"has {y[row]} in {place(file, row)}, column '{label}', but classes should be {allowed}")


def _known_classes(file: Path, y: np.ndarray, label: str, federation: Federation) -> np.ndarray:
    """The labels of a newcomer as the numbers that the clients' classes have."""
    classes, text = federation.columns.classes, y.dtype.kind in "UO"
    if text and classes is None:
        raise bad(file, f"has text as labels ({_example(file, y, label)}), but the run's data has numbers")
    if not text and classes is not None:
        raise bad(file, "has numbers as labels, but the run's data has text: should be the same")
    if classes is None:
        if federation.shape.task == "classification":
            _check_numbered(file, y, label, federation.shape.outputs)
        return y
    known = {name: i for i, name in enumerate(classes)}
    for row, name in enumerate(y.ravel().tolist()):
        if name not in known:
            where = f"{place(file, row)}, column '{label}'"
            raise bad(file, f"has a label in {where} that the run does not know: {unknown('class', name, classes)}")
    return np.array([known[name] for name in y.ravel().tolist()], dtype=np.int64).reshape(y.shape)
