"""The state of a run as a file, with checksums over everything that is read back from it.

A state is written and read a few rows at a time: clients may remember more than the machine has memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedsoft.errors import StoreError

if TYPE_CHECKING:
    from torch import Tensor

    from fedsoft.tensorfile import Form, TensorFile

STATE = "state.safetensors"  # after the last saved round
BEFORE = "state-before.safetensors"  # after the one saved before it, until the run is finished
CHECK = "check"  # the key of a checksum in a JSON object


@dataclass(frozen=True)
class Checkpoint:
    """The whole state of a run after `rounds` rounds."""

    rounds: int
    state: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]  # see `tensorfile.in_blocks` for a few rows at a time


def kept_name(rounds: int) -> str:
    """The file with the state after so many rounds, where it is kept."""
    return f"state-{rounds}.safetensors"


def kept_rounds(folder: Path) -> list[int]:
    """The rounds whose states are kept in a run's folder."""
    found = (re.fullmatch(r"state-([1-9][0-9]{0,17})\.safetensors", path.name) for path in folder.glob("state-*"))
    return sorted(int(match[1]) for match in found if match)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum."""
    plain = json.loads(json.dumps(content))  # as it will be read: keys are text, tuples are lists
    return {**plain, CHECK: _digest(plain)}


def unsealed(content: dict[str, Any]) -> dict[str, Any] | None:
    """A JSON object without its checksum; None where that is wrong. One without a checksum is returned as it is."""
    if CHECK not in content:
        return content
    rest = {key: value for key, value in content.items() if key != CHECK}
    return rest if content[CHECK] == _digest(rest) else None


def _digest(content: Mapping[str, Any]) -> str:
    """Of what it says, not of how that is written down."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def write_state(file: IO[bytes], point: Checkpoint, run: str) -> None:
    """Write a state of the run with this hash."""
    from fedsoft.tensorfile import TensorFile, arranged, as_bytes, in_blocks, write_at

    parts = {"state": in_blocks(point.state), "memory": in_blocks(point.memory)}
    forms = {f"{where}/{name}": form for where, part in parts.items() for name, form in part.forms.items()}
    notes = {"round": point.rounds, "hash": run, "digest": "0" * 32}
    _, places = arranged(forms, json.dumps(sealed(notes)))
    target, digest = TensorFile(file.fileno(), places), hashlib.blake2b(digest_size=16)
    for key in sorted(forms):
        where, _, name = key.partition("/")
        digest.update(_title(key, forms[key]))
        for begin, rows in parts[where].blocks(name):
            target.write(key, begin, rows)
            digest.update(as_bytes(rows))
    # The header comes first in the file and holds the checksums, whose length is known before they are.
    header, _ = arranged(forms, json.dumps(sealed(notes | {"digest": digest.hexdigest()})))
    write_at(file.fileno(), header, 0)


@dataclass(frozen=True)
class SavedState:
    """A file with a state: its header is read, its numbers are not yet."""

    path: Path
    rounds: int
    digest: str
    file: TensorFile

    @staticmethod
    def open(path: Path, run: str, *, strict: bool) -> SavedState:
        """Read a header; complains about one that is damaged or of another run.

        `strict`: the notes must have a checksum, which those of the first version had not.
        """
        from fedsoft.tensorfile import opened

        try:
            text, file = opened(path)
            notes = json.loads(text)
            rounds, of, digest = notes["round"], str(notes["hash"]), str(notes["digest"])
            if type(rounds) is not int or rounds < 0 or unsealed(notes) is None or (strict and CHECK not in notes):
                raise ValueError("its notes are damaged")
        except FileNotFoundError:
            raise StoreError(f"'{path}' is missing") from None
        except (OSError, KeyError, ValueError, TypeError, RecursionError) as error:
            raise StoreError(f"'{path}' is damaged ({_reason(error)})") from None
        if of != run:
            raise StoreError(f"'{path}' belongs to another run (hash {of})")
        return SavedState(path, rounds, digest, file)

    def checked(self) -> Checkpoint:
        """The state, once all its numbers are found intact. What clients remember is read when it is asked for."""
        from fedsoft.tensorfile import Saved, as_bytes

        digest = hashlib.blake2b(digest_size=16)
        try:
            for name, (_, form) in sorted(self.file.places.items()):
                digest.update(_title(name, form))
                for _, block in self.file.blocks(name):
                    digest.update(as_bytes(block))
        except (OSError, ValueError) as error:
            raise StoreError(f"'{self.path}' is damaged ({_reason(error)})") from None
        if digest.hexdigest() != self.digest:
            raise StoreError(f"'{self.path}' is damaged (its checksum is wrong)")
        return Checkpoint(self.rounds, dict(Saved(self.file, "state/")), Saved(self.file, "memory/"))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return (
        "its header cannot be read" if isinstance(error, json.JSONDecodeError) else f"{error or type(error).__name__}"
    )


def _title(name: str, form: Form) -> bytes:
    """What the checksum says before the numbers of a tensor."""
    return f"{name} {form.dtype} {list(form.shape)}".encode()
