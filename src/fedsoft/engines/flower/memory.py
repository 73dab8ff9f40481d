"""What the clients of a node keep between rounds, on the node's own disk, for one experiment.

Every ask that was answered leaves a new file, written beside its place, synced and renamed; it says which attempt of
the run, which round and which ask it belongs to. So whatever is killed, whenever, the last whole state is there. Four
files are kept at most: after the last ask, before it, and at the beginnings of the current and the previous round. So

- an ask that comes twice is answered twice alike: it is done again from the state before it;
- a round that is played again, by a server that was started again, begins where it began before;
- an ask that is overtaken by later ones, or by a later attempt, is refused.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedsoft.errors import InputError, StoreError
from fedsoft.runs.disk import sync
from fedsoft.tensorfile import Saved, opened

ENDING = ".safetensors"


class Overtaken(InputError):
    """An ask that comes too late, or goes back further than is remembered."""


@dataclass(frozen=True, order=True)
class Moment:
    """Up to where something is known: which attempt of the run, which round, which ask of the round."""

    attempt: int
    round: int
    ask: int


@dataclass(frozen=True)
class Version:
    """One file: the state after a moment."""

    path: Path
    number: int
    moment: Moment
    clients: tuple[str, ...]

    def tensors(self) -> Saved:
        """What was saved, one row for each of `clients`; complains when it is damaged."""
        _, file = opened(self.path)
        found = Saved(file, "")
        for name in found:
            if any(not bool(torch.isfinite(block).all()) for _, block in found.blocks(name)):
                raise StoreError(f"'{self.path}' is damaged: '{name}' holds values that are not finite")
        return found


class NodeMemory:
    """The kept states of one experiment, newest last."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        for leftover in folder.glob(".new-*"):
            leftover.unlink(missing_ok=True)
        self.versions = sorted(
            (_version(path) for path in folder.glob(f"[0-9]*{ENDING}")), key=lambda version: version.number
        )

    @property
    def last(self) -> Version | None:
        """The newest state."""
        return self.versions[-1] if self.versions else None

    def before(self, moment: Moment) -> Version | None:
        """The state in which an ask is to be done; None when there is none yet. Refuses asks that are overtaken."""
        last = self.last
        if last is None:
            return None
        if moment.attempt < last.moment.attempt:
            raise Overtaken(f"attempt {moment.attempt} of this run was followed by attempt {last.moment.attempt}")
        if moment.attempt > last.moment.attempt:  # the round is played anew, from its beginning
            found = [version for version in self.versions if version.moment.round < moment.round]
        elif moment < last.moment:
            raise Overtaken(
                f"ask {moment.ask} of round {moment.round} comes after ask {last.moment.ask} of round "
                f"{last.moment.round}"
            )
        else:
            found = [version for version in self.versions if version.moment < moment]
        if not found:
            oldest = self.versions[0].moment.round
            raise Overtaken(
                f"cannot go back to the beginning of round {moment.round}: the oldest state that is kept is that after "
                f"round {oldest}"
            )
        return found[-1]

    def keep(
        self, moment: Moment, clients: Sequence[str], tensors: Mapping[str, Tensor], base: Version | None = None
    ) -> Version:
        """Save the state after a moment, which came about from the state `base`; what is later than `base` is void."""
        number = self.versions[-1].number + 1 if self.versions else 0
        path = self.folder / f"{number:08d}{ENDING}"
        notes = {"attempt": moment.attempt, "round": moment.round, "ask": moment.ask, "clients": list(clients)}
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=self.folder)
        os.close(handle)
        try:
            save_file(
                {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
                temporary,
                metadata={"fedsoft": json.dumps(notes)},
            )
            sync(Path(temporary))
            Path(temporary).replace(path)
            sync(self.folder)
        except OSError as error:
            raise StoreError(f"cannot write to '{self.folder}': {error.strerror or error}") from None
        finally:
            Path(temporary).unlink(missing_ok=True)
        new = Version(path, number, moment, tuple(clients))
        behind = [version for version in self.versions if base is not None and version.number <= base.number]
        kept = _wanted([*behind, new])
        for version in self.versions:
            if version not in kept:
                version.path.unlink(missing_ok=True)
        self.versions = kept
        return new


def _wanted(versions: list[Version]) -> list[Version]:
    """The last two, and the beginnings of the last round and of the one before."""
    chosen, edge = set(versions[-2:]), versions[-1].moment.round
    for _ in range(2):
        earlier = [version for version in versions if version.moment.round < edge]
        if earlier:
            chosen.add(earlier[-1])
            edge = earlier[-1].moment.round
    return [version for version in versions if version in chosen]


def _version(path: Path) -> Version:
    try:
        notes = json.loads(opened(path)[0])
        moment = Moment(int(notes["attempt"]), int(notes["round"]), int(notes["ask"]))
        return Version(path, int(path.stem), moment, tuple(str(name) for name in notes["clients"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"'{path}' is damaged ({type(error).__name__}): what this node kept cannot be read") from None
