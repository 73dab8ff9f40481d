"""Images with known owners, as in FEMNIST: every owner is a client, and the mixture is unknown."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.data.image_settings import Count
from fedsoft.data.image_sources import Images, by_client
from fedsoft.data.numpy_files import read_arrays
from fedsoft.data.parquet import read_columns
from fedsoft.data.streams import bad
from fedsoft.settings import checked

__all__ = ["natural"]

NAMES = ("images", "labels", "clients")
MOST_CLASSES = 2**20  # a damaged label would make a model that no memory can hold


@checked
def natural(
    path: str | Path,
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    classes: Count | None = None,
    seed: int = 0,
) -> Federation:
    """Images with owners: one client for every different value in the array `clients`.

    Arguments:
        path: an `.npz` archive with the arrays `images`, `labels` and `clients`, a folder with `images.npy`,
            `labels.npy` and `clients.npy`, or a `.parquet` file with these columns. Images are
            `[points, height, width]`, `[points, 1, height, width]` or `[points, 3, height, width]`, as bytes or as
            numbers from 0 to 1; labels are whole numbers from 0, clients whole numbers or text. A row of a parquet file
            holds an image as nested lists, or as one list, pixel after pixel, where it is a square one.
        held_out: the share of each client's points that is kept for scoring its personal model.
        classes: the number of classes, default: the largest label + 1.
        seed: decides which points are held out.
    """
    where = Path(path)
    arrays = _columns(where) if where.suffix.lower() == ".parquet" else read_arrays(where, NAMES)
    count = _check_lengths(where, arrays)
    labels = _labels(where, arrays["labels"])
    classes = classes if classes is not None else int(labels.max()) + 1
    if int(labels.max()) >= classes:
        raise bad(where, f"has label {int(labels.max())}, should be 0 to {classes - 1}")
    images = Images.of(_pixels(where, arrays["images"], count), labels)
    return by_client(images, _owners(where, arrays["clients"]), classes, held_out, seed)


def _columns(where: Path) -> dict[str, np.ndarray]:
    """Return the columns of a parquet file; square images that are one list get their sides back."""
    found = read_columns(where, NAMES)
    images = found["images"]
    if images.ndim == 2:
        # Three times a square is never a square: so the length distinguishes gray images from color ones.
        for channels in (1, 3):
            side = math.isqrt(images.shape[1] // channels)
            if side and images.shape[1] == channels * side**2:
                found["images"] = images.reshape(len(images), channels, side, side)
    return found


def _check_lengths(where: Path, arrays: dict[str, np.ndarray]) -> int:
    """Return the number of points; raise InputError unless all arrays have one entry for each, and there are any."""
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if any(not shape for shape in shapes.values()) or len({shape[0] for shape in shapes.values()}) != 1:
        raise bad(where, f"has arrays of shapes {found}, should be one entry of each for every point")
    if any(len(shapes[name]) != 1 for name in ("labels", "clients")):
        raise bad(where, f"has arrays of shapes {found}, labels and clients should be one value for every point")
    if not shapes["labels"][0]:
        raise bad(where, "has no points")
    return shapes["labels"][0]


def _pixels(where: Path, images: np.ndarray, count: int) -> np.ndarray:
    """Return the images as uint8 `[points, channels, height, width]`."""
    x = images[:, None] if images.ndim == 3 else images
    if x.ndim != 4 or x.shape[1] not in (1, 3) or x.size == 0:
        raise bad(
            where,
            f"has images of shape {list(images.shape)}, should be [{count}, height, width] or [{count}, 1 or 3, "
            "height, width]",
        )
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind != "f" or not bool(((x >= 0) & (x <= 1)).all()):
        raise bad(where, f"has images of {x.dtype}, should be bytes (uint8) or numbers from 0 to 1")
    return np.rint(x * 255).astype(np.uint8)


def _labels(where: Path, labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind not in "iu" or bool((labels < 0).any()) or int(labels.max()) > MOST_CLASSES:
        raise bad(where, f"has {labels.dtype} labels that are not whole numbers from 0 to {MOST_CLASSES}")
    return labels.astype(np.int64)


def _owners(where: Path, owners: np.ndarray) -> np.ndarray:
    """Return the owner of each point; raise InputError for names that cannot be printed."""
    if owners.dtype.kind not in "iuU":
        raise bad(where, f"has {owners.dtype} as clients, should be whole numbers or text")
    if owners.dtype.kind == "U" and not all(name and name.isprintable() for name in np.unique(owners).tolist()):
        raise bad(where, "has clients whose names are empty or not readable text")
    return owners
