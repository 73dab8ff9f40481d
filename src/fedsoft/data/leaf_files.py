"""Files in the JSON format of LEAF, user by user; texts in them as numbers of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsoft.data.streams import bad, size_of
from fedsoft.errors import InputError
from fedsoft.machine.resources import check_memory
from fedsoft.storage.files import reason
from fedsoft.storage.json_stream import members

Users = dict[str, tuple[np.ndarray, np.ndarray]]
SHOWN = 30  # characters of a text in an error
CHANNELS = (1, 3)


def read_users(path: Path, limit: int, field: int | None) -> tuple[Users, Users]:
    """Return the training and the test points of each user, from a file, or a folder with or without train and test."""
    shown = f"leaf: path = '{path}'"
    try:
        divided = (path / "train").is_dir()
        folders = [path / "train", path / "test"] if divided else [path]
        parts = [[folder] if folder.is_file() else sorted(folder.glob("*.json")) for folder in folders]
    except (OSError, ValueError) as error:
        raise InputError(f"{shown} cannot be read ({reason(error)})") from None
    if not parts[0]:
        raise InputError(f"{shown} holds no .json file, should be a file of LEAF, or a folder of them or with train/")
    held = [0]
    train = _read(parts[0], limit, field, held)
    return train, _read(parts[1], limit, field, held) if divided else {}


def _read(files: Iterable[Path], limit: int, field: int | None, held: list[int]) -> Users:
    found: Users = {}
    for file in files:
        size_of(file)
        counts: Any = None
        here: dict[str, int] = {}
        try:
            for section, name, value in members(file, "user_data", limit):
                if section is None:
                    counts = value if name == "num_samples" else counts
                    continue
                if name in found:
                    raise bad(file, f"has user '{name}' for the second time")
                found[name] = pair = _points(file, name, value, field)
                here[name] = len(pair[1])
                held[0] += sum(array.nbytes for array in pair)
                check_memory(f"file '{file.name}'", 2 * held[0])
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise bad(file, f"is not JSON that can be read: {reason(error)}") from None
        if not here:
            raise bad(file, "has no user_data, should be JSON of LEAF: users, num_samples and user_data")
        if isinstance(counts, list) and sorted(map(str, counts)) != sorted(map(str, here.values())):
            raise bad(file, "has num_samples that are not those of its user_data: it is truncated or damaged")
    return found


def _points(file: Path, name: str, value: Any, field: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of one user: x as numbers or text, y as numbers or text."""
    if not name or not name.isprintable():
        raise bad(file, f"has a user {name!a}, names should be readable text")
    if not isinstance(value, dict) or not all(isinstance(value.get(part), list) for part in "xy"):
        raise bad(file, f"has user '{name}' without lists x and y")
    x, y = value["x"], value["y"]
    if len(x) != len(y) or not x:
        raise bad(file, f"has user '{name}' with {len(x)} x and {len(y)} y, should be as many of both, and some")
    if field is not None and isinstance(x[0], list):
        try:
            x = [row[field] for row in x]
        except (IndexError, TypeError):
            raise bad(file, f"has no field {field} in every x of user '{name}'") from None
    arrays = []
    for part, given in (("x", x), ("y", y)):
        try:
            array = np.asarray(given)
        except ValueError:
            array = np.empty(0, dtype=object)
        if array.dtype.kind not in "biufU":
            raise bad(file, f"has {part} of user '{name}' that differ in shape or type, should be numbers or text")
        arrays.append(array.astype(np.float32) if array.dtype.kind == "f" else array)
    if len({isinstance(one, str) for one in y}) > 1:  # numpy would make text of the numbers
        raise bad(file, f"has both text and numbers as y of user '{name}'")
    return arrays[0], arrays[1]


# --- inputs -----------------------------------------------------------------------------------------------------------


def shaped(name: str, x: np.ndarray, shape: tuple[int, ...] | None) -> np.ndarray:
    """Return inputs in their shape; images of numbers from 0 to 1 become bytes, as images are kept."""
    if shape is None:
        return x[:, None] if x.ndim == 1 else x
    if x[0].size != int(np.prod(shape, dtype=int)):
        raise InputError(f"leaf: shape = {list(shape)} is not allowed: user '{name}' has inputs of {x[0].size} numbers")
    x = x.reshape(len(x), *shape)
    image = len(shape) == 3 and shape[0] in CHANNELS
    if image and x.dtype.kind == "f" and float(x.min()) >= 0 and float(x.max()) <= 1:
        return np.rint(x * 255).astype(np.uint8)
    return x.astype(np.uint8) if image and x.dtype.kind in "iu" and 0 <= x.min() and x.max() <= 255 else x


@dataclass(frozen=True)
class Tokens:
    """The numbers of tokens: from 1 in the order of the vocabulary, 0 for padding and for those that are not in it."""

    kind: Literal["characters", "words"]
    vocabulary: tuple[str, ...]
    length: int

    @staticmethod
    def of(texts: Sequence[np.ndarray], kind: Literal["characters", "words"], most: int, length: int | None) -> Tokens:
        """Count the tokens of all texts; the most frequent ones are kept."""
        counts: Counter[str] = Counter()
        longest = 1
        for own in texts:
            for text in own.tolist():
                found = _split(text, kind)
                counts.update(found)
                longest = max(longest, len(found))
        kept = sorted(counts, key=lambda token: (-counts[token], token))[:most]
        return Tokens(kind, tuple(sorted(kept)), length or longest)

    def code(self, texts: np.ndarray) -> np.ndarray:
        """Return texts as `[texts, length]`: what is longer is cut, what is shorter is followed by 0."""
        numbers = {token: i for i, token in enumerate(self.vocabulary, start=1)}
        found = np.zeros((len(texts), self.length), dtype=np.int64)
        for row, text in zip(found, texts.tolist(), strict=True):
            coded = [numbers.get(token, 0) for token in _split(text, self.kind)[: self.length]]
            row[: len(coded)] = coded
        return found


def _split(text: str, kind: Literal["characters", "words"]) -> Sequence[str]:
    return text if kind == "characters" else text.lower().split()


def sample(texts: np.ndarray) -> str:
    """Return the first text for an error."""
    text = str(texts.ravel()[0])
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]} ...")
