"""The log of a run, `rounds.jsonl`: one line per round, each with a checksum."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsoft.errors import StoreError
from fedsoft.runs.sealed import sealed, unsealed
from fedsoft.storage import files
from fedsoft.storage.atomic import replacing, said, sync
from fedsoft.storage.files import MOST_MEMORY
from fedsoft.training.records import RoundRecord

LONGEST_LINE = 10**6  # bytes


@dataclass(frozen=True)
class RoundLog:
    """A file that grows by lines. A torn last line is what a crash leaves behind, and is left out."""

    path: Path

    def read(self) -> tuple[list[RoundRecord], str]:
        """Return the good lines from the first on, and what is wrong with the next one."""
        records: list[RoundRecord] = []
        held = 0
        for line in self._lines():
            held += files.memory_needed(line)
            if held > MOST_MEMORY:
                return records, f"'{self.path}' is too large: it would take more than {MOST_MEMORY} bytes of memory"
            try:
                content = unsealed(files.parse_json(line))
                if content is None:
                    raise ValueError
                records.append(RoundRecord.from_dict(content))
            except ValueError:
                return records, f"'{self.path}' is damaged in line {len(records) + 1}"
        return records, ""

    def until(self, rounds: int) -> list[RoundRecord]:
        """Return the first `rounds` records; raises StoreError where there are fewer."""
        records, flaw = self.read()
        if len(records) < rounds:
            raise StoreError(flaw or self.too_short(len(records), rounds))
        return records[:rounds]

    def too_short(self, lines: int, rounds: int) -> str:
        return f"'{self.path}' holds {lines} rounds, but {rounds} were saved"

    def append(self, record: RoundRecord) -> None:
        with said(self.path.parent):
            new = not self.path.exists()
            with self.path.open("ab") as file:
                file.write(json.dumps(sealed(record.to_dict())).encode() + b"\n")
            if new:  # that there is a log is on disk before the first state
                sync(self.path.parent)

    def cut(self, rounds: int) -> list[RoundRecord]:
        """Drop what the log says beyond `rounds` rounds; return the records that remain."""
        kept = b"".join(itertools.islice(self._lines(), rounds))
        if self.path.exists() and self.path.stat().st_size != len(kept):
            with replacing(self.path.parent, self.path.name) as file:
                file.write(kept)
        return self.until(rounds)

    def sync(self) -> None:
        with said(self.path.parent):
            if self.path.exists():
                sync(self.path)

    def _lines(self) -> Iterator[bytes]:
        """Yield whole lines, which end in a newline; what is too long for one is cut."""
        try:
            with os.fdopen(files.open_regular(self.path), "rb") as file:
                while (line := file.readline(LONGEST_LINE)).endswith(b"\n") or len(line) == LONGEST_LINE:
                    yield line
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"'{self.path}' cannot be read: {files.reason(error)}") from None
