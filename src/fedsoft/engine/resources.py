"""What a run may use of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsoft.errors import InputError
from fedsoft.machine.resources import check_workers


@dataclass(frozen=True)
class Resources:
    """What a run may use of a machine. Nothing here changes the draws.

    Arguments:
        chunk: how many clients are stacked together; default: by size.
        device: where models are trained.
        workers: how many threads work on chunks at once; default: one for each core. Does not change the bits.
        memory: RAM for client states and replies, in bytes or as `500M`, `4G`, `2GiB`; default: half of what is
            available. The rest is kept in scratch files. Does not change the bits.
        scratch: the folder for scratch files; default: the system's.
    """

    chunk: int | None = None
    device: str = "cpu"
    workers: int | None = None
    memory: int | str | None = None
    scratch: Path | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk = {self.chunk} is not allowed: should be at least 1")
        check_workers(self.workers)
