"""Finding, downloading and checking the files of published images.

A data set only looks for its files; nothing is downloaded unless somebody asks for it (`fedsoft data fetch`). They are
looked for in the `data_dir` of the data set, in the folder that the environment variable FEDSOFT_DATA names, and in the
cache, and always all in one folder, so that training and test images cannot come from different copies.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import string
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from fedsoft import formats
from fedsoft.errors import InputError, unknown

VARIABLE = "FEDSOFT_DATA"
DOWNLOAD_LIMIT = 2**30  # bytes; the largest, EMNIST, has 560 million
MEMBER_LIMIT = 2**30  # bytes that one file may unpack to
TIMEOUT = 60  # seconds without an answer
# What damaged archives raise, layer by layer. Errors of the disk are not among them.
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError, ValueError)

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Download:
    """One address: a file itself, or an archive and the files to take out of it.

    Arguments:
        url: the publisher's address, or that of the mirror that took its place.
        md5: of what lies there.
        inside: the folder in the archive that holds the files; None when the address is that of a file.
        files: the names of the files that come with it.
    """

    url: str
    md5: str
    inside: str | None
    files: tuple[str, ...]


@dataclass(frozen=True)
class Collection:
    """The files of a published data set.

    Arguments:
        name: of the data set.
        about: what it is, in one line.
        folder: the subfolder that its files lie in.
        kind: their format.
        train, test: their names; for idx pairs of images and labels.
        counts: images in the published training and test files.
        downloads: where they come from.
        classes: the names of the labels in the files.
        distinct: whether the names of the files tell the data set. MNIST and Fashion-MNIST share theirs.
    """

    name: str
    about: str
    folder: str
    kind: Literal["idx", "cifar"]
    train: tuple[str, ...]
    test: tuple[str, ...]
    counts: tuple[int, int]
    downloads: tuple[Download, ...]
    classes: tuple[str, ...]
    distinct: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files."""
        return self.train + self.test


def _mnist_like(name: str, about: str, base: str, md5s: tuple[str, ...], classes: tuple[str, ...]) -> Collection:
    """A data set in the four files of MNIST."""
    train = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    test = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    downloads = tuple(Download(base + file, md5, None, (file,)) for file, md5 in zip(train + test, md5s, strict=True))
    return Collection(name, about, name, "idx", train, test, (60_000, 10_000), downloads, classes, distinct=False)


