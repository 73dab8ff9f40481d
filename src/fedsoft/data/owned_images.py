"""Images with known owners, in one archive, folder of arrays or parquet file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsoft.data.image_sources import Images
from fedsoft.data.leaf_files import read_users, shaped
from fedsoft.data.numpy_files import read_arrays
from fedsoft.data.parquet import read_columns
from fedsoft.data.streams import bad

NAMES = ("images", "labels", "clients")
MOST_CLASSES = 2**20  # a damaged label would make a model that no memory can hold


@dataclass(frozen=True)
class OwnedImages:
    """Labelled images, the owner of each, and the number of classes."""

    images: Images
    owners: np.ndarray
    classes: int


def read_owned_images(where: Path, classes: int | None) -> OwnedImages:
    """Read the arrays `images`, `labels` and `clients`; `classes`: default: the largest label + 1."""
    arrays = _columns(where) if where.suffix.lower() == ".parquet" else read_arrays(where, NAMES)
    count = _check_lengths(where, arrays)
    labels = _labels(where, arrays["labels"], classes)
    images = Images.of(_pixels(where, arrays["images"], count), labels)
    return OwnedImages(images, _owners(where, arrays["clients"]), classes or int(labels.max()) + 1)


def read_leaf_images(where: Path, sides: tuple[int, int, int], classes: int, limit: int) -> OwnedImages:
    """Read images in LEAF's JSON, those of `train` and `test` together; paper is 1 there, and 0 here as elsewhere."""
    users = [(name, pair) for part in read_users(where, limit, None) for name, pair in part.items()]
    x = np.concatenate([255 - _pixels(where, shaped(name, x, sides), len(x)) for name, (x, _) in users])
    y = np.concatenate([y for _, (_, y) in users])
    owners = np.repeat([name for name, _ in users], [len(y) for _, (_, y) in users])
    return OwnedImages(Images.of(x, _labels(where, y, classes)), _owners(where, owners), classes)


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


def _labels(where: Path, labels: np.ndarray, classes: int | None) -> np.ndarray:
    if labels.dtype.kind not in "iu" or bool((labels < 0).any()) or int(labels.max()) > MOST_CLASSES:
        raise bad(where, f"has {labels.dtype} labels that are not whole numbers from 0 to {MOST_CLASSES}")
    if classes is not None and int(labels.max()) >= classes:
        raise bad(where, f"has label {int(labels.max())}, should be 0 to {classes - 1}")
    return labels.astype(np.int64)


def _owners(where: Path, owners: np.ndarray) -> np.ndarray:
    """Return the owner of each point; raise InputError for names that cannot be printed."""
    if owners.dtype.kind not in "iuU":
        raise bad(where, f"has {owners.dtype} as clients, should be whole numbers or text")
    if owners.dtype.kind == "U" and not all(name and name.isprintable() for name in np.unique(owners).tolist()):
        raise bad(where, "has clients whose names are empty or not readable text")
    return owners
