"""Files of clients in a folder: which there are, whether they can be opened, and arrays in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.data.numpy_files import read_arrays
from fedsoft.data.streams import bad
from fedsoft.errors import InputError
from fedsoft.machine.resources import available
from fedsoft.storage.files import open_regular

ENDINGS = (".csv", ".npz", ".parquet")
TABLES = (".csv", ".parquet")
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # how an archive begins, with and without members


def files_in(path: Path) -> list[Path]:
    """Return the clients' files, in the order of their names."""
    shown = repr(str(path))
    try:
        files = sorted((file for file in path.iterdir() if _is_client(file)), key=lambda file: file.name)
    except FileNotFoundError:
        raise InputError(f"folder: path = {shown} does not exist, should be a folder of clients' files") from None
    except NotADirectoryError:
        raise InputError(
            f"folder: path = {shown} is not a folder, should be a folder of clients' files (one table with a column of "
            "clients: name = 'table')"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"folder: path = {shown} cannot be read ({reason})") from None
    if not files:
        raise InputError(f"folder: path = {shown} holds no client, should hold files ending in {', '.join(ENDINGS)}")
    _check_names(files)
    return files


def one_file(path: Path) -> Path:
    """Return a file of points; raise InputError for one that is missing or of another kind."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"'{path}' is not allowed: should be a folder, or a file ending in {', '.join(ENDINGS)}")
    if not path.exists():
        raise InputError(f"'{path}' does not exist, should be a folder, or a file ending in {', '.join(ENDINGS)}")
    return path


def one_table(path: Path) -> Path:
    """Return a file with the points of all clients; raise InputError for one that is missing or of another kind."""
    shown, wanted = f"table: path = '{path}'", f"should be a {' or '.join(TABLES)} file"
    if path.is_dir():
        raise InputError(f"{shown} is a folder, {wanted} (one file for each client: name = 'folder')")
    if path.suffix.lower() not in TABLES:
        raise InputError(f"{shown} is not allowed: {wanted}")
    if not path.exists():
        raise InputError(f"{shown} does not exist, {wanted}")
    return path


def _is_client(file: Path) -> bool:
    """Return whether this file should be read. Broken links and pipes should: no client is dropped silently."""
    if file.name.startswith(".") or file.suffix.lower() not in ENDINGS:
        return False
    return not file.is_dir()


def _check_names(files: list[Path]) -> None:
    """Raise InputError for names that two clients share, or that cannot be printed."""
    seen: dict[str, Path] = {}
    for file in files:
        if not file.name.isprintable():
            raise InputError(f"folder: the file name {file.name!a} has unprintable characters, rename the file")
        if file.stem in seen:
            other = seen[file.stem].name
            raise bad(file, f"and '{other}' are both client '{file.stem}', should be one file for each client")
        seen[file.stem] = file


def check_readable(file: Path) -> None:
    """Open a file and read its first bytes, so that what fails later is its content."""
    try:
        with os.fdopen(open_regular(file), "rb") as stream:
            start = stream.read(4)
    except (OSError, ValueError) as error:
        raise bad(file, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not start:
        raise bad(file, f"is empty (zero bytes), should be a {file.suffix} file with the points of a client")
    if file.suffix.lower() == ".npz" and start not in ZIP:  # numpy would take it for a single array or a pickle
        raise bad(file, "is not an .npz archive, should be one as numpy.savez writes it")


def read_npz(
    file: Path, target: str, split_by: str | None, features: Sequence[str] | None = None, *, labelled: bool = True
) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
    """Return inputs, labels and the array to split by in an `.npz` file; None for labels that are not there.

    Inputs are the array x, or those that `features` names, by name.
    """
    inputs = list(features or ["x"])
    if target in inputs:
        raise bad(file, f"cannot have target = '{target}', that array holds the inputs: should name another array")
    names = [*inputs, *([target] if labelled else []), *([split_by] if split_by else [])]
    found = read_arrays(file, names, optional=[target], limit=available())
    for name in inputs:
        if found[name].dtype.kind == "U":
            raise bad(file, f"has text as array '{name}', should be numbers")
        if found[name].ndim == 0:
            raise bad(file, f"has a single value as array '{name}', should be one for each point")
    y = found.get(target)
    if y is not None and y.ndim == 0:
        raise bad(file, f"has a single value as array '{target}', should be one for each point")
    if y is not None and y.dtype.kind == "b":  # true and false are classes
        y = y.astype(np.int64)
    x = found["x"] if features is None else {name: found[name] for name in inputs}
    return x, y, found[split_by] if split_by else None
