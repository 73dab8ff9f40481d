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
from typing import IO, TYPE_CHECKING

from fedsoft.errors import StoreError
from fedsoft.runs.sealed import sealed, unsealed
from fedsoft.storage.files import parse_json

if TYPE_CHECKING:
    from torch import Tensor

    from fedsoft.core.contract import State
    from fedsoft.storage.tensorfile import Form, TensorFile

STATE = "state.safetensors"  # after the last saved round
BEFORE = "state-before.safetensors"  # after the one saved before it, until the run is finished


@dataclass(frozen=True)
class Checkpoint:
    """The whole state of a run after `rounds` rounds."""

    rounds: int
    state: State
    client_states: Mapping[str, Tensor]  # see `tensorfile.in_blocks` for a few rows at a time


def kept_name(rounds: int) -> str:
    """Return the name of the file with a state that is kept."""
    return f"state-{rounds}.safetensors"


def kept_rounds(folder: Path) -> list[int]:
    """Return the rounds whose states are kept in a run's folder."""
    found = (re.fullmatch(r"state-([1-9][0-9]{0,17})\.safetensors", path.name) for path in folder.glob("state-*"))
    return sorted(int(match[1]) for match in found if match)


def write_state(file: IO[bytes], point: Checkpoint, run: str) -> None:
    """Write a state of the run with this hash."""
    from fedsoft.storage.tensorfile import TensorFile, arrange, as_bytes, in_blocks, write_at

    parts = {"state": in_blocks(point.state.tensors()), "clients": in_blocks(point.client_states)}
    forms = {f"{where}/{name}": form for where, part in parts.items() for name, form in part.forms.items()}
    notes = {"round": point.rounds, "hash": run, "digest": "0" * 32}
    _, places = arrange(forms, json.dumps(sealed(notes)))
    target, digest = TensorFile(file.fileno(), places), hashlib.blake2b(digest_size=16)
    for key in sorted(forms):
        where, _, name = key.partition("/")
        digest.update(_title(key, forms[key]))
        for begin, rows in parts[where].blocks(name):
            target.write(key, begin, rows)
            digest.update(as_bytes(rows))
    # The header comes first in the file and holds the checksums, whose length is known before they are.
    header, _ = arrange(forms, json.dumps(sealed(notes | {"digest": digest.hexdigest()})))
    write_at(file.fileno(), header, 0)


@dataclass(frozen=True)
class SavedState:
    """A file with a state: its header is read, its numbers are not yet."""

    path: Path
    rounds: int
    digest: str
    file: TensorFile

    @staticmethod
    def open(path: Path, run: str) -> SavedState:
        """Read a header; raises StoreError for one that is damaged or of another run."""
        from fedsoft.storage.tensorfile import open_tensors

        try:
            text, file = open_tensors(path)
            notes = parse_json(text)
            rounds, of, digest = notes["round"], str(notes["hash"]), str(notes["digest"])
            if type(rounds) is not int or rounds < 0 or unsealed(notes) is None:
                raise ValueError("its notes are damaged")
        except FileNotFoundError:
            raise StoreError(f"'{path}' is missing") from None
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise StoreError(f"'{path}' is damaged ({_reason(error)})") from None
        if of != run:
            raise StoreError(f"'{path}' belongs to another run (hash {of})")
        return SavedState(path, rounds, digest, file)

    def checked(self) -> Checkpoint:
        """Return the state once all its numbers are found intact. What clients remember is read when it is needed."""
        from fedsoft.storage.tensorfile import Saved, as_bytes

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
        return Checkpoint(self.rounds, _state(self), Saved(self.file, "clients/"))


def _state(saved: SavedState) -> State:
    """The server's state; raises where it has no centers."""
    from fedsoft.core.contract import State
    from fedsoft.storage.tensorfile import Saved

    found = Saved(saved.file, "state/")
    if "centers" not in found:
        raise StoreError(f"'{saved.path}' is damaged (it holds no centers)")
    return State.from_tensors(dict(found))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return (
        "its header cannot be read" if isinstance(error, json.JSONDecodeError) else f"{error or type(error).__name__}"
    )


def _title(name: str, form: Form) -> bytes:
    """What the checksum says before the numbers of a tensor."""
    return f"{name} {form.dtype} {list(form.shape)}".encode()
