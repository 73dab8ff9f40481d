"""What the clients of a node keep between rounds, on the node's own disk, for one experiment.

Every ask that was answered leaves a new file, written beside its place, synced and renamed; it holds the attempt of
the run, the round and the ask. So whatever is killed, whenever, the last whole state is there. Four files are kept at
most: after the last ask, before it, and at the beginnings of the current and the previous round. So

- an ask that arrives twice has the same answer twice: it is done again from the state before it;
- a round that is repeated, by a server that was restarted, begins where it began before;
- an ask that is overtaken by later ones, or by a later attempt, is refused.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedsoft.errors import StoreError
from fedsoft.flower.jobs import NO_JOBS, Past
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.storage.atomic import sync
from fedsoft.storage.tensorfile import Saved, open_tensors

ENDING = ".safetensors"


@dataclass(frozen=True, order=True)
class Position:
    """A position in a run: the attempt, the round, and the ask within the round."""

    attempt: int
    round: int
    ask: int


@dataclass(frozen=True)
class Version:
    """One file: the state after a position. `chain`: a hash of all requests that led to it; `past`: the run's jobs."""

    path: Path
    number: int
    position: Position
    clients: tuple[str, ...]
    chain: str
    past: Past = NO_JOBS

    def tensors(self) -> Saved:
        """Open the saved tensors, one row for each of `clients`; raises StoreError when they are damaged."""
        _, file = open_tensors(self.path)
        found = Saved(file, "")
        for name in found:
            if any(not bool(torch.isfinite(block).all()) for _, block in found.blocks(name)):
                raise StoreError(f"'{self.path}' is damaged: '{name}' holds values that are not finite")
        return found


class ClientMemory:
    """The kept states of one experiment, newest last.

    Arguments:
        folder: of this experiment, beside those of others.
        quota: bytes that all of them may take together.
    """

    def __init__(self, folder: Path, quota: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder, self.quota = folder, quota
        for leftover in folder.glob(".new-*"):
            leftover.unlink(missing_ok=True)
        self.versions = sorted(
            (_version(path) for path in folder.glob(f"[0-9]*{ENDING}")), key=lambda version: version.number
        )

    @property
    def last(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def before(self, position: Position) -> Version | None:
        """Return the state that an ask starts from; None when there is none yet. Refuse asks that are overtaken."""
        last = self.last
        if last is None:
            return None
        if position.attempt < last.position.attempt:
            detail = f"attempt {position.attempt} of this run was followed by attempt {last.position.attempt}"
            raise Refused(Refusal.OVERTAKEN, detail)
        if position.attempt > last.position.attempt:  # the round is repeated from its beginning
            found = [version for version in self.versions if version.position.round < position.round]
        elif position < last.position:
            raise Refused(
                Refusal.OVERTAKEN,
                f"ask {position.ask} of round {position.round} comes after ask {last.position.ask} of round "
                f"{last.position.round}",
            )
        else:
            found = [version for version in self.versions if version.position < position]
        if not found:
            oldest = self.versions[0].position.round
            detail = f"cannot go back to the beginning of round {position.round}: the oldest state is of round {oldest}"
            raise Refused(Refusal.OVERTAKEN, detail)
        return found[-1]

    def keep(
        self, position: Position, clients: Sequence[str], tensors: Mapping[str, Tensor], base: Version | None = None,
        chain: str = "", past: Past = NO_JOBS,
    ) -> Version:  # fmt: skip
        """Save the state after a position, which follows the state `base`; states later than `base` are deleted."""
        self._check_quota(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
        number = self.versions[-1].number + 1 if self.versions else 0
        path = self.folder / f"{number:08d}{ENDING}"
        notes = asdict(position) | {"clients": list(clients), "chain": chain, "past": asdict(past)}
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
        new = Version(path, number, position, tuple(clients), chain, past)
        earlier = [version for version in self.versions if base is not None and version.number <= base.number]
        kept = _wanted([*earlier, new])
        for version in self.versions:
            if version not in kept:
                version.path.unlink(missing_ok=True)
        self.versions = kept
        return new

    def _check_quota(self, more: int) -> None:
        """Refuse to write this many bytes where the quota has no room for them."""
        if self.quota is None:
            return
        used = sum(file.stat().st_size for file in self.folder.parent.rglob("*") if file.is_file())
        if used + more > self.quota:
            detail = f"{used} bytes are used and {more} more needed, and policy.disk is {self.quota} bytes"
            raise Refused(Refusal.DISK, detail)


def _wanted(versions: list[Version]) -> list[Version]:
    """Return the last two, and the beginnings of the last round and of the one before."""
    chosen, edge = set(versions[-2:]), versions[-1].position.round
    for _ in range(2):
        earlier = [version for version in versions if version.position.round < edge]
        if earlier:
            chosen.add(earlier[-1])
            edge = earlier[-1].position.round
    return [version for version in versions if version in chosen]


def _version(path: Path) -> Version:
    try:
        notes = json.loads(open_tensors(path)[0])
        position = Position(int(notes["attempt"]), int(notes["round"]), int(notes["ask"]))
        clients = tuple(str(name) for name in notes["clients"])
        past = Past(int(notes["past"]["count"]), str(notes["past"]["digest"]))
        return Version(path, int(path.stem), position, clients, str(notes["chain"]), past)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"'{path}' is damaged ({type(error).__name__}): it cannot be read") from None