_LETTERS = tuple(f"emnist-byclass-{part}-ubyte.gz" for part in
                 ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1"))  # fmt: skip
_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")

COLLECTIONS = {
    found.name: found
    for found in (
        Collection(
            name="letters",
            about="EMNIST ByClass: handwritten digits and letters, 28x28",
            folder="letters",
            kind="idx",
            train=_LETTERS[:2],
            test=_LETTERS[2:],
            counts=(697_932, 116_323),
            downloads=(
                Download(
                    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                    "58c8d27c78d21e728a6bc7b3cc06412e",
                    "gzip",
                    _LETTERS,
                ),
            ),
            classes=tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
        ),
        Collection(
            name="cifar10",
            about="CIFAR-10: colour photographs of ten kinds of things, 32x32",
            folder="cifar-10-batches-bin",
            kind="cifar",
            train=_BATCHES[:5],
            test=_BATCHES[5:],
            counts=(50_000, 10_000),
            downloads=(
                Download(
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    "c32a1d4ab5d03f1284b67883e8d87530",
                    "cifar-10-batches-bin",
                    _BATCHES,
                ),
            ),
            classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        ),
        _mnist_like(
            "mnist",
            "MNIST: handwritten digits, 28x28",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            tuple(string.digits),
        ),
        _mnist_like(
            "fashion",
            "Fashion-MNIST: grey photographs of clothes, 28x28",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
    )
}


def collection(name: str) -> Collection:
    """The files of a data set by its name."""
    if name not in COLLECTIONS:
        raise unknown("data set with files", name, COLLECTIONS)
    return COLLECTIONS[name]


# Finding


def cache() -> Path | None:
    """The folder that downloads go to; None where pooch, which knows it, is not installed."""
    try:
        import pooch
    except ImportError:
        return None
    return Path(pooch.os_cache("fedsoft"))


def places(wanted: Collection, data_dir: str | Path | None = None) -> list[Path]:
    """The folders that the files may lie in, in the order in which they are looked for."""
    found: list[Path] = []
    if data_dir is not None:
        root = Path(data_dir).expanduser()
        found += [root / wanted.folder, root / wanted.name, root]
    if variable := os.environ.get(VARIABLE):
        root = Path(variable).expanduser()
        # The folder itself only where the names of the files tell whose they are.
        found += [root / wanted.folder, root / wanted.name, *([root] if wanted.distinct else [])]
    if cached := cache():
        found.append(cached / wanted.folder)
    return list(dict.fromkeys(found))


def locate(wanted: Collection, data_dir: str | Path | None = None) -> dict[str, Path] | None:
    """Where each file is, all of them in one folder; None when no folder has all."""
    for folder in places(wanted, data_dir):
        found = {name: path for name in wanted.files if (path := _in(folder, name))}
        if len(found) == len(wanted.files):
            return found
    return None


def _in(folder: Path, name: str) -> Path | None:
    """A file in a folder, also under its name without `.gz`. A broken link is not there."""
    options = (name, name.removesuffix(".gz"))
    try:
        return next((folder / option for option in options if (folder / option).is_file()), None)
    except (OSError, ValueError):  # a folder that may not be entered, or that cannot be
        return None


def find(wanted: Collection, data_dir: str | Path | None = None) -> dict[str, Path]:
    """Where each file is; one sentence on what is missing and how to get it when they are not there."""
    found = locate(wanted, data_dir)
    if found is not None:
        return found
    folders = places(wanted, data_dir)
    # The folder that has most of them tells best what is missing.
    best = min(folders, key=lambda folder: sum(_in(folder, name) is None for name in wanted.files), default=None)
    name = next(name for name in wanted.files if best is None or _in(best, name) is None)
    looked = ", ".join(f"'{folder}'" for folder in folders) or "no folder"
    first = wanted.downloads[0]
    source = first.url if first.inside else first.url.rpartition("/")[0]
    raise InputError(
        f"{wanted.name}: file '{name}' is missing (looked in {looked}): run 'fedsoft data fetch {wanted.name}', "
        f"or get the files from {source} and name their folder by data_dir or {VARIABLE}"
    )


# Reading


@dataclass(frozen=True)
class Pictures:
    """Images as uint8 `[images, channels, height, width]` and the labels they were published with."""

    x: np.ndarray
    y: np.ndarray


def load(name: str, data_dir: str | Path | None = None) -> tuple[Pictures, Pictures]:
    """Training and test images of a data set, found and read."""
    wanted = collection(name)
    files = find(wanted, data_dir)
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
            return f"readable, but not the published bytes: {', '.join(wrong)}"
        known = [right for right in self.checksums.values() if right]
        return "complete, checksums right" if known else "complete"


def check(name: str, data_dir: str | Path | None = None) -> Report:
    """Read all files of a data set and compare counts and checksums with the published ones."""
    wanted = collection(name)
    files = find(wanted, data_dir)
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
        return hashlib.file_digest(stream, _md5).hexdigest() == known[name]


def _md5() -> Any:
    # The publishers' checksums are MD5: they show accidents, and are all there is.
    return hashlib.md5(usedforsecurity=False)


# Downloading


def fetch(name: str, data_dir: str | Path | None = None) -> Report:
    """Download what is missing into `data_dir` or the cache, check it, and say what is there."""
    wanted = collection(name)
    if locate(wanted, data_dir) is None:
        root = Path(data_dir).expanduser() if data_dir is not None else cache()
        if root is None:
            raise InputError("data fetch needs the package 'pooch': install it with 'pip install pooch'")
        for part in wanted.downloads:
            _download(part, root / wanted.folder)
    return check(name, data_dir)


def _download(part: Download, folder: Path) -> None:
    """Bring the files of one address into a folder. They appear there whole and with the right checksum only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if part.inside is None:
            _retrieve(part, folder, part.files[0])
            return
        archive = _retrieve(part, folder, "." + part.url.rpartition("/")[2])
        _extract(archive, part, folder)
        archive.unlink()
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"'{folder}' cannot be written to ({error.strerror or error})") from None


def _retrieve(part: Download, folder: Path, name: str) -> Path:
    """Download one address by pooch, which writes beside the place and compares the checksum first."""
    try:
        import pooch
    except ImportError:
        raise InputError("data fetch needs the package 'pooch': install it with 'pip install pooch'") from None
    pooch.get_logger().setLevel("WARNING")
    stream: Any = _stream  # pooch calls it by position, its types want other names
    try:
        return Path(pooch.retrieve(part.url, f"md5:{part.md5}", name, folder, downloader=stream))
    except InputError:
        raise
    except ValueError as error:
        if "hash" not in str(error):
            raise InputError(f"{part.url} cannot be downloaded ({_short(error)})") from None
        raise InputError(
            f"{part.url} has another checksum than was published (MD5 {part.md5}): the download is damaged "
            "or the file was replaced, nothing was kept"
        ) from None
    except OSError as error:  # all that requests raises, and full disks
        raise InputError(
            f"{part.url} cannot be downloaded ({_short(error)}): try again, or get it by other means and put "
            f"{'its files' if part.inside else 'it'} into '{folder}'"
        ) from None


def _stream(url: str, output_file: str, _pooch: Any) -> None:
    """What pooch calls to download. Its own downloader leaves connections open, and takes files of any size."""
    import requests

    done = 0
    with requests.Session() as session, session.get(url, stream=True, timeout=TIMEOUT) as answer:
        answer.raise_for_status()
        with Path(output_file).open("wb") as file:
            for block in answer.iter_content(formats.BLOCK):
                done += len(block)
                if done > DOWNLOAD_LIMIT:
                    raise InputError(f"{url} is not kept: it has more than {DOWNLOAD_LIMIT} bytes")
                file.write(block)


def _short(error: BaseException) -> str:
    """The innermost reason, on one line."""
    if (status := getattr(getattr(error, "response", None), "status_code", None)) is not None:
        return f"the server answers {status}"
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), BaseException):
        error = inner
    text = " ".join(str(error).rpartition(": ")[2].split())
    return text[:200] or type(error).__name__


def _extract(archive: Path, part: Download, folder: Path) -> None:
    """Take the files that are wanted out of an archive, by their names; nothing else in it is looked at."""
    unpack = _from_zip if archive.suffix == ".zip" else _from_tar
    try:
        unpack(archive, part, folder)
    except KeyError as error:
        raise formats.bad(archive, f"lacks a file: {error.args[0]}") from None
    except DAMAGE as error:
        if isinstance(error, InputError):
            raise
        raise formats.bad(archive, f"is damaged and cannot be unpacked ({error})") from None


def _from_zip(archive: Path, part: Download, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        for name in part.files:
            with opened.open(f"{part.inside}/{name}") as stream:
                _write(stream, folder / name)


def _from_tar(archive: Path, part: Download, folder: Path) -> None:
    with tarfile.open(archive) as opened:
        for name in part.files:
            member = opened.getmember(f"{part.inside}/{name}")
            stream = opened.extractfile(member) if member.isreg() else None  # a link could lead anywhere
            if stream is None:
                raise KeyError(f"'{member.name}' is not a plain file")
            with stream:
                _write(stream, folder / name)


def _write(stream: IO[bytes], target: Path) -> None:
    """Copy a stream into a file, which is there whole or not at all."""
    beside = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        with beside.open("wb") as file:
            done = 0
            while block := stream.read(formats.BLOCK):
                done += len(block)
                if done > MEMBER_LIMIT:
                    raise formats.bad(target, f"is not kept: it unpacks to more than {MEMBER_LIMIT} bytes")
                file.write(block)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
