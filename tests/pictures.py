"""Small files in the formats that images are published in."""

from __future__ import annotations

import gzip
import string
import struct
from pathlib import Path

import numpy as np

LETTERS = "emnist-byclass-{}-{}-ubyte.gz"


def idx(values: np.ndarray) -> bytes:
    """An array of bytes as idx."""
    return b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def numbered(count: int, *shape: int, first: int = 0) -> np.ndarray:
    """Images that are all different: their first pixels hold their number, one more the whole."""
    images = np.zeros((count, int(np.prod(shape))), np.uint8)
    number = np.arange(first, first + count)
    images[:, 0], images[:, 1], images[:, 2] = number % 256, number // 256 % 256, 1 + number % 7
    return images.reshape(count, *shape)


def number_of(images: np.ndarray) -> np.ndarray:
    """The numbers of images that were made by `numbered` (and not turned)."""
    flat = images.reshape(len(images), int(np.prod(images.shape[1:]))).astype(np.int64)
    return flat[:, 0] + 256 * flat[:, 1]


def write_idx(folder: Path, images: str, labels: str, x: np.ndarray, y: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in ((images, x), (labels, y.astype(np.uint8))):
        content = idx(values)
        (folder / name).write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)


def write_letters(folder: Path, train: int = 5, test: int = 2, symbols: str = "") -> None:
    """EMNIST ByClass with so many images of each symbol; numbered row by row when seen upright."""
    symbols = symbols or string.digits + string.ascii_uppercase + string.ascii_lowercase
    table = string.digits + string.ascii_uppercase + string.ascii_lowercase
    first = 0
    for part, count in (("train", train), ("test", test)):
        labels = np.repeat([table.index(symbol) for symbol in symbols], count)
        upright = numbered(len(labels), 28, 28, first=first)
        first += len(labels)
        names = LETTERS.format(part, "images-idx3"), LETTERS.format(part, "labels-idx1")
        write_idx(folder, *names, np.ascontiguousarray(upright.swapaxes(1, 2)), labels)


def write_mnist(folder: Path, train: int = 6, test: int = 2, packed: bool = True) -> None:
    """The four files of MNIST with so many images of each digit."""
    ending = ".gz" if packed else ""
    for part, count, first in (("train", train, 0), ("t10k", test, 10 * train)):
        labels = np.tile(np.arange(10), count)
        names = f"{part}-images-idx3-ubyte{ending}", f"{part}-labels-idx1-ubyte{ending}"
        write_idx(folder, *names, numbered(len(labels), 28, 28, first=first), labels)


def write_cifar(folder: Path, each: int = 20) -> None:
    """The six batches of CIFAR-10 with so many images each; labels go round."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for i, name in enumerate(names):
        images = numbered(each, 3, 32, 32, first=i * each).reshape(each, -1)
        labels = (np.arange(each) % 10).astype(np.uint8)
        (folder / name).write_bytes(np.hstack([labels[:, None], images]).tobytes())
