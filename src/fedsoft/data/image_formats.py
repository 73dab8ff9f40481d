"""Readers of the formats that images are published in: idx, and CIFAR-10's binary batches.

What cannot be read is one sentence that tells a missing file from a truncated and a damaged one.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from fedsoft.data.streams import RATIO, Stream, bad, check_claim, check_end, read_array, read_exactly, size_of, times
from fedsoft.errors import InputError

GZIP = b"\x1f\x8b"
CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + math.prod(CIFAR_SHAPE)


# idx, the format of MNIST


def read_images(file: Path, height: int, width: int) -> np.ndarray:
    """Return the images in an idx file, packed by gzip or not, as uint8 `[images, height, width]`."""
    images = _idx(file, dimensions=3, what="images")
    if images.shape[1:] != (height, width):
        found = times(images.shape[1:])
        raise bad(str(file), f"holds images of {found} pixels, should be {height} x {width}")
    return images


def read_labels(file: Path, classes: int) -> np.ndarray:
    """Return the labels in an idx file, packed by gzip or not, as uint8 `[images]`."""
    labels = _idx(file, dimensions=1, what="labels")
    _check_labels(file, labels, classes)
    return labels


def _idx(file: Path, dimensions: int, what: str) -> np.ndarray:
    stored = size_of(file)
    with unpacked(file) as (stream, packed):
        head = read_exactly(str(file), stream, 4 + 4 * dimensions)
        if head[:3] != b"\0\0\x08" or head[3] not in (1, 3):
            raise bad(str(file), "is damaged or not an idx file of bytes: it does not begin with 00 00 08")
        if head[3] != dimensions:
            found = "labels" if head[3] == 1 else "images"
            raise bad(str(file), f"holds {found}, should hold {what}: are two files swapped?")
        shape = tuple(np.frombuffer(head, ">u4", dimensions, 4).tolist())
        if 0 in shape:
            raise bad(str(file), f"holds no {what}: its header says {times(shape)}")
        check_claim(str(file), math.prod(shape), stored * RATIO if packed else stored - len(head), times(shape))
        values = read_array(str(file), stream, math.prod(shape))
        check_end(str(file), stream)
    return values.reshape(shape)


@contextlib.contextmanager
def unpacked(file: Path) -> Iterator[tuple[Stream, bool]]:
    """Open a file, unpacked where it is a gzip file by its first bytes."""
    try:
        with file.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            if not packed:
                yield raw, False
                return
            with gzip.GzipFile(fileobj=raw) as stream:
                yield stream, True
    except InputError:  # a ValueError too
        raise
    except EOFError:
        raise bad(str(file), "is truncated: its gzip stream ends too early, get it again") from None
    except (OSError, zlib.error) as error:
        raise bad(str(file), f"is damaged and cannot be unpacked ({error}): get it again") from None


# CIFAR-10


def read_cifar(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a binary batch of CIFAR-10: images as uint8 `[images, 3, 32, 32]` and labels as uint8 `[images]`."""
    size = size_of(file)
    if size % CIFAR_RECORD:
        raise bad(str(file), f"is truncated or not a CIFAR-10 batch: {size} bytes are not a multiple of {CIFAR_RECORD}")
    check_claim(str(file), size, size, f"{size // CIFAR_RECORD} images")
    with _opened(file) as stream:
        records = read_array(str(file), stream, size).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0].copy()
    _check_labels(file, labels, 10)
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), labels


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise bad(str(file), f"cannot be read ({error.strerror or error})") from None


def _check_labels(file: Path, labels: np.ndarray, classes: int) -> None:
    if (largest := int(labels.max())) >= classes:
        place = int(np.argmax(labels))
        raise bad(str(file), f"is damaged: image {place} has label {largest}, labels should be 0 to {classes - 1}")
