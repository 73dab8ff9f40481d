"""Reading and checking the images of a data set, and having them downloaded when somebody asks for it.

A data set only reads the files that are there (`registry` finds them); nothing is downloaded unless somebody runs
`fedsoft data fetch` (`download` does it).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedsoft.errors import InputError
from fedsoft.images import formats, registry
from fedsoft.images.download import Progress, download, md5
from fedsoft.images.registry import Collection

Split = Literal["train", "test"]


# Reading


@dataclass(frozen=True)
class Pictures:
    """Images as uint8 `[images, channels, height, width]` and the labels they were published with."""

    x: np.ndarray
    y: np.ndarray


def load(name: str, data_dir: str | Path | None = None) -> tuple[Pictures, Pictures]:
    """Training and test images of a data set, found and read."""
    wanted = registry.collection(name)
    files = registry.find(wanted, data_dir)
    return read(wanted, files, "train"), read(wanted, files, "test")


def read(wanted: Collection, files: dict[str, Path], split: Split) -> Pictures:
    """The images of one half as they were published."""
    names = wanted.train if split == "train" else wanted.test
    if wanted.kind == "cifar":
        parts = [formats.read_cifar(files[name]) for name in names]
        return Pictures(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]).astype(np.int64))
    images, labels = (files[name] for name in names)
    x, y = formats.read_images(images, 28, 28), formats.read_labels(labels, len(wanted.classes))
    if len(x) != len(y):
        raise InputError(
            f"file '{images}' has {len(x)} images, but '{labels}' has {len(y)} labels: they do not belong together"
        )
    return Pictures(x[:, None], y.astype(np.int64))


# Checking


@dataclass(frozen=True)
class Report:
    """What was found out about the files of a data set."""

    name: str
    folder: Path
    train: int
    test: int
    complete: bool
    checksums: dict[str, bool | None]

    @property
    def verdict(self) -> str:
        """In words."""
        wrong = [file for file, right in self.checksums.items() if right is False]
        if not self.complete:
            return "readable, but fewer images than were published"
        if wrong:
            return f"complete, but not the published bytes (packed anew, or changed): {', '.join(wrong)}"
        known = [right for right in self.checksums.values() if right]
        return "complete, checksums right" if known else "complete"


def check(name: str, data_dir: str | Path | None = None) -> Report:
    """Read all files of a data set and compare counts and checksums with the published ones."""
    wanted = registry.collection(name)
    files = registry.find(wanted, data_dir)
    counts = tuple(len(read(wanted, files, split).y) for split in ("train", "test"))
    return Report(
        name=name,
        folder=next(iter(files.values())).parent,
        train=counts[0],
        test=counts[1],
        complete=counts == wanted.counts,
        checksums={file: _checksum(wanted, file, path) for file, path in files.items()},
    )


def _checksum(wanted: Collection, name: str, path: Path) -> bool | None:
    """Whether a file is the published one; None where its own checksum was not published, or it was unpacked."""
    known = {file: part.md5 for part in wanted.downloads if part.inside is None for file in part.files}
    if name not in known or path.name != name:
        return None
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, md5).hexdigest() == known[name]


# Downloading


def fetch(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Report:
    """Download what is missing into `data_dir` or the cache, check it, and say what is there."""
    wanted = registry.collection(name)
    if registry.locate(wanted, data_dir) is None:
        root = Path(data_dir).expanduser() if data_dir is not None else registry.cache()
        if root is None:
            raise InputError("data fetch needs the package 'pooch': install it with 'pip install pooch'")
        for part in wanted.downloads:
            download(part, root / wanted.folder, progress)
    return check(name, data_dir)
