"""Arrays in `.npy` files: inputs stay there, targets and clients are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from fedsoft.core.mapped import MappedRows
from fedsoft.data.numpy_files import map_npy, read_npy
from fedsoft.data.streams import bad
from fedsoft.errors import InputError
from fedsoft.machine.resources import available

Client = tuple[str, tuple[Tensor, np.ndarray]]


def clients_in(path: Path) -> list[Client]:
    """Return the clients of a folder: of one pool of points, or of a folder for each client."""
    shown = f"arrays: path = '{path}'"
    try:
        if not path.is_dir():
            raise InputError(f"{shown} does not exist or is no folder: should hold x.npy and y.npy")
        inside = sorted(path.iterdir(), key=lambda one: one.name)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{shown} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if (path / "x.npy").exists():
        return _pool(path)
    folders = [one for one in inside if not one.name.startswith(".") and one.is_dir()]
    if not folders:
        raise InputError(f"{shown} holds neither x.npy nor folders of clients that do")
    for folder in folders:
        if not folder.name.isprintable():
            raise InputError(f"arrays: the folder name {folder.name!a} has unprintable characters, rename it")
    return [(folder.name, _points(folder)) for folder in folders]


def _points(folder: Path) -> tuple[MappedRows, np.ndarray]:
    """Return inputs and targets of a folder."""
    x, y = map_npy(folder / "x.npy"), read_npy(folder / "y.npy", available())
    if x.ndim < 2 or not y.ndim or len(x) != len(y):
        raise bad(
            str(folder / "x.npy"),
            f"has shape {list(x.shape)} and y.npy {list(y.shape)}, should be x[points, features...] and y[points]",
        )
    return MappedRows.of(x), y


def _pool(folder: Path) -> list[Client]:
    """Return the clients of a pool, by the owner of each point or by their numbers of points."""
    x, y = _points(folder)
    by_owner, by_size = folder / "clients.npy", folder / "sizes.npy"
    if by_owner.exists() == by_size.exists():
        raise InputError(
            f"'{folder}' should hold either clients.npy, the client of each point, or sizes.npy, the points of each "
            f"client: it has {'both' if by_size.exists() else 'neither'}"
        )
    if by_owner.exists():
        owners = read_npy(by_owner, available())
        if owners.shape != (len(y),) or owners.dtype.kind not in "iuU":
            raise bad(
                str(by_owner),
                f"is {owners.dtype} of shape {list(owners.shape)}, should be whole numbers or text [{len(y)}]",
            )
        names, code = np.unique(owners, return_inverse=True)
        rows = np.split(np.argsort(code, kind="stable"), np.cumsum(np.bincount(code))[:-1])
    else:
        sizes = read_npy(by_size, available())
        whole = sizes.ndim == 1 and sizes.dtype.kind in "iu" and len(sizes) and int(sizes.min()) >= 1
        if not whole or int(sizes.sum()) != len(y):
            raise bad(str(by_size), f"should be whole numbers from 1 that add up to the {len(y)} points of x.npy")
        names = np.arange(len(sizes))
        rows = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    shown = [str(name) for name in names.tolist()]
    if not all(name and name.isprintable() for name in shown):
        raise bad(str(by_owner), "has clients whose names are empty or not readable text")
    return [(name, (x.pick(own), y[own])) for name, own in zip(shown, rows, strict=True)]
