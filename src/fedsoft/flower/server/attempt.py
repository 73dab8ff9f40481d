"""What the server of a run keeps beside its state, so that nodes know it again when it comes back."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedsoft.errors import InputError
from fedsoft.runs.folder import AT_NODES, RunFolder
from fedsoft.storage.files import read_json


@dataclass(frozen=True)
class Attempt:
    """One start of the server of a run.

    Arguments:
        experiment: the name under which nodes keep their clients' memory.
        attempt: its number, from 1.
        sizes: the number of points of each client, as nodes said.
        secret: what the noise on centers is drawn by: nodes know the seed, so it must not come from that alone.
        jobs: the round and the mark of each job of a run of sums, all of which nodes have agreed on.
    """

    experiment: str
    attempt: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    jobs: tuple[tuple[int, str], ...] = ()

    @staticmethod
    def following(folder: Path) -> Attempt:
        """Return the one after that which the run's folder knows; the first where it knows none."""
        new, path = Attempt(f"{folder.name[:80]}-{secrets.token_hex(8)}"), folder / AT_NODES
        if not path.exists():
            return new
        try:
            known = asdict(new) | {"attempt": 0} | read_json(path)
            sizes = {str(name): int(size) for name, size in known["sizes"].items()}
            jobs = tuple((int(t), str(mark)) for t, mark in known["jobs"])
            return Attempt(str(known["experiment"]), int(known["attempt"]) + 1, sizes, str(known["secret"]), jobs)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"'{path}' is damaged: {error}") from None

    def write(self, folder: Path) -> None:
        """Write it into the run's folder, for its owner only: it holds a secret."""
        RunFolder(folder).write(AT_NODES, (json.dumps(asdict(self), indent=1) + "\n").encode())
        (folder / AT_NODES).chmod(0o600)
